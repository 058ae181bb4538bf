"""torch's own list of graph-break kinds, read from the installed wheel: id, explanation and hints, without network.

Not for what a kind means to us in a word; see `break_classes`.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

REGISTRY_FILE = "_dynamo/graph_break_registry.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryEntry:
    """One kind of graph break.

    Attributes:
        registry_id: as in `GB0124`.
        gb_type: torch's name of the kind, free of anything that depends on the program.
        explanation: torch's explanation; placeholders in braces stand for what depends on the program.
        hints: torch's advice, one each.
    """

    registry_id: str
    gb_type: str
    explanation: str
    hints: tuple[str, ...]


def registry_path() -> Path:
    """Return where the installed torch keeps its registry; the file need not exist."""
    import torch

    return Path(torch.__file__).parent / REGISTRY_FILE


def read_registry(path: Path | None = None) -> Mapping[str, RegistryEntry]:
    """Return the registry by `gb_type`, every earlier wording of an id included.

    Args:
        path: another file of the same form, None for the installed torch's.

    Returns:
        An empty mapping when the file is absent or not of the known form: an id is a convenience, and a torch without
        one must still have its breaks listed.
    """
    return _read(registry_path() if path is None else path)


@functools.lru_cache(maxsize=4)
def _read(path: Path) -> Mapping[str, RegistryEntry]:
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    entries: dict[str, RegistryEntry] = {}
    if not isinstance(body, dict):
        return entries
    for registry_id, versions in cast("dict[str, object]", body).items():
        for version in versions if isinstance(versions, list) else []:
            if isinstance(version, dict) and "Gb_type" in version:
                gb_type = str(version["Gb_type"])
                hints = tuple(str(hint) for hint in version.get("Hints", ()))
                entry = RegistryEntry(
                    registry_id=registry_id,
                    gb_type=gb_type,
                    explanation=str(version.get("Explanation", "")),
                    hints=hints,
                )
                entries.setdefault(gb_type, entry)
    return entries


def registry_ids(path: Path | None = None) -> tuple[str, ...]:
    """Return every id of the registry, sorted."""
    return tuple(sorted({entry.registry_id for entry in read_registry(path).values()}))


def find_entry(gb_type: str, path: Path | None = None) -> RegistryEntry | None:
    """Return the entry of a kind, None when the registry does not know it."""
    return read_registry(path).get(gb_type)
