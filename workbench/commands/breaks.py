"""`workbench breaks`: where `torch.compile` cuts a run into graphs, with file, line and reason."""

from __future__ import annotations

import argparse
import contextlib
import sys

from workbench.commands import arguments
from workbench.errors import PlanError
from workbench.exit_codes import ExitCode
from workbench.journal import Journal
from workbench.output import Output
from workbench.plan import Placement, Plan
from workbench.records.graphs import GraphBreak, GraphSummary
from workbench.views.graphs import break_report, break_table, graph_map, recompile_table

NAME = "breaks"
HELP = "list the graph breaks of a run, with their source lines"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this command."""
    parser.add_argument(
        "target",
        metavar="CHECKPOINT|FILE.py[:NAME]",
        help="checkpoint folder, or a Python file with build_model() and example_inputs(); NAME: call that instead",
    )
    parser.add_argument("--phase", choices=("decode", "prefill"), help="which forward pass of a checkpoint (decode)")
    parser.add_argument("--layers", metavar="A:B", help="of a checkpoint: only these layers")
    parser.add_argument("--module", metavar="PATH", default="", help="only this module, as in layers.3.ffn")
    parser.add_argument(
        "--moe",
        choices=("hit", "all"),
        help="of a checkpoint: walk only the experts hit (reads ids on the host), or all with fixed shapes (hit)",
    )
    parser.add_argument("--profile", metavar="NAME", help="of a checkpoint: numeric profile (fp32)")
    parser.add_argument("--prompt", metavar="TEXT", help="of a checkpoint: prompt, tokenised with its tokenizer")
    parser.add_argument(
        "--token-ids", metavar="IDS", action="append", default=[], help="of a checkpoint: a sequence as in 5,17,9"
    )
    parser.add_argument("--map", action="store_true", help="show which modules run in which graph")
    parser.add_argument("--depth", metavar="N", type=int, help="parts of a module path the map keeps (as many as fit)")
    parser.add_argument("--recompiles", action="store_true", help="show which functions were compiled again, and why")
    parser.add_argument(
        "--plot", metavar="FILE", type=arguments.picture_file, help="draw the map here (.png, .svg, .pdf)"
    )
    parser.add_argument("--journal", metavar="FILE", help="keep the journal here")


def run(args: argparse.Namespace, out: Output) -> ExitCode:
    """List the breaks; 0 where there are none, 1 where there are, 5 where the call itself fails."""
    from workbench.session import Session

    plan = _plan(args)
    if args.depth is not None and args.depth < 1:
        raise PlanError(f"--depth: expected at least 1, found {args.depth}.")
    # What the observed program prints must not stand in the middle of the answer.
    with contextlib.redirect_stdout(sys.stderr), Session(plan, path=args.journal, progress=out.progress) as session:
        try:
            session.trace_graphs(args.module, phase="" if plan.model == "module" else args.phase or "decode")
        finally:
            # What was found before an error or Ctrl-C is kept and shown.
            _show(session.journal, args, out)
        found = session.journal.of_kind(GraphBreak)
    return ExitCode.DIFFERENCES if found else ExitCode.OK


def _show(journal: Journal, args: argparse.Namespace, out: Output) -> None:
    summaries = journal.of_kind(GraphSummary)
    out.put("complete", bool(summaries) and summaries[-1].complete)
    out.put("summary", summaries[-1] if summaries else None)
    report = break_report(journal)
    if out.as_json:
        out.show("breaks", report)
    else:
        out.show("table", break_table(journal))
        if report.breaks:
            out.line()
            out.show("breaks", break_report(report.breaks))
    shown = graph_map(journal, depth=args.depth)
    if args.map or out.as_json:
        out.line()
        out.show("map", shown)
    if args.recompiles or out.as_json:
        out.line()
        out.show("recompiles", recompile_table(journal))
    if args.plot:
        try:
            shown.figure().savefig(args.plot, dpi=120)
        except (OSError, ValueError) as error:
            raise PlanError(f"--plot: cannot draw to {args.plot}: {error}") from error
        out.line(f"plot: {args.plot}")
    if args.journal:
        out.line(f"journal: {args.journal}")
    out.put("journal", args.journal)


def _plan(args: argparse.Namespace) -> Plan:
    if not arguments.is_python_file(args.target):
        given = argparse.Namespace(prompt=args.prompt, token_ids=args.token_ids, max_tokens=0, seed=0)
        return Plan(
            checkpoint=args.target,
            inputs=arguments.inputs(given),
            reference=Placement(profile=args.profile or "fp32", moe=args.moe or "hit"),
            layers=None if args.layers is None else arguments.layers(args.layers),
        )
    of_checkpoints = ("phase", "layers", "moe", "profile", "prompt", "token_ids")
    given_too = [f"--{name.replace('_', '-')}" for name in of_checkpoints if getattr(args, name)]
    if given_too:
        raise PlanError(f"breaks: {', '.join(given_too)} go with a checkpoint; found the Python file {args.target}.")
    return Plan(model="module", source=args.target)
