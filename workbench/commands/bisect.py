"""`workbench bisect`: narrow a compile failure to the smallest part that still fails."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, cast

from workbench.bisection.bisect import bisect_compile, conclude, open_bisection
from workbench.bisection.compile_bisection import TIME_LIMIT_S, CompileBisection
from workbench.bisection.findings import BisectionFindings
from workbench.bisection.search import Verdict
from workbench.bisection.trial_cache import TrialCache
from workbench.commands import arguments
from workbench.compilers.names import FORMS
from workbench.errors import PlanError
from workbench.exit_codes import ExitCode
from workbench.journal import Journal
from workbench.output import Output
from workbench.plan import Placement, Plan
from workbench.records.compiling import BisectionResult
from workbench.views.bisection import bisection_report, ended_text, trial_table
from workbench.views.narrowing import narrowing_plot

NAME = "bisect"
HELP = "narrow a compile failure to the smallest part that still fails"

_LEVELS = "layers,nodes"
_MARKS: dict[str, Verdict] = {
    "fails": "fails_same",
    "passes": "passes",
    "other": "other_failure",
    "skip": "unresolved",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this command."""
    parser.add_argument(
        "target",
        metavar="CHECKPOINT|FILE.py|GRAPH.txt",
        help="checkpoint folder, Python file with build_model() and example_inputs(), or text, one operation a line",
    )
    parser.add_argument("--compiler", metavar="NAME", required=True, help=f"what it fails with: {FORMS}")
    parser.add_argument(
        "--level", metavar="A,B", help=f"layers, modules, nodes: what to narrow on, coarse to fine ({_LEVELS})"
    )
    parser.add_argument("--phase", choices=("decode", "prefill"), help="which forward pass of a checkpoint (decode)")
    parser.add_argument("--module", metavar="PATH", default="", help="only this module, as in layers.3.ffn")
    parser.add_argument("--layers", metavar="A:B", help="of a checkpoint: only these layers")
    parser.add_argument("--profile", metavar="NAME", help="of a checkpoint: numeric profile (fp32)")
    parser.add_argument("--prompt", metavar="TEXT", help="of a checkpoint: prompt, tokenised with its tokenizer")
    parser.add_argument(
        "--token-ids", metavar="IDS", action="append", default=[], help="of a checkpoint: a sequence as in 5,17,9"
    )
    parser.add_argument(
        "--time-limit", metavar="S", type=float, default=TIME_LIMIT_S, help=f"seconds of a trial ({TIME_LIMIT_S:g})"
    )
    parser.add_argument("--repro", metavar="DIR", help="write repro.py and report.md here")
    parser.add_argument("--journal", metavar="FILE", help="keep the journal here")
    parser.add_argument(
        "--plot", metavar="FILE", type=arguments.picture_file, help="draw the narrowing here (.png, .svg, .pdf)"
    )
    parser.add_argument("--trials", action="store_true", help="list every trial too")
    parser.add_argument(
        "--resume", metavar="FILE", help="file of trials: those in it are not run again, new ones are added"
    )
    by_hand = parser.add_mutually_exclusive_group()
    by_hand.add_argument("--step", action="store_true", help="with --resume: run the next trial alone, and stop")
    by_hand.add_argument("--mark", choices=tuple(_MARKS), help="with --resume: answer the next trial by hand, and stop")
    by_hand.add_argument("--undo", metavar="N", type=int, help="with --resume: forget the last N trials, and stop")


def run(args: argparse.Namespace, out: Output) -> ExitCode:
    """Narrow; 0 where the whole compiles, 1 where a failing part was found (4 where it hangs, 5 where it crashes).

    2 where the compiler cannot be used like this, 125 where nothing could be decided. By hand, 0 while it goes on.
    """
    if args.step or args.mark is not None or args.undo is not None:
        return _by_hand(args, out)
    # What the observed program prints must not stand in the middle of the answer.
    with contextlib.redirect_stdout(sys.stderr), _journal_of(args, out) as journal:
        results = journal.of_kind(BisectionResult)
        _show(journal, args, out)
        if results and results[-1].verdict == "interrupted":
            raise KeyboardInterrupt
    return exit_code(results[-1]) if results else ExitCode.SKIPPED


def exit_code(result: BisectionResult) -> ExitCode:
    """Return the exit code of a result."""
    if result.verdict == "found" and result.signature is not None:
        by_outcome = {"timeout": ExitCode.TIMEOUT, "crash": ExitCode.TARGET_CRASHED, "killed": ExitCode.TARGET_CRASHED}
        return by_outcome.get(result.signature.outcome, ExitCode.DIFFERENCES)
    by_verdict = {"not_reproduced": ExitCode.OK, "usage_error": ExitCode.WRONG_USE}
    return by_verdict.get(result.verdict, ExitCode.SKIPPED)


@contextlib.contextmanager
def _journal_of(args: argparse.Namespace, out: Output) -> Iterator[Journal]:
    """Run the whole bisection and give its journal."""
    if _is_graph_file(args.target):
        with Journal(path=args.journal) as journal:
            bisect_compile(
                args.target,
                compiler=args.compiler,
                level=_levels(args),
                sink=journal.append,
                progress=out.progress,
                cache=args.resume,
                time_limit_s=args.time_limit,
                repro=args.repro,
            )
            yield journal
        return
    from workbench.session import Session

    plan = _plan(args)
    with Session(plan, path=args.journal, progress=out.progress) as session:
        session.bisect_compile(
            args.module,
            compiler=args.compiler,
            level=_levels(args) or tuple(_LEVELS.split(",")),
            phase=args.phase or "decode",
            time_limit_s=args.time_limit,
            repro=args.repro or "",
            cache=args.resume or "",
        )
        yield session.journal


