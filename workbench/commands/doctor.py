"""`workbench doctor`: what this machine can run, what stands in the way, and what to do about it."""

from __future__ import annotations

import argparse

from workbench.doctor import PLACEMENTS, examine
from workbench.exit_codes import ExitCode
from workbench.output import Output

NAME = "doctor"
HELP = "say what this machine can run, and what stands in the way"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this command."""
    parser.add_argument(
        "--require",
        metavar="PLACEMENT",
        action="append",
        default=[],
        choices=PLACEMENTS,
        help="exit with 3 where this placement cannot run: host, dry, virtual or neuron (repeatable)",
    )


def run(args: argparse.Namespace, out: Output) -> ExitCode:
    """Look at the machine; 3 where a required placement cannot run."""
    report = examine(progress=out.progress)
    if out.as_json:
        for name, value in report.to_dict().items():
            out.put(name, value)
    else:
        out.line(str(report))
    missing = [name for name in dict.fromkeys(args.require) if not report.able(name)]
    out.put("required", list(dict.fromkeys(args.require)))
    out.put("not_able", missing)
    if missing:
        out.line(f"\nrequired and not able: {', '.join(missing)}")
        return ExitCode.ENVIRONMENT
    return ExitCode.OK
