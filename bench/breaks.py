"""How many places of graph breaks are found, and in what time, beside `torch._dynamo.explain` in the same run.

The models are those of the tests, whose lines say where a break is (`# break`) and where one shows only once another is
out of the way (`# behind`).
"""

from __future__ import annotations

import contextlib
import io
import time
from collections.abc import Callable
from pathlib import Path

from tests.workbench.probes import break_models
from workbench.probes.dynamo_answers import explain
from workbench.probes.graphs import find_graph_breaks
from workbench.probes.observed_call import copy_call


def main(out: Callable[[str], None]) -> None:
    _find("Nothing", look_past=True)
    _explained("Nothing")
    totals = {"marked": 0, "plain": 0, "found": 0, "explained": 0}
    seconds = {"plain": 0.0, "found": 0.0, "explained": 0.0}
    for name in break_models.MODELS:
        marked = break_models.marked_lines(name, "break", "behind")
        totals["marked"] += len(marked)
        for way, ask in (
            ("found", lambda name=name: _find(name, look_past=True)),
            ("plain", lambda name=name: _find(name, look_past=False)),
            ("explained", lambda name=name: _explained(name)),
        ):
            began = time.perf_counter()
            lines = ask()
            seconds[way] += time.perf_counter() - began
            totals[way] += len(lines & marked)
    models, marked = len(break_models.MODELS), totals["marked"]
    out(f"graph breaks: {marked} places in {models} models")
    for way, words in (
        ("found", "workbench, looking past breaks"),
        ("plain", "workbench, plain run only"),
        ("explained", "torch._dynamo.explain"),
    ):
        out(f"  {words:32} {totals[way]:3} places ({totals[way] / marked:4.0%})  {seconds[way]:6.2f} s")
    out(
        f"  ratio to explain: {totals['found'] / max(1, totals['explained']):.2f} x the places, "
        f"{seconds['found'] / seconds['explained']:.2f} x the time"
    )


def _find(name: str, *, look_past: bool) -> set[int]:
    with contextlib.redirect_stdout(io.StringIO()):
        findings = find_graph_breaks(
            break_models.MODELS[name]().eval(), break_models.example_inputs(), look_past=look_past
        )
    return {one.line for one in findings.breaks if Path(one.file).name == Path(break_models.__file__).name}


def _explained(name: str) -> set[int]:
    answer = explain(copy_call(break_models.MODELS[name]().eval(), break_models.example_inputs(), {}))
    return {line for file, line in answer.lines if file == break_models.__file__}


if __name__ == "__main__":
    main(print)