def _by_hand(args: argparse.Namespace, out: Output) -> ExitCode:
    """Do one thing to the bisection whose trials are in a file, and say what comes next."""
    if args.resume is None:
        raise PlanError(
            "bisect: --step, --mark and --undo go on with the trials of a file; expected --resume FILE too."
        )
    if args.journal is not None:
        raise PlanError("bisect: by hand, the file of --resume is the record; found --journal too.")
    cache = TrialCache(args.resume)
    try:
        if args.undo is not None:
            dropped = cache.drop_last(args.undo)
            out.line(f"forgot {len(dropped)} trials; {len(cache.trials)} are left")
        with contextlib.redirect_stdout(sys.stderr), _opened(args, out, cache) as bisection:
            bisection.catch_up()
            if args.step:
                bisection.step()
            elif args.mark is not None:
                bisection.mark(_MARKS[args.mark])
                bisection.catch_up()
            findings = bisection.findings()
            if bisection.done:
                findings = conclude(bisection, findings, repro=args.repro)
            return _show_state(bisection, findings, args, out)
    finally:
        cache.close()


@contextlib.contextmanager
def _opened(args: argparse.Namespace, out: Output, cache: TrialCache) -> Iterator[CompileBisection]:
    options = {"time_limit_s": args.time_limit, "cache": cache}
    if _is_graph_file(args.target):
        same = {"compiler": args.compiler, "level": _levels(args), "progress": out.progress}
        with open_bisection(args.target, **same, **options) as bisection:
            yield bisection
        return
    from workbench.models import open_sides

    side = open_sides(_plan(args)).reference
    call = side.call(args.module, args.phase or "decode")
    levels = _levels(args) or tuple(_LEVELS.split(","))
    with open_bisection(
        call.function,
        call.args,
        call.kwargs,
        module=call.module,
        grad=False,
        compiler=args.compiler,
        level=levels,
        progress=out.progress,
        **options,
    ) as bisection:
        yield bisection


def _show(journal: Journal, args: argparse.Namespace, out: Output) -> None:
    out.show("result", bisection_report(journal))
    if args.trials or out.as_json:
        out.line()
        out.show("trials", trial_table(journal))
    if args.plot:
        try:
            narrowing_plot(journal).figure().savefig(args.plot, dpi=120)
        except (OSError, ValueError) as error:
            raise PlanError(f"--plot: cannot draw to {args.plot}: {error}") from error
        out.line(f"plot: {args.plot}")
    if args.journal:
        out.line(f"journal: {args.journal}")
    out.put("journal", args.journal)
    out.put("next", None)


def _show_state(
    bisection: CompileBisection, findings: BisectionFindings, args: argparse.Namespace, out: Output
) -> ExitCode:
    """Tell where a bisection by hand stands."""
    proposal = bisection.proposal
    out.put("journal", None)
    if out.as_json or proposal is None:
        out.show("result", bisection_report(findings.records))
    if args.trials or out.as_json:
        out.show("trials", trial_table(findings.records))
    if proposal is None:
        out.put("next", None)
        return exit_code(findings.result)
    kept = bisection.machine.names(proposal.kept)
    if findings.trials:
        out.line(f"last: {ended_text(findings.trials[-1])}")
    smallest = len(bisection.smallest())
    out.line(f"{bisection.subject.level}: smallest failing part so far: {smallest} of {len(bisection.subject.items)}")
    out.line(f"next ({proposal.phase}): {len(kept)} kept")
    for name in kept[:20]:
        out.line(f"    {name}"[:100])
    if len(kept) > 20:
        out.line(f"    ... {len(kept)} in all")
    out.line(f"go on with --step, or answer with --mark {{{','.join(_MARKS)}}}")
    out.put("next", {"level": bisection.subject.level, "phase": proposal.phase, "kept": list(kept)})
    return ExitCode.OK


def _is_graph_file(target: str) -> bool:
    return Path(target).is_file() and not arguments.is_python_file(target)


def _levels(args: argparse.Namespace) -> tuple[str, ...] | None:
    return None if args.level is None else tuple(part.strip() for part in args.level.split(",") if part.strip())


def _plan(args: argparse.Namespace) -> Plan:
    of_checkpoints = ("phase", "layers", "profile", "prompt", "token_ids")
    if arguments.is_python_file(args.target):
        given = [f"--{name.replace('_', '-')}" for name in of_checkpoints if getattr(args, name)]
        if given:
            raise PlanError(f"bisect: {', '.join(given)} go with a checkpoint; found the Python file {args.target}.")
        return Plan(model="module", source=args.target)
    given = argparse.Namespace(prompt=args.prompt, token_ids=args.token_ids, max_tokens=0, seed=0)
    moe: Literal["all"] = "all"
    return Plan(
        checkpoint=args.target,
        inputs=arguments.inputs(given),
        # A compiler needs fixed shapes: walking only the experts that were hit would break the graph.
        reference=Placement(profile=args.profile or "fp32", moe=moe),
        layers=None if args.layers is None else arguments.layers(cast("str", args.layers)),
    )
