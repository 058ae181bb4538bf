"""`workbench cases DIR`: run handed case folders, one line a case with what differed."""

from __future__ import annotations

import argparse
import os
from collections import Counter
from pathlib import Path

from workbench.cases.base import CaseResult
from workbench.cases.runner import find_cases, identify, run_cases
from workbench.errors import PlanError
from workbench.exit_codes import ExitCode
from workbench.output import Output

NAME = "cases"
HELP = "run handed case folders through the public interface"

_WORD = {"passed": "passed", "failed": "FAILED", "not_run": "not run"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this command."""
    parser.add_argument("folder", metavar="DIR", type=Path, help="folder that is or holds case folders")
    parser.add_argument("--only", metavar="ID", action="append", default=[], help="run this case alone (repeatable)")
    parser.add_argument("--limit", metavar="SECONDS", type=float, default=300.0, help="time limit of one case (300)")
    parser.add_argument("--jobs", metavar="N", type=int, default=1, help="cases at once, each in its own process (1)")


def run(args: argparse.Namespace, out: Output) -> ExitCode:
    """Run the cases; 1 when any failed, 125 when none could be run at all."""
    folders = find_cases(args.folder)
    if args.only:
        folders = _chosen(folders, args.only)
    results: list[CaseResult] = []
    for result in run_cases(folders, limit_s=args.limit, jobs=max(1, min(args.jobs, os.cpu_count() or 1))):
        results.append(result)
        out.line(_line(result))
        if out.as_json:
            out.progress(_line(result))
    counts = Counter(result.status for result in results)
    out.line(f"{counts['passed']} passed, {counts['failed']} failed, {counts['not_run']} not run")
    out.put("cases", results)
    out.put("counts", {status: counts[status] for status in _WORD})
    if counts["failed"]:
        return ExitCode.DIFFERENCES
    return ExitCode.OK if counts["passed"] else ExitCode.SKIPPED


def _line(result: CaseResult) -> str:
    # A line is a line: a case author's newlines would break the promise of one line a case.
    words = "; ".join(" ".join(line.split()) for line in result.differences)
    return f"{result.case_id:<10} {_WORD[result.status]:<8} {words}".rstrip()


def _chosen(folders: list[Path], wanted: list[str]) -> list[Path]:
    by_id = {identify(folder).case_id: folder for folder in folders}
    missing = [name for name in wanted if name not in by_id]
    if missing:
        raise PlanError(f"cases: expected ids of cases, found {', '.join(missing)}; there are {', '.join(by_id)}")
    return [by_id[name] for name in dict.fromkeys(wanted)]
