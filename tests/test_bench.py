"""The benchmark runner: it names its benchmarks, and one that fails is told of and does not hide the others."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from bench.__main__ import main, names, run


def _plant(monkeypatch, name: str, main_function: object) -> None:
    module = ModuleType(f"bench.{name}")
    module.main = main_function  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, f"bench.{name}", module)
    monkeypatch.setattr("bench.__main__.names", lambda: ("good", "bad"))


def test_every_benchmark_has_a_main() -> None:
    assert {"model", "step", "breaks", "bisection"} <= set(names())
    assert not [name for name in names() if name.startswith("_")]


def test_a_failing_benchmark_is_named_and_the_others_run(monkeypatch) -> None:
    said: list[str] = []

    def misses(out: object) -> None:
        assert False, "0.9x is below the target of 4x"  # noqa: B011, PT015 - what a benchmark does

    _plant(monkeypatch, "bad", misses)
    _plant(monkeypatch, "good", lambda out: out("2.0x"))
    assert main([], said.append) == 1
    assert "2.0x" in said
    assert any(
        line.startswith("FAILED: AssertionError: 0.9x is below the target of 4x (test_bench.py:") for line in said
    )
    assert said[-1] == "1 of 2 benchmarks held; FAILED: bad"


def test_benchmarks_that_hold_give_0(monkeypatch) -> None:
    _plant(monkeypatch, "good", lambda out: None)
    assert main(["good"], lambda line: None) == 0
    assert run("good", lambda line: None)


def test_an_unknown_name_is_wrong_use(capsys) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["speed"])
    assert ended.value.code == 2
    assert "expected names among" in capsys.readouterr().err
