"""One call from a module to the nodes that fail, down the ladder, with a script that shows it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.workbench.bisection.compilers_of_tests import NEEDS_TWO, compiler
from tests.workbench.bisection.models_of_tests import Stack, stack_input
from workbench.bisection.bisect import bisect_compile, open_bisection
from workbench.bisection.repetition import Repetition
from workbench.bisection.repro import repro_text
from workbench.compilers.command import CommandCompiler
from workbench.errors import PlanError
from workbench.journal import Journal
from workbench.records.compiling import BisectionResult, CompileTrial

_ONCE = Repetition(whole=1, absent=1, confirm=0)
_RULE = "planted:topk+copy_"


def test_a_module_is_narrowed_by_layers_then_nodes() -> None:
    findings = bisect_compile(Stack(), (stack_input(),), compiler=_RULE, repetition=_ONCE, grad=False)
    layers, nodes = findings.results
    assert (layers.level, layers.culprit) == ("layers", ("layers.2", "layers.3"))
    assert (nodes.level, nodes.minimal, nodes.verdict) == ("nodes", True, "found")
    assert [name.split(" = ")[1] for name in nodes.culprit] == ["topk in layers.2", "copy_"]
    assert nodes.simulated
    assert all(trial.simulated for trial in findings.trials)
    assert "SIMULATED" in str(findings).splitlines()[0]
    assert findings.result.leftover_processes == 0


def test_every_level_asks_only_within_the_one_before() -> None:
    findings = bisect_compile(
        Stack(), (stack_input(),), compiler=_RULE, level=("layers", "modules", "nodes"), repetition=_ONCE, grad=False
    )
    assert [result.level for result in findings.results] == ["layers", "modules", "nodes"]
    at_nodes = [trial for trial in findings.trials if " = " in "".join(trial.subject)]
    assert at_nodes[0].cached, "the whole of a level is the answer of the one before"
    assert findings.results[2].trials < 16


def test_the_second_graph_is_looked_at_when_the_first_compiles() -> None:
    def broken(x: Tensor) -> Tensor:
        y = x.sin()
        torch._dynamo.graph_break()
        return y.cos().topk(1).values

    findings = bisect_compile(broken, (torch.ones(2),), compiler="planted:topk", repetition=_ONCE, grad=False)
    assert [name.split(" = ")[1] for name in findings.result.culprit] == ["topk"]
    assert findings.result.note == "graph 2 of 2"


def test_everything_goes_to_the_journal_and_a_second_run_takes_it_from_there(tmp_path: Path) -> None:
    def bisect(journal: Journal) -> BisectionResult:
        return bisect_compile(
            Stack(),
            (stack_input(),),
            compiler=_RULE,
            repetition=_ONCE,
            grad=False,
            sink=journal.append,
            cache=tmp_path / "trials",
        ).result

    with Journal(path=tmp_path / "one.wbj") as first, Journal() as second:
        found, again = bisect(first), bisect(second)
        assert found.trial_seqs
        assert all(first.records[seq].kind == "compile_trial" for seq in found.trial_seqs)
        assert again.trials == 0
        assert first.same_findings(second)
    stored = Journal.open(tmp_path / "one.wbj")
    assert [result.level for result in stored.of_kind(BisectionResult)] == ["layers", "nodes"]
    assert len(stored.of_kind(CompileTrial)) == len(first.of_kind(CompileTrial))


def test_the_script_of_a_planted_fault_shows_it_and_says_simulated(tmp_path: Path) -> None:
    findings = bisect_compile(
        Stack(), (stack_input(),), compiler=_RULE, repetition=_ONCE, grad=False, repro=tmp_path / "out"
    )
    assert findings.result.repro == str(tmp_path / "out" / "repro.py")
    done = subprocess.run([sys.executable, findings.result.repro], capture_output=True, text=True, check=False)
    assert done.returncode == 70
    assert "SIMULATED" in done.stdout
    assert "NCC_ITIN902" in done.stderr
    report = (tmp_path / "out" / "report.md").read_text()
    assert "**SIMULATED" in report
    assert "`repro.py` shows the failure." in report
    assert str(tmp_path) not in report


def test_the_script_of_a_command_writes_the_lines_and_runs_it(tmp_path: Path) -> None:
    cc = compiler(tmp_path, NEEDS_TWO)
    (tmp_path / "graph.txt").write_text("add\nsort\nmul\nslice\n")
    findings = bisect_compile(tmp_path / "graph.txt", compiler=cc, repetition=_ONCE, repro=tmp_path / "out")
    assert findings.result.repro is not None
    done = subprocess.run([sys.executable, findings.result.repro], capture_output=True, text=True, check=False)
    assert (done.returncode, "NCC_ITIN902" in done.stdout) == (70, True)
    text = Path(findings.result.repro).read_text()
    assert "'sort\\nslice\\n'" in text
    assert "import torch" not in text


_FIFTY = """import re
text = open(sys.argv[-1]).read()
if "topk" in text and "def program(" in text:
    print("[ERROR] [NCC_EVRF029] Operation topk is not supported"); sys.exit(70)
