"""`workbench verify CHECKPOINT --golden DIR`: hold a checkpoint's model against golden data."""

from __future__ import annotations

import argparse

from workbench.exit_codes import ExitCode
from workbench.output import Output
from workbench.plan import Inputs, Placement, Plan
from workbench.views.checks import check_details, check_table

NAME = "verify"
HELP = "check a checkpoint's model against golden data"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this command."""
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help="checkpoint folder")
    parser.add_argument("--golden", metavar="DIR", required=True, help="folder in the golden format")
    parser.add_argument("--mode", metavar="MODE", default="fp32", help="fp32, fp32kv, fp32q or bf16 (fp32)")
    parser.add_argument("--prompts", metavar="NAME", nargs="+", default=[], help="only these golden prompts")
    parser.add_argument("--details", action="store_true", help="list every check, not only the prompts")
    parser.add_argument("--journal", metavar="FILE", help="keep the journal here")


def run(args: argparse.Namespace, out: Output) -> ExitCode:
    """Run the checks; 1 where one fails."""
    from workbench.session import Session

    plan = Plan(
        checkpoint=args.checkpoint,
        inputs=Inputs(token_ids=((0,),)),
        reference=Placement(profile=args.mode),
    )
    with Session(plan, path=args.journal, title="verify", progress=out.progress) as session:
        passed = session.verify(args.golden, mode=args.mode, prompts=args.prompts)
        out.show("checks", check_details(session.journal) if args.details else check_table(session.journal))
    out.put("mode", args.mode)
    out.put("passed", passed)
    out.put("journal", args.journal)
    return ExitCode.OK if passed else ExitCode.DIFFERENCES
