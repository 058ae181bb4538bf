"""`workbench run`: step through a model, compare two sides, and keep the journal."""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path

from workbench.commands import arguments
from workbench.errors import PlanError
from workbench.exit_codes import INTERRUPTED, ExitCode
from workbench.output import Output
from workbench.plan import Placement, Plan
from workbench.records import StepFailure
from workbench.results import RunResult
from workbench.script import to_script
from workbench.views.errors import error_plot
from workbench.views.steps import diff_table, flip_table, step_table

NAME = "run"
HELP = "step through a model and compare two sides"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this command."""
    parser.add_argument(
        "target", metavar="CHECKPOINT|FILE.py", nargs="?", help="checkpoint folder, or a file with build_model()"
    )
    parser.add_argument("--plan", metavar="FILE", help="a plan as JSON; other arguments then only say how far to run")
    arguments.add_inputs(parser)
    form = arguments.PLACEMENT_FORM
    parser.add_argument("--reference", metavar=form, default="host", help="the trusted side (host)")
    parser.add_argument("--candidate", metavar=form, help="the side under test; none: observe only")
    parser.add_argument("--golden", metavar="DIR", help="golden data in the reference's place")
    parser.add_argument("--golden-prompt", metavar="NAME", help="which golden prompt to feed")
    parser.add_argument("--layers", metavar="A:B", help="run only these layers")
    parser.add_argument(
        "--residency", choices=("resident", "stream"), default="resident", help="stream: one step's weights at a time"
    )
    parser.add_argument("--until", metavar="MODULE", default="end", help="stop after this module (end)")
    parser.add_argument(
        "--stop-at", choices=("difference", "flip", "never"), default="never", help="what ends the run early (never)"
    )
    parser.add_argument("--first-divergence", action="store_true", help="search where the sides part instead")
    parser.add_argument("--tensors", action="store_true", help="list every tensor that differs too")
    parser.add_argument("--journal", metavar="FILE", help="keep the journal here")
    parser.add_argument("--script", metavar="FILE", help="write the session as a Python program")
    parser.add_argument(
        "--plot", metavar="FILE", type=arguments.picture_file, help="draw the errors here (.png, .svg, .pdf)"
    )


def run(args: argparse.Namespace, out: Output) -> int:
    """Run the session; 1 where the sides differ or a choice flipped, 5 where a step failed, 130 where it was ended."""
    from workbench.session import Session

    plan = _plan(args)
    with Session(plan, path=args.journal, progress=out.progress) as session:
        if args.first_divergence:
            found = session.first_divergence()
            out.put("divergence", found)
            where = "nowhere" if found.first is None else found.first or "the end of the call"
            out.line(f"the sides part first at: {where} ({found.comparisons} comparisons of {found.steps} steps)")
            code = ExitCode.OK if found.first is None else ExitCode.DIFFERENCES
        else:
            code = _exit_code(result := session.run(until=args.until, stop_at=args.stop_at))
            out.put("stopped", result.stopped)
            out.put("verdict", result.verdict)
            out.show("steps", step_table(session.journal))
            if args.tensors:
                out.show("tensors", diff_table(session.journal, differing=True))
            flips = flip_table(session.journal)
            if flips.rows or out.as_json:
                out.show("flips", flips)
            failures = session.journal.of_kind(StepFailure)
            out.put("failures", [failure.to_json() for failure in failures])
            for failure in failures:
                out.line(f"{failure.side} failed in {failure.name or 'the call'}: {failure.error}")
            out.line(str(result).splitlines()[0])
        journal = session.journal
        if args.script:
            Path(args.script).write_text(to_script(journal, folder=Path(args.script).parent), encoding="utf-8")
            out.line(f"script: {args.script}")
        if args.plot:
            error_plot(journal).figure().savefig(args.plot, dpi=120)
            out.line(f"plot: {args.plot}")
        if args.journal:
            out.line(f"journal: {args.journal}")
    out.put("journal", args.journal)
    return code


def _plan(args: argparse.Namespace) -> Plan:
    if args.plan is not None:
        plan = Plan.load(args.plan)
        return plan if args.target is None else dataclasses.replace(plan, checkpoint=args.target)
    if args.target is None:
        raise PlanError("run: expected a checkpoint folder, a Python file, or --plan FILE; found none of them.")
    reference = arguments.placement(args.reference)
    candidate = None if args.candidate is None else arguments.placement(args.candidate)
    if arguments.is_python_file(args.target):
        if args.golden:
            raise PlanError("run: golden data goes with a checkpoint; found a Python file.")
        return Plan(
            model="module",
            source=args.target,
            inputs=arguments.inputs(args),
            reference=reference,
            candidate=candidate,
        )
    inputs = arguments.inputs(args)
    if args.golden is not None:
        # Golden data says what the model gives in one of its modes; the candidate runs in the same unless told.
        candidate = candidate or Placement(profile=reference.profile)
        if args.golden_prompt is not None:
            inputs = dataclasses.replace(inputs, prompt=None, token_ids=(_golden_ids(args.golden, args.golden_prompt),))
    elif args.golden_prompt is not None:
        raise PlanError("run: --golden-prompt names a prompt of --golden DIR; expected both.")
    return Plan(
        checkpoint=args.target,
        inputs=inputs,
        reference=reference,
        candidate=candidate,
        golden=args.golden,
        layers=None if args.layers is None else arguments.layers(args.layers),
        residency=args.residency,
    )


def _golden_ids(folder: str, name: str) -> tuple[int, ...]:
    path = Path(folder) / "golden.json"
    try:
        prompts = json.loads(path.read_text(encoding="utf-8"))["prompts"]
        ids = {key: tuple(int(token) for token in value["token_ids"]) for key, value in prompts.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise PlanError(f"run: expected golden data in {folder}, with prompts and token_ids; {error!r}.") from error
    if name not in ids:
        raise PlanError(f"run: --golden-prompt: expected one of {', '.join(ids)}; found {name!r}.")
    return ids[name]


def _exit_code(result: RunResult) -> int:
    if result.verdict == "failed":
        return ExitCode.TARGET_CRASHED
    if result.stopped == "interrupted":
        # Nobody knows what the rest would have shown: neither as expected nor a difference.
        return INTERRUPTED
    return ExitCode.DIFFERENCES if result.verdict in ("differ", "flipped") else ExitCode.OK
