"""One handed case: a folder with `expected.json`, answered through the public API and compared in substance."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, cast

from workbench.errors import WorkbenchError


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseResult:
    """The outcome of one case.

    Attributes:
        case_id: as in `expected.json`.
        case_class: as in `expected.json`.
        status: "passed", "failed" or "not_run".
        differences: what was expected and what came, a line each; the reason when not run.
        answers: what the API said, JSON-able.
    """

    case_id: str
    case_class: str
    status: Literal["passed", "failed", "not_run"]
    differences: tuple[str, ...] = ()
    answers: Mapping[str, object] = field(default_factory=dict[str, object])


def read_expected(folder: Path) -> dict[str, object]:
    """Return the parsed `expected.json` of a case folder.

    Raises:
        WorkbenchError: the file is missing or not a JSON object with `id` and `class`.
    """
    path = folder / "expected.json"
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise WorkbenchError(f"cannot read {path}: {error}; a case folder needs an expected.json") from error
    if not isinstance(body, dict) or not {"id", "class"} <= set(cast("dict[str, object]", body)):
        raise WorkbenchError(f"{path}: expected a JSON object with `id` and `class`")
    return cast("dict[str, object]", body)
