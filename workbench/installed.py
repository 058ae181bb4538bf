"""What is installed of a distribution, from its metadata alone: nothing is imported, so nothing of it can run.

Importing torch_neuronx would set variables and may take the cores of a chip for the rest of the process, and the wheel
of that name on the public registry does nothing but raise.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError
from pathlib import Path
from typing import Literal

Kind = Literal["absent", "installed", "placeholder", "xla", "unnamed"]

_PLACEHOLDER_BYTES = 64 * 1024
"""A wheel smaller than this holds no compiler and no back-end: the placeholder has under 2 KiB (measured), the real
ones must have many MiB (inferred)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """One distribution of this environment.

    Attributes:
        name: of the distribution.
        kind: "absent"; "installed"; "placeholder", a wheel that only keeps the name; "xla", a torch-neuronx from before
            the native device; "unnamed", a module of the import name without a distribution.
        version: None where there is none.
        nbytes: of its files as its record lists them, None where there is no record.
        place: folder it lies in, None where it is absent.
    """

    name: str
    kind: Kind
    version: str | None = None
    nbytes: int | None = None
    place: str | None = None


def look_up(distribution: str, module: str) -> Installed:
    """Return what is installed under a distribution's name, or as a module of its import name.

    Args:
        distribution: as in `torch-neuronx`.
        module: as in `torch_neuronx`, top level.
    """
    try:
        found = Distribution.from_name(distribution)
    except PackageNotFoundError:
        spec = importlib.util.find_spec(module)
        if spec is None:
            return Installed(name=distribution, kind="absent")
        return Installed(name=distribution, kind="unnamed", place=spec.origin)
    nbytes = sum(file.size or 0 for file in found.files) if found.files else None
    return Installed(
        name=distribution,
        kind=_kind(distribution, found, nbytes),
        version=found.version,
        nbytes=nbytes,
        place=str(Path(str(found.locate_file("")))),
    )


def version_numbers(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version, as in (2, 14, 3) for `2.14.3.0+abc`: its first three."""
    numbers: list[int] = []
    for part in version.split("+")[0].split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        numbers.append(int(digits))
    return tuple(numbers[:3])


def _kind(name: str, found: Distribution, nbytes: int | None) -> Kind:
    if "WRONG PACKAGE" in str(found.metadata.json.get("description", "")):
        return "placeholder"
    if name in ("torch-neuronx", "neuronx-cc") and (
        version_numbers(found.version) < (2,) or (nbytes is not None and nbytes < _PLACEHOLDER_BYTES)
    ):
        return "placeholder"
    if name == "torch-neuronx" and version_numbers(found.version) < (2, 10):
        # The versions up to 2.9 go through torch-xla; their tensors are on `xla`, not on `neuron` (documented).
        return "xla"
    return "installed"
