"""`workbench replay FILE...`: run recorded sessions again and compare what they find."""

from __future__ import annotations

import argparse
from pathlib import Path

from workbench.errors import PlanError, WorkbenchError
from workbench.exit_codes import ExitCode
from workbench.junit import write_junit
from workbench.output import Output
from workbench.replay import ReplayedAction, ReplayResult, replay

NAME = "replay"
HELP = "run recorded sessions again and compare the findings"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this command."""
    parser.add_argument("journals", metavar="FILE", nargs="+", type=Path, help="journal files")
    parser.add_argument("--junit", metavar="FILE", help="write the outcome as JUnit XML, a case per action")
    parser.add_argument("--rel", metavar="X", type=float, default=1e-5, help="relative tolerance of numbers (1e-5)")
    parser.add_argument("--save", metavar="DIR", type=Path, help="keep the new journals in this folder")


def run(args: argparse.Namespace, out: Output) -> ExitCode:
    """Replay every journal; 1 where findings differ, else the code of the first that could not be run."""
    if not args.rel >= 0:
        raise PlanError(f"--rel: expected at least 0, found {args.rel}.")
    results: list[ReplayResult] = []
    codes: list[ExitCode] = []
    for path in args.journals:
        save = None if args.save is None else args.save / path.name
        try:
            result = replay(path, rel=args.rel, save=save, progress=out.progress)
            codes.append(ExitCode.OK if result.same else ExitCode.DIFFERENCES)
        except WorkbenchError as error:
            # One journal that cannot be run must not hide what the others find.
            if len(args.journals) == 1 and not args.junit:
                raise
            result = _not_run(path, error)
            codes.append(ExitCode(error.exit_code))
        results.append(result)
        out.line(str(result))
    out.put("results", [result.to_dict() for result in results])
    out.put("same", all(result.same for result in results))
    if args.junit:
        out.line(f"JUnit: {write_junit(args.junit, results)}")
    if ExitCode.DIFFERENCES in codes:
        return ExitCode.DIFFERENCES
    return next((code for code in codes if code != ExitCode.OK), ExitCode.OK)


def _not_run(path: Path, error: WorkbenchError) -> ReplayResult:
    step = ReplayedAction(
        action="open the session",
        outcome="error",
        differences=(f"{type(error).__name__}: {error}",),
        records=0,
        elapsed_s=0.0,
    )
    return ReplayResult(name=path.name, steps=(step,))
