"""`workbench memory`: every allocation of a run, who made it, and what made the peak."""

from __future__ import annotations

import argparse
import contextlib
import sys
from pathlib import Path

from workbench.commands import arguments
from workbench.errors import PlanError
from workbench.exit_codes import ExitCode
from workbench.journal import Journal, JournalHeader
from workbench.output import Output
from workbench.plan import Placement, Plan
from workbench.records import Fallback
from workbench.views.memory import memory_table, memory_timeline, peaks_table, top_owners
from workbench.views.memory_runs import last_run

NAME = "memory"
HELP = "record every allocation of a run"

_OF_CONFIGS = ("tokens", "sequences", "rank", "world_size")
_OF_CHECKPOINTS = ("prompt", "token_ids")
_OF_MODELS = ("phase", "layers", "moe")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this command."""
    parser.add_argument(
        "target",
        metavar="CHECKPOINT|config.json|FILE.py[:NAME]",
        help="checkpoint folder; a configuration alone (dry); or a file with build_model() and example_inputs()",
    )
    form = arguments.PLACEMENT_FORM
    parser.add_argument(
        "--device", metavar=form, help="where it runs: host, or dry for shapes alone (host; dry for a config.json)"
    )
    parser.add_argument("--phase", choices=("prefill", "decode"), help="which forward pass of a model (decode)")
    parser.add_argument("--layers", metavar="A:B", help="of a model: only these layers")
    parser.add_argument("--module", metavar="PATH", default="", help="only this module, as in layers.3.ffn")
    parser.add_argument(
        "--moe", choices=("hit", "all"), help="of a model: only as many experts as rows choose, or all of them"
    )
    parser.add_argument("--prompt", metavar="TEXT", help="of a checkpoint: prompt, tokenised with its tokenizer")
    parser.add_argument(
        "--token-ids", metavar="IDS", action="append", default=[], help="of a checkpoint: a sequence as in 5,17,9"
    )
    parser.add_argument("--tokens", metavar="N", type=int, help="of a config.json: length of each sequence (128)")
    parser.add_argument("--sequences", metavar="N", type=int, help="of a config.json: sequences in the batch (1)")
    parser.add_argument("--world-size", metavar="N", type=int, help="of a config.json: ranks that share weights (1)")
    parser.add_argument("--rank", metavar="R", type=int, help="of a config.json: whose share, from 0 (0)")
    parser.add_argument(
        "--allocator",
        action="store_true",
        help="on the host: run once more, under torch's profiler, to count what only the allocator sees",
    )
    parser.add_argument("--top", metavar="N", type=int, default=10, help="rows of a table at most (10)")
    parser.add_argument("--timeline", action="store_true", help="show the run as text over time, too")
    parser.add_argument(
        "--plot",
        metavar="FILE",
        type=arguments.picture_file,
        help="draw the timeline here (.png, .svg, .pdf), and the owners to FILE-owners",
    )
    parser.add_argument("--journal", metavar="FILE", help="keep the journal here")


def run(args: argparse.Namespace, out: Output) -> ExitCode:
    """Record and show; an error or Ctrl-C leaves shown and kept what had been recorded."""
    if args.top < 1:
        raise PlanError(f"--top: expected at least 1, found {args.top}.")
    if Path(args.target).suffix == ".json":
        _run_config(args, out)
    else:
        _run_session(args, out)
    return ExitCode.OK


def _run_session(args: argparse.Namespace, out: Output) -> None:
    from workbench.session import Session

    plan = _plan(args)
    phase = "" if plan.model == "module" else args.phase or "decode"
    # What the observed program prints must not stand in the middle of the answer.
    with contextlib.redirect_stdout(sys.stderr), Session(plan, path=args.journal, progress=out.progress) as session:
        try:
            session.memory(args.module, phase=phase, allocator=args.allocator)
        finally:
            _show(session.journal, args, out)


def _run_config(args: argparse.Namespace, out: Output) -> None:
    """Run a configuration alone; there is no checkpoint to make a session of, and thus nothing to replay."""
    import torch

    from workbench.devices.names import open_device
    from workbench.probes.memory import record_memory
    from workbench.session import versions
    from workbench.subjects.config_model import RankModel, open_rank_model

    placement = arguments.placement(args.device or "dry:bf16")
    _refuse(args, ("module", "allocator", *_OF_CHECKPOINTS), f"do not go with a configuration alone: {args.target}")
    model = RankModel(
        config=Path(args.target),
        phase=args.phase or "decode",
        tokens=128 if args.tokens is None else args.tokens,
        sequences=1 if args.sequences is None else args.sequences,
        rank=args.rank or 0,
        world_size=1 if args.world_size is None else args.world_size,
        experts=args.moe or "hit",
        profile=placement.profile,
        layers=None if args.layers is None else arguments.layers(args.layers),
    )
    device = open_device(placement)
    out.progress(f"memory: laying out {args.target} on shapes")
    call = open_rank_model(model, device)
    with Journal(JournalHeader(versions=versions(), title=f"{call.name}, {args.target}"), path=args.journal) as journal:
        try:
            with torch.no_grad():
                record_memory(
                    call.function,
                    call.args,
                    call.kwargs,
                    module=call.module,
                    device=device,
                    cache=call.cache,
                    sink=journal.append,
                    phase=model.phase,
                    progress=out.progress,
                )
        finally:
            _show(journal, args, out)


def _show(journal: Journal, args: argparse.Namespace, out: Output) -> None:
    run = last_run(journal)
    notes = journal.of_kind(Fallback)
    out.show("peaks", peaks_table(journal))
    out.line()
    out.show("storages", memory_table(journal, top=args.top))
    out.line()
    out.show("owners", top_owners(journal, top=args.top))
    timeline = memory_timeline(journal)
    if args.timeline or out.as_json:
        out.line()
        out.show("timeline", timeline)
    for rule in _rules_met(journal):
        out.line(rule)
    for note in notes:
        out.line(f"not done: {note.what}; {note.used} instead: {note.why}")
    out.put("notes", notes)
    out.put("rules", _rules_met(journal))
    out.put("computed", bool(run.peak) and all(one.basis == "computed" for one in run.own))
    if args.plot:
        path = Path(args.plot)
        owners = path.with_name(f"{path.stem}-owners{path.suffix}")
        try:
            timeline.figure().savefig(path, dpi=120)
            top_owners(journal, top=args.top).figure().savefig(owners, dpi=120)
        except (OSError, ValueError) as error:
            raise PlanError(f"--plot: cannot draw to {args.plot}: {error}") from error
        out.line(f"plots: {path}, {owners}")
    if args.journal:
        out.line(f"journal: {args.journal}")
    out.put("journal", args.journal)


def _rules_met(journal: Journal) -> list[str]:
    """Return what the workspace rules say of memory they added to this run."""
    from workbench.probes.workspace_rules import rule_named

    found: list[str] = []
    for name in dict.fromkeys(one.op for one in last_run(journal).own if one.counts == "allocator"):
        rule = rule_named(name)
        if rule is not None:
            found.append(f"{rule.name}: {rule.effect}; instead: {rule.remedy} ({rule.basis}, {rule.source})")
    return found


def _plan(args: argparse.Namespace) -> Plan:
    placement = arguments.placement(args.device or "host")
    _refuse(args, _OF_CONFIGS, f"go with a config.json; found {args.target}")
    if arguments.is_python_file(args.target):
        _refuse(args, (*_OF_MODELS, *_OF_CHECKPOINTS), f"go with a checkpoint; found the Python file {args.target}")
        return Plan(model="module", source=args.target, reference=placement)
    given = argparse.Namespace(prompt=args.prompt, token_ids=args.token_ids, max_tokens=0, seed=0)
    return Plan(
        checkpoint=args.target,
        inputs=arguments.inputs(given),
        reference=Placement(
            device=placement.device, index=placement.index, profile=placement.profile, moe=args.moe or placement.moe
        ),
        layers=None if args.layers is None else arguments.layers(args.layers),
    )


def _refuse(args: argparse.Namespace, names: tuple[str, ...], why: str) -> None:
    # Zero is a value given; None, "", [] and False are not.
    given = [f"--{name.replace('_', '-')}" for name in names if getattr(args, name) not in (None, "", [], False)]
    if given:
        raise PlanError(f"memory: {', '.join(given)} {why}.")