"""


def test_a_command_is_given_programs_it_can_run(tmp_path: Path) -> None:
    file = tmp_path / "cc.py"
    file.write_text("import sys\n" + _FIFTY)
    cc = CommandCompiler([sys.executable, "-IS", str(file)])
    findings = bisect_compile(Stack(), (stack_input(),), compiler=cc, repetition=_ONCE, grad=False)
    assert [name.split(" = ")[1] for name in findings.result.culprit] == ["topk in layers.2"]


def test_exact_values_are_unpacked_by_the_script_itself(tmp_path: Path) -> None:
    with open_bisection(
        Stack(), (stack_input(),), compiler="planted:topk", level="nodes", repetition=_ONCE, grad=False
    ) as bisection:
        bisection.run()
        text = repro_text(bisection, exact=True)
    (tmp_path / "script.py").write_text(text + "\nprint(example_inputs(unpack())[0].tolist())\n")
    namespace = tmp_path / "run.py"
    namespace.write_text(f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import script")
    done = subprocess.run([sys.executable, str(namespace)], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("[[")


def test_the_ladder_stops_where_the_program_fails_by_itself(tmp_path: Path) -> None:
    calls = {"count": 0}

    def fails_later(x: Tensor) -> Tensor:
        calls["count"] += 1
        return torch.linalg.inv(x * 1.0)

    # Captured with an input that can be inverted; the values a trial gets cannot.
    with open_bisection(
        fails_later, (torch.eye(2),), compiler="aot_eager", level="nodes", repetition=_ONCE, grad=False
    ) as bisection:
        subject = bisection.subject
        subject.values = None  # type: ignore[attr-defined]
        for value in subject.graph.values.values():  # type: ignore[attr-defined]
            object.__setattr__(value, "mean", 0.0)
            object.__setattr__(value, "std", 0.0)
        findings = bisection.run()
    assert findings.result.verdict == "usage_error"
    assert "it fails without any compiler" in findings.result.note
    assert findings.trials[0].phase_of_search == "ladder"


def test_wrong_levels_and_targets_are_refused(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="expected some of layers, modules, nodes, coarse to fine; found nodes, layers"):
        bisect_compile(Stack(), (stack_input(),), compiler=_RULE, level=("nodes", "layers"))
    with pytest.raises(PlanError, match="expected a path, a callable or a subject, found int"):
        bisect_compile(3, compiler=_RULE)  # type: ignore[arg-type]
    (tmp_path / "graph.txt").write_text("add\n")
    with pytest.raises(PlanError, match="reads program, found a subject of lines"):
        bisect_compile(tmp_path / "graph.txt", compiler="aot_eager")
