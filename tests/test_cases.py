"""Every case of the hand-over folder, asked through the public runner, each in a process of its own."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.shared import shared_path
from workbench.cases.base import CaseResult
from workbench.cases.runner import find_cases, identify, run_case, run_cases

_HERE = Path(__file__).resolve().parent
_ROOT = Path(os.environ.get("NEURON_WORKBENCH_SHARED", _HERE.parent.parent / "shared"), "cases")
_FOLDERS = find_cases(_ROOT) if _ROOT.is_dir() else []
_ANSWERED = [folder for folder in _FOLDERS if identify(folder).module is not None]
_REST = [folder for folder in _FOLDERS if identify(folder).module is None]


def _named(folders: list[Path]) -> list[object]:
    # Without the folder one test stays, which skips with the reason.
    return [pytest.param(folder, id=folder.name) for folder in folders] or [pytest.param(None, id="absent")]


@pytest.fixture(scope="module")
def results(request: pytest.FixtureRequest) -> Mapping[str, CaseResult]:
    """The results of the cases chosen for this run, worked out side by side."""
    items = [item for item in request.session.items if item.name.startswith("test_case_passes[")]
    chosen = [folder for folder in _ANSWERED if any(item.name.endswith(f"[{folder.name}]") for item in items)]
    jobs = max(1, min(8, os.cpu_count() or 1))
    return {folder.name: result for folder, result in zip(chosen, run_cases(chosen, jobs=jobs), strict=True)}


@pytest.mark.parametrize("folder", _named(_ANSWERED))
def test_case_passes(folder: Path | None, results: Mapping[str, CaseResult]) -> None:
    if folder is None:
        shared_path("cases")
    result = results[str(folder and folder.name)]
    assert (result.status, result.differences) == ("passed", ()), result.answers


@pytest.mark.parametrize("folder", _named(_REST))
def test_case_of_a_later_class_is_reported_as_not_run(folder: Path | None) -> None:
    if folder is None:
        shared_path("cases")
    assert folder is not None
    result = run_case(folder)
    assert result.status == "not_run"
    assert result.differences[0], "the reason is told"
