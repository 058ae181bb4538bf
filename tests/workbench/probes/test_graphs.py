"""Every break of a call is found once, at its line, also those Dynamo does not reach; and nothing of the call stays."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.workbench.probes import break_models
from workbench.errors import TargetCrash
from workbench.probes.frame_split import PIECE
from workbench.probes.graphs import find_graph_breaks, record_graph_breaks
from workbench.records.graphs import CapturedGraph, GraphBreak, GraphSummary

_FILE = Path(break_models.__file__)
_LINES = _FILE.read_text().splitlines()
_X = torch.ones(2, 8)


@pytest.fixture(autouse=True)
def quiet_model(capfd):
    """Take in what the models print."""


@cache
def _findings(name):
    torch.manual_seed(0)
    return find_graph_breaks(break_models.MODELS[name]().eval(), break_models.example_inputs())


def _breaks(findings):
    return [one for one in findings.breaks if Path(one.file).name == _FILE.name]


@pytest.mark.parametrize("name", [one for one in break_models.MODELS if one != "DebugsWithPdb"])
def test_every_break_of_a_model_is_found(name):
    found = _breaks(_findings(name))
    assert {one.line for one in found} == break_models.marked_lines(name, "break", "behind")
    assert {one.line for one in found if one.pass_index} == break_models.marked_lines(name, "behind")
    for one in found:
        assert one.text == _LINES[one.line - 1].strip()
        assert one.reason
        assert one.reason_class != "other"
        assert one.registry_id is not None


def _in_a_child(*arguments, **environment):
    child = subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        cwd=_FILE.parents[3],
        input="continue\n" * 20,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert child.returncode == 0, child.stderr[-2000:]
    return child


def test_the_plain_run_finds_what_torch_logs_itself():
    names = [name for name in break_models.MODELS if name != "DebugsWithPdb"]
    log = _in_a_child("-m", "tests.workbench.probes.own_log", *names, TORCH_LOGS="graph_breaks").stderr
    place = re.compile(rf"{_FILE.name}(?::|\", line )(\d+)")
    logged = {}
    for part in log.split("MODEL ")[1:]:
        name, *records = re.split(r"Graph break in user code at ", part)
        # The first line names the place, unless that is in the standard library: then our last line.
        found = [place.findall(record.partition("\n")[0]) or place.findall(record) for record in records]
        logged[name.partition("\n")[0]] = {int(lines[-1]) for lines in found if lines}
    assert logged == {name: {one.line for one in _breaks(_findings(name)) if not one.pass_index} for name in names}


def test_a_debugger_in_the_model_does_not_stop_the_probe():
    # Not in this process, where the test runner has a debugger of its own in the place of pdb.
    code = """
        from tests.workbench.probes import break_models
        from workbench.probes.graphs import find_graph_breaks
        findings = find_graph_breaks(break_models.DebugsWithPdb(), break_models.example_inputs())
        print([(one.line, one.calls) for one in findings.breaks])
    """
    (line,) = break_models.marked_lines("DebugsWithPdb", "break")
    assert _in_a_child("-c", textwrap.dedent(code)).stdout == f"[({line}, 1)]\n"


def test_a_break_in_a_loop_is_marked_and_so_is_what_stands_behind_it():
    found = {one.text.partition("  #")[0]: one for one in _breaks(_findings("ListsInLoop"))}
    assert {text: (one.in_loop, one.frame_skipped, one.pass_index) for text, one in found.items()} == {
        "first = row.tolist()[0]": (True, True, 0),
        'print("row")': (True, True, 1),
        "torch._dynamo.graph_break()": (False, False, 1),
    }


def test_what_dynamo_skips_after_a_break_in_a_try_is_looked_at():
    peak, done = _breaks(_findings("BreaksInTry"))
    assert (peak.in_loop, peak.frame_skipped, peak.pass_index) == (False, False, 0)
    assert (done.text.partition("  #")[0], done.in_loop, done.pass_index) == ('print("done")', False, 1)


def test_a_break_the_author_asked_for_is_intentional():
    assert [one.intentional for one in _breaks(_findings("DisablesShallow"))] == [True]
    assert [one.intentional for one in _breaks(_findings("Prints"))] == [False]


def test_advice_and_frames_come_with_a_break():
    (one,) = _breaks(_findings("EntersContext"))
    assert [(frame.function, frame.text.partition("  #")[0]) for frame in one.frames] == [
        ("__enter__", "torch._dynamo.graph_break()"),
        ("forward", "with Clock():"),
    ]
    (shown,) = _breaks(_findings("Prints"))
    assert shown.explanation.startswith("Dynamo does not know how to trace builtin operator `print`")
    assert len(shown.hints) >= 2


def test_a_model_without_breaks_is_one_graph():
    findings = _findings("Nothing")
    assert findings.breaks == ()
    (graph,) = findings.graphs
    assert graph.node_count == 3
    assert graph.op_counts == (("linear", 2), ("relu", 1))
    assert graph.modules == ("fc", "", "out")
    assert graph.guard_count
    assert findings.summary.complete


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x):
        h = self.fc(x)
        scale = max(
            h.abs().max().item(),
            1.0,
        )
        return h / scale


class Stack(nn.Module):
    def __init__(self, depth=4):
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(depth))
        self.spare = nn.Linear(8, 8)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        self.seen += 1
        for layer in self.layers:
            x = layer(x)
        return x


def test_a_line_shared_by_layers_is_one_break_that_names_and_counts_them():
    (one,) = find_graph_breaks(Stack(), (_X,)).breaks
    assert one.text == "h.abs().max().item(),"
    assert one.calls == 4
    assert one.modules == ("layers.0", "layers.1", "layers.2", "layers.3")
    assert one.in_loop


def test_the_summary_names_the_modules_that_ran():
    summary = find_graph_breaks(Stack(1), (_X,)).summary
    assert summary.modules == ("", "layers.0", "layers.0.fc")


def test_a_graph_names_every_layer_it_served():
    graphs = find_graph_breaks(Stack(), (_X,)).graphs
    served = [graph.modules for graph in graphs]
    assert any({"layers.0", "layers.3"} <= set(modules) for modules in served), served


def test_the_users_model_inputs_and_random_state_are_left_alone():
    model, x = Stack(), _X.clone()
    before = torch.random.get_rng_state()
    find_graph_breaks(model, (x,))
    assert model.seen == 0
    assert torch.equal(x, _X)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert not torch._dynamo.eval_frame.is_compiling() if hasattr(torch._dynamo.eval_frame, "is_compiling") else True


class StopsInLoop(nn.Module):
    def __init__(self, error=None, late=False):
        super().__init__()
        self.error, self.late = error, late
        self.runs = torch.zeros((), dtype=torch.int64)

    def forward(self, x):
        for _ in range(2):
            peak = x.max().item()
            x = x / peak
            raise_late(self, x)
        return x


RUNS = {"count": 0, "at": 0, "error": None}


def raise_late(_model, _x):
    RUNS["count"] += 1
    if RUNS["count"] == RUNS["at"]:
        raise RUNS["error"]


@pytest.fixture
def stops():
    """Return a function that makes the n-th call of `raise_late` raise."""

    def arm(at, error):
        RUNS.update(count=0, at=at, error=error)

    yield arm
    RUNS.update(count=0, at=0, error=None)


def _assert_nothing_installed(code):
    assert StopsInLoop.forward.__code__ is code
    assert not [name for name in globals() if name.startswith(PIECE.partition("{")[0])]


@pytest.mark.parametrize("at", [3, 4])
def test_an_error_while_pieces_are_installed_ends_the_search_and_is_told(stops, at):
    code = StopsInLoop.forward.__code__
    stops(at, ValueError("too late"))
    findings = find_graph_breaks(StopsInLoop(), (_X,))
    assert findings.breaks[0].text == "peak = x.max().item()"
    assert not findings.summary.complete
    assert findings.summary.warnings == ("not looked past: run 1, in pieces, raised ValueError: too late",)
    _assert_nothing_installed(code)


def test_an_interrupt_keeps_what_was_found_and_leaves_nothing_installed(stops):
    code = StopsInLoop.forward.__code__
    kept = []
    stops(3, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        find_graph_breaks(StopsInLoop(), (_X,), sink=kept.append)
    assert [type(one).__name__ for one in kept] == ["GraphBreak", "GraphSummary"]
    assert not kept[-1].complete
    _assert_nothing_installed(code)


def test_nothing_is_installed_after_a_search(stops):
    code = StopsInLoop.forward.__code__
    find_graph_breaks(StopsInLoop(), (_X,))
    _assert_nothing_installed(code)


def test_a_call_that_raises_by_itself_is_a_crash_of_the_target():
    class Raises(nn.Module):
        def forward(self, x):
            x = x * 2
            torch._dynamo.graph_break()
            raise ValueError("no weights")

    kept = []
    with pytest.raises(TargetCrash, match="without Dynamo, too, it raises ValueError: no weights") as caught:
        find_graph_breaks(Raises(), (_X,), sink=kept.append)
    assert caught.value.exit_code == 5
    assert isinstance(caught.value.__cause__, ValueError)
    assert "torch._dynamo.graph_break()" in [one.text for one in kept if isinstance(one, GraphBreak)]


def test_a_call_that_raises_under_dynamo_only_says_so(monkeypatch):
    def refuses(_graph, _inputs):
        raise RuntimeError("no such operation")

    monkeypatch.setattr(torch._dynamo, "lookup_backend", lambda _name: refuses)
    with pytest.raises(TargetCrash, match=r"runs by itself, and under Dynamo .* raises .*no such"):
        find_graph_breaks(break_models.MODELS["Nothing"](), (_X,))


def test_what_is_no_callable_is_refused():
    with pytest.raises(TypeError, match="expected a callable target, got Tensor"):
        find_graph_breaks(_X)


KEPT = []


@torch.compiler.disable(recursive=False)
def makes_inner(x, keep):
    def inner(h):
        for _ in range(2):
            peak = h.max().item()
            h = h / peak
            print("behind")
        return h

    if keep:
        KEPT.append(inner)
    return inner(x * 2)


@pytest.mark.parametrize(
    ("keep", "told"), [(False, "has no function that could be cut"), (True, "is made anew at every call")]
)
def test_a_function_made_anew_at_every_call_is_told_as_an_obstacle(keep, told):
    findings = find_graph_breaks(makes_inner, (_X, keep))
    KEPT.clear()
    assert [one.text for one in findings.breaks] == ["peak = h.max().item()"]
    assert not findings.summary.complete
    assert any(told in one for one in findings.summary.warnings), findings.summary.warnings


def counted(x, step, marks):
    if len(marks) == 11:
        print("eleven")
    return x + step * len(marks)


@torch.compiler.disable(recursive=False)
def calls_counted(x):
    for step in range(12):
        x = counted(x, step, [step] * step)
    return x


def test_a_function_compiled_too_often_is_looked_into_again():
    plain = find_graph_breaks(lambda x: calls_counted(x * 2), (_X,), look_past=False)
    assert [one.reason_class for one in plain.breaks] == ["compiler_disabled"]
    assert not plain.summary.complete
    findings = find_graph_breaks(lambda x: calls_counted(x * 2), (_X,))
    assert ('print("eleven")', 1) in [(one.text, one.pass_index) for one in findings.breaks]
    assert findings.summary.complete
    assert any("recompile_limit" in one for one in findings.summary.warnings), findings.summary.warnings


def test_further_calls_show_recompiles():
    findings = find_graph_breaks(lambda x: x * 2, (_X,), more_args=[(torch.ones(2, 8, dtype=torch.float64),)])
    assert findings.summary.recompile_count == 1
    assert "dtype" in findings.recompiles[0].reason
    assert len(findings.graphs) == 2


def test_without_looking_past_what_was_left_out_is_admitted():
    findings = find_graph_breaks(break_models.MODELS["ListsInLoop"](), break_models.example_inputs(), look_past=False)
    assert [one.pass_index for one in findings.breaks] == [0]
    assert not findings.summary.complete


def test_records_reach_the_sink_in_order_with_their_phase():
    kept, told = [], []
    findings = record_graph_breaks(
        break_models.MODELS["BreaksInTry"](),
        break_models.example_inputs(),
        sink=kept.append,
        phase="decode",
        progress=told.append,
    )
    assert [type(one) for one in kept] == [type(one) for one in findings.records]
    assert {one.stamp.phase for one in kept} == {"decode"}
    assert isinstance(kept[-1], GraphSummary)
    assert isinstance(kept[0], CapturedGraph) or not findings.graphs
    assert told[0].startswith("graph breaks: 1 so far; looking past them, run 1")


def test_a_bound_method_and_a_compiled_module_are_taken_as_they_are():
    model = break_models.MODELS["Prints"]()
    bound = find_graph_breaks(model.forward, break_models.example_inputs())
    compiled = find_graph_breaks(torch.compile(model, backend="eager"), break_models.example_inputs())
    assert [one.line for one in bound.breaks] == [one.line for one in compiled.breaks] != []


def test_gradients_are_on_only_when_asked_for():
    def asks(x):
        if torch.is_grad_enabled():
            torch._dynamo.graph_break()
        return x * 2

    assert len(find_graph_breaks(asks, (_X,), grad=True).breaks) == 1
    assert find_graph_breaks(asks, (_X,)).breaks == ()
