"""The planted compiler fails where its rules say, in neuronx-cc's form, and always says that it is simulated."""

from __future__ import annotations

from pathlib import Path

import pytest

from workbench.bisection.subjects.lines import LineSubject
from workbench.compilers.base import CompileOutcome, compile_once
from workbench.compilers.planted import EXIT_STATUS, FaultRule, PlantedCompiler, strike_text
from workbench.errors import PlanError


def compiled(rules: str, *operations: str, folder: Path, limit_s: float = 60.0) -> CompileOutcome:
    subject = LineSubject(operations)
    written = subject.write(range(len(subject.items)), folder)
    return compile_once(PlantedCompiler(rules), written, time_limit_s=limit_s)


def test_it_fails_only_where_every_operation_is_there(tmp_path: Path) -> None:
    failed = compiled("sort+dynamic-slice", "add", "sort", "dynamic_slice", folder=tmp_path)
    assert (failed.outcome, failed.exit_status) == ("compile_error", EXIT_STATUS)
    assert failed.signature is not None
    assert (failed.signature.code, failed.signature.stage) == ("NCC_ITIN902", "TensorInitialization")
    assert compiled("sort+dynamic-slice", "add", "sort", folder=tmp_path).outcome == "ok"


def test_kinds_end_as_the_real_thing_would(tmp_path: Path) -> None:
    rules = "crashes=topk;exhausts=cat;hangs=scatter;fails=fft@NCC_EVRF004"
    crashed = compiled(rules, "topk", folder=tmp_path)
    assert (crashed.outcome, crashed.exit_status) == ("crash", -11)
    killed = compiled(rules, "cat", folder=tmp_path)
    assert killed.signature is not None
    assert (killed.outcome, killed.signature.code, killed.signature.signal) == ("killed", "F137", "SIGKILL")
    hung = compiled(rules, "scatter", folder=tmp_path, limit_s=0.3)
    assert (hung.outcome, hung.survivors) == ("timeout", 0)
    coded = compiled(rules, "aten.fft.default", folder=tmp_path)
    assert coded.signature is not None
    assert coded.signature.code == "NCC_EVRF004"


def test_everything_says_that_it_is_simulated(tmp_path: Path) -> None:
    compiler = PlantedCompiler("sort")
    assert compiler.simulated
    assert "SIMULATED" in compiler.name
    assert "SIMULATED" in compiled("sort", "sort", folder=tmp_path).error
    for kind in ("fails", "exhausts", "wavers"):
        assert "SIMULATED" in strike_text(FaultRule(kind=kind, operations=("sort",)))


def test_internal_and_user_errors_have_their_prefixes() -> None:
    assert strike_text(FaultRule(kind="fails", operations=("a",))).startswith("[INTERNAL_ERROR] [NCC_ITIN902] Tensor")
    assert strike_text(FaultRule(kind="fails", operations=("a",), code="NCC_EVRF029")).startswith(
        "[ERROR] [NCC_EVRF029]"
    )


@pytest.mark.parametrize(
    ("rules", "text"),
    [
        ("", "expected at least one rule such as planted:sort\\+gather, found none"),
        ("hang=sort", "found 'hang' in 'hang=sort'. Did you mean hangs=sort\\?"),
        ("fails=sort+", "expected operations joined by '\\+', found 'sort\\+'"),
        ("sort@E1", "expected a code such as NCC_EVRF029 behind '@', found 'E1'"),
    ],
)
def test_text_that_is_no_rule_is_refused(rules: str, text: str) -> None:
    with pytest.raises(PlanError, match=text):
        PlantedCompiler(rules)


def test_a_compiler_that_wavers_does_both(tmp_path: Path) -> None:
    # Sixty-four runs all alike come once in 2**63.
    seen: set[str] = set()
    for _ in range(64):
        seen.add(compiled("wavers=sort", "sort", folder=tmp_path).outcome)
        if len(seen) == 2:
            break
    assert seen == {"ok", "compile_error"}
