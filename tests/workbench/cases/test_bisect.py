"""Cases of class "bisect": the handed ones, others of their kinds, and answers that must fail."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.shared import shared_path
from workbench.cases import bisect
from workbench.cases.base import CaseResult
from workbench.cases.bisect import run_case
from workbench.errors import PlanError

_HEAD = """import os, signal, sys, time
ops = [l.strip() for l in open(sys.argv[1]) if l.strip()]
def fail(code, status=70):
    print("[INTERNAL_ERROR] [%s] something" % code)
    sys.exit(status)
"""
_OPS = ("parameter", "sort", "dot", "scatter", "tanh")


def case(
    folder: Path, body: str, expected: dict, must_not: tuple[str, ...] = (), ops: tuple[str, ...] = _OPS
) -> CaseResult:
    folder = folder / "BIS-90"
    folder.mkdir()
    (folder / "fake_cc.py").write_text(_HEAD + body, encoding="utf-8")
    (folder / "graph.txt").write_text("\n".join(ops) + "\n", encoding="utf-8")
    whole = {"id": "BIS-90", "class": "bisect", "expected": expected, "must_not": list(must_not)}
    (folder / "expected.json").write_text(json.dumps(whole), encoding="utf-8")
    return run_case(folder)


@pytest.fixture(autouse=True)
def low_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bisect, "_TIME_LIMIT_S", 1.5)
    monkeypatch.setattr(bisect, "_MEMORY_LIMIT_BYTES", 96 << 20)


@pytest.mark.parametrize("name", ["BIS-01", "BIS-04"])
def test_handed_case_passes(name: str) -> None:
    result = run_case(shared_path("cases", name))
    assert (result.status, result.differences) == ("passed", ())


_SLIDES = """
if "sort" in ops and "dot" in ops: fail("NCC_ITIN902")
if "dot" in ops: fail("NCC_EVRF029")
"""
_FLAKY = """
note = os.path.join(os.path.dirname(os.path.abspath(__file__)), "count")
number = os.path.getsize(note) if os.path.exists(note) else 0
open(note, "a").write(".")
if "scatter" in ops and number % 3 == 0: fail("NCC_IBIR229")
"""
_SPAWNS = """
import subprocess
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(999)"], start_new_session=True)
if "tanh" in ops: fail("NCC_INLA001")
"""


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (_SLIDES, {"minimal": ["sort", "dot"], "error_code": "NCC_ITIN902", "other_error_codes": ["NCC_EVRF029"]}),
        (_FLAKY, {"minimal": ["scatter"], "flaky": True, "verdict": "flaky", "error_code": "NCC_IBIR229"}),
        (
            "if 'dot' in ops: os.kill(os.getpid(), 11)",
            {"minimal": ["dot"], "signal": "SIGSEGV", "exit_status": 139, "verdict": "crash", "error_code": None},
        ),
        (
            "if 'dot' in ops:\n    kept = [bytearray(b'x') * (16 << 20) for _ in range(999)]",
            {"minimal": ["dot"], "verdict": "out of memory", "leftover_processes": 0},
        ),
        (_SPAWNS, {"minimal": ["tanh"], "leftover_processes": 0, "flaky": False, "max_trials": 7}),
        ("pass", {"verdict": "not_reproduced", "minimal": [], "reproduced": False}),
        ("print('usage: cc FILE'); sys.exit(2)", {"verdict": "usage_error", "minimal": []}),
    ],
    ids=["slides", "flaky", "signal", "memory", "spawns", "passes", "usage"],
)
def test_other_kinds_are_answered(tmp_path: Path, body: str, expected: dict) -> None:
    result = case(tmp_path, body, expected)
    assert (result.status, result.differences) == ("passed", ())


def test_no_operation_may_be_given_as_null_or_as_none_at_all(tmp_path: Path) -> None:
    result = case(tmp_path, "", {"verdict": "did not reproduce", "minimal": None, "different_error_seen": []})
    assert result.differences == ()


def test_a_wrong_expectation_fails_with_both_values(tmp_path: Path) -> None:
    expected = {"minimal": ["dot"], "error_code": "NCC_EVRF029", "exit_status": 1, "flaky": True, "colour": "red"}
    result = case(tmp_path, "if 'sort' in ops: fail('NCC_ITIN902')", expected, ops=("sort", "dot"))
    assert result.status == "failed"
    assert result.differences == (
        "minimal: expected ['dot'], found ('sort',)",
        "error_code: expected 'NCC_EVRF029', found 'NCC_ITIN902'",
        "exit_status: expected 1, found 70",
        "flaky: expected True, found False",
        "colour: a key this version does not know, so it is not answered",
    )


def test_what_must_not_be_said_fails_the_case(tmp_path: Path) -> None:
    words = ("return a single op", "follow NCC_ITIN902", "leave a sleeping child behind", "wait for ever")
    result = case(tmp_path, "if 'sort' in ops: fail('NCC_ITIN902')", {"minimal": ["sort"]}, words, ops=("sort", "dot"))
    assert [line.partition(", but")[0] for line in result.differences] == [f"must not {one}" for one in words[:2]]


def test_a_case_without_expectations_is_refused(tmp_path: Path) -> None:
    (tmp_path / "expected.json").write_text('{"id": "BIS-91", "class": "bisect"}')
    with pytest.raises(PlanError, match="expected an object called `expected`, found None"):
        run_case(tmp_path)
