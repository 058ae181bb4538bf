"""Every answer of the tour can come out wrong, and then says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from demo.outcome import Answer, judge, summary_lines
from workbench.journal import Journal
from workbench.records import (
    Allocation,
    BisectionResult,
    CheckRow,
    Divergence,
    GraphSummary,
    MemoryPeak,
    Record,
    Stamp,
    StepTiming,
    TensorDiff,
)
from workbench.records.memory import Counts
from workbench.records.tensors import Verdict


def _write(folder: Path, name: str, *records: Record) -> None:
    with Journal(path=folder / f"{name}.wbj") as journal:
        for record in records:
            journal.append(record)


def _step(index: int, phase: str, rel_l2: float = 0.0, verdict: Verdict = "match") -> list[Record]:
    stamp = Stamp(step=index, module=f"layers.{index}", phase=phase)
    return [
        StepTiming(stamp=stamp, side="reference", name="m", step_kind="ffn", step_s=0.1),
        TensorDiff(
            stamp=stamp, name="out", error="accumulated", max_abs=0.0, max_rel=0.0, rel_l2=rel_l2, cosine=1.0,
            worst_index=None, max_steps=0.0, tolerance="exact", verdict=verdict,
        ),
    ]  # fmt: skip


def _memory(device: str, counts: Counts = "tensors") -> list[Record]:
    basis = "computed" if device != "cpu" else "observed"
    made = Allocation(
        block=0, nbytes=64, device=device, dtype="float32", shape=(16,), role="workspace", owner="layers.0", op="mul",
        source="a.py:1 f", source_text="a * b", key=None, born=1, died=None, basis=basis, counts=counts,
    )  # fmt: skip
    peak = MemoryPeak(
        device=device, counts=counts, baseline_bytes=10, peak_bytes_above_baseline=64, peak_event=1, peak_op="mul",
        live_bytes_at_end=64, allocation_count=1, unknown_bytes_at_peak=0,
    )  # fmt: skip
    return [made, peak]


def _bisection(**changes: object) -> BisectionResult:
    fields: dict[str, object] = {
        "question": "q", "level": "nodes", "culprit": ("sort", "gather"), "minimal": True, "signature": None,
        "trials": 9, "cached_trials": 0, "trial_seqs": (), "verdict": "found", "simulated": True,
        "leftover_processes": 0, **changes,
    }  # fmt: skip
    return BisectionResult(**fields)  # type: ignore[arg-type]


def _check(*, passed: bool = True) -> CheckRow:
    return CheckRow(subject="len3", check="logits", passed=passed, worst=0.0, limit=1e-4)


def _summary(*, complete: bool = True) -> GraphSummary:
    return GraphSummary(
        backend="eager",
        graph_count=2,
        break_sites=1,
        recompile_count=0,
        skipped_frames=0,
        warnings=(),
        complete=complete,
    )


_FOUND = Divergence(question="q", first="layers.1", index=1, comparisons=2, steps=2, method="bisection")


@pytest.fixture
def good(tmp_path: Path) -> Path:
    _write(
        tmp_path,
        "tour",
        *_step(0, "prefill"),
        *_step(1, "decode", 0.1, "differ"),
        _FOUND,
        *_memory("cpu"),
        _bisection(),
    )
    _write(tmp_path, "golden", *_step(0, "prefill", 1e-7))
    _write(tmp_path, "verify", _check())
    _write(tmp_path, "dry", *_memory("neuron:0"))
    _write(tmp_path, "graphs", _summary())
    (tmp_path / "junit.xml").write_text('<testsuites tests="3" failures="0" errors="0"/>')
    (tmp_path / "script.py").write_text("with wb.Session(plan) as session:\n    session.step()\nsession.journal")
    return tmp_path


def _failed(folder: Path) -> list[str]:
    return [answer.name for answer in judge(folder) if not answer.held]


def test_a_good_tour_holds(good: Path) -> None:
    assert _failed(good) == [], [answer for answer in judge(good) if not answer.held]


@pytest.mark.parametrize(
    ("name", "records", "failed"),
    [
        (
            "tour",
            [*_step(0, "prefill"), *_step(1, "decode"), _FOUND, *_memory("cpu"), _bisection(minimal=False)],
            "culprit",
        ),
        (
            "tour",
            [*_step(0, "prefill"), *_step(1, "decode"), _FOUND, *_memory("cpu"), _bisection(culprit=("a",))],
            "culprit",
        ),
        ("tour", [*_step(0, "prefill"), *_step(1, "decode"), _FOUND, *_memory("cpu")], "culprit"),
        ("tour", [*_step(0, "prefill"), *_step(1, "decode"), _FOUND, _bisection()], "memory"),
        ("tour", [*_step(0, "prefill"), *_step(1, "decode"), *_memory("cpu"), _bisection()], "first divergence"),
        ("tour", [*_step(0, "prefill"), _FOUND, *_memory("cpu"), _bisection()], "steps"),
        ("golden", _step(0, "prefill", 0.2, "differ"), "golden steps"),
        ("golden", [], "golden steps"),
        ("verify", [_check(), _check(passed=False)], "golden checks"),
        ("verify", [], "golden checks"),
        ("dry", _memory("cpu"), "memory, dry"),
        ("graphs", [_summary(complete=False)], "graph breaks"),
        ("graphs", [], "graph breaks"),
    ],
)
def test_a_part_that_came_out_wrong_fails_alone(good: Path, name: str, records: list[Record], failed: str) -> None:
    (good / f"{name}.wbj").unlink()
    _write(good, name, *records)
    assert _failed(good) == [failed]


@pytest.mark.parametrize(
    "counts", ['tests="3" failures="1" errors="0"', 'tests="3" failures="0" errors="1"', 'tests="0"']
)
def test_a_replay_that_differs_fails(good: Path, counts: str) -> None:
    (good / "junit.xml").write_text(f"<testsuites {counts}/>")
    assert _failed(good) == ["replay"]


def test_missing_and_damaged_files_fail_with_a_reason(good: Path) -> None:
    (good / "verify.wbj").unlink()
    (good / "junit.xml").write_text("<testsuites")
    (good / "script.py").unlink()
    wrong = [answer for answer in judge(good) if not answer.held]
    assert [answer.name for answer in wrong] == ["golden checks", "replay", "script"]
    assert all(answer.text for answer in wrong)


def test_the_summary_tells_failed_from_ok() -> None:
    lines = list(summary_lines((Answer(name="a", held=True, text="x"), Answer(name="b", held=False, text="y"))))
    assert [line.split()[0] for line in lines] == ["ok", "FAILED"]
