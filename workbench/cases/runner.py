"""Finds case folders and runs each one in a child process of its own, so that none can take the others down.

Which class is answered by which module stands here, once. What a case means and how its answer is compared is the
business of that module (`run_case(folder) -> CaseResult`); this one never looks into `expected`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from workbench.cases.base import CaseResult, read_expected
from workbench.cases.child import run_in_child
from workbench.errors import PlanError, WorkbenchError

# class in expected.json -> (prefix of its ids, module that answers it)
ANSWERED: dict[str, tuple[str, str]] = {
    "checkpoint": ("CK", "workbench.cases.checkpoint"),
    "numerics": ("NUM", "workbench.cases.numerics"),
    "memory": ("MEM", "workbench.cases.memory"),
    "graph_break": ("GB", "workbench.cases.graph_break"),
    "bisect": ("BIS", "workbench.cases.bisect"),
    "neuron_ls_monitor": ("NLS", "workbench.cases.neuron_ls"),
}

# class in expected.json -> (prefix of its ids, why it is not run)
NOT_ANSWERED: dict[str, tuple[str, str]] = {
    "compiler_log": ("LOG", "compiler logs are not parsed in this version"),
    "notebook_replay": ("WID", "notebook scenarios are tests of their own (tests/journeys), not run from here"),
}


def find_cases(root: Path) -> list[Path]:
    """Return the case folders at or below `root`, sorted by path: every folder that holds an `expected.json`.

    Raises:
        PlanError: `root` is no folder, or holds no case.
    """
    if not root.is_dir():
        raise PlanError(f"cases: expected a folder, found {'a file' if root.exists() else 'nothing'} at {root}")
    folders = sorted(path.parent for path in root.rglob("expected.json"))
    if not folders:
        raise PlanError(f"cases: expected at least one folder with an expected.json below {root}, found none")
    return folders


def run_cases(folders: Sequence[Path], *, limit_s: float = 300.0, jobs: int = 1) -> Iterator[CaseResult]:
    """Run every case, `jobs` at a time, and give the results in the order of `folders` as they come.

    Args:
        folders: as `find_cases` returns them.
        limit_s: seconds a case may take; its whole process group is ended after that, and the case has failed.
        jobs: child processes alive at once.
    """
    with ThreadPoolExecutor(max_workers=jobs) as pool:
        pending = [pool.submit(run_case, folder, limit_s=limit_s) for folder in folders]
        try:
            for future in pending:
                yield future.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def run_case(folder: Path, *, limit_s: float = 300.0) -> CaseResult:
    """Run one case in a child process; a case nobody answers is "not_run" with the reason, never "passed"."""
    case = identify(folder)
    if case.module is None:
        return CaseResult(
            case_id=case.case_id, case_class=case.case_class, status="not_run", differences=(case.why_not,)
        )
    return run_in_child(folder, case_id=case.case_id, case_class=case.case_class, module=case.module, limit_s=limit_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseIdentity:
    """Who a case is, and who answers it.

    Attributes:
        case_id: as in `expected.json`; the folder's name where that cannot be read.
        case_class: as in `expected.json`, "unknown" where that cannot be read.
        module: module that answers it, None when none does.
        why_not: the reason when none does.
    """

    case_id: str
    case_class: str
    module: str | None = None
    why_not: str = ""


def identify(folder: Path) -> CaseIdentity:
    """Return who the case in `folder` is; its class decides who answers it, and the prefix of its id if that fails."""
    try:
        expected = read_expected(folder)
    except WorkbenchError as error:
        return CaseIdentity(case_id=folder.name, case_class="unknown", why_not=f"not in the format of a case: {error}")
    case_id, case_class = str(expected["id"]), str(expected["class"])
    known = case_class if case_class in (*ANSWERED, *NOT_ANSWERED) else _class_by_prefix(case_id.split("-")[0])
    if known in ANSWERED:
        return CaseIdentity(case_id=case_id, case_class=case_class, module=ANSWERED[known][1])
    if known in NOT_ANSWERED:
        return CaseIdentity(case_id=case_id, case_class=case_class, why_not=NOT_ANSWERED[known][1])
    why = f"unknown class {case_class!r}; known are {', '.join([*ANSWERED, *NOT_ANSWERED])}"
    return CaseIdentity(case_id=case_id, case_class=case_class, why_not=why)


def _class_by_prefix(prefix: str) -> str:
    return next((name for name, (known, _) in {**ANSWERED, **NOT_ANSWERED}.items() if known == prefix), "")
