"""A failure is narrowed by real child processes, followed by its signature, and taken up again after a kill."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

from tests.workbench.bisection.compilers_of_tests import NEEDS_TWO, compiler, counted, runs
from workbench.bisection.compile_bisection import CompileBisection
from workbench.bisection.findings import BisectionFindings
from workbench.bisection.repetition import Repetition
from workbench.bisection.subjects.lines import LineSubject
from workbench.bisection.trial_cache import TrialCache
from workbench.compilers.command import CommandCompiler
from workbench.errors import JournalError, PlanError, StepError
from workbench.journal import Journal
from workbench.records.compiling import BisectionResult, CompileTrial

_OPS = ("parameter", "add", "sort", "multiply", "dot", "slice", "tanh", "reduce")
_ONCE = Repetition(whole=1, absent=1, confirm=0)


def bisect(
    cc: CommandCompiler,
    ops: Sequence[str] = _OPS,
    *,
    cache: TrialCache | Path | None = None,
    repetition: Repetition = _ONCE,
    limit_s: float = 30.0,
) -> BisectionFindings:
    with CompileBisection(LineSubject(ops), cc, cache=cache, repetition=repetition, time_limit_s=limit_s) as bisection:
        findings = bisection.run()
    assert findings.result.leftover_processes == 0
    return findings


def test_two_lines_needed_together_are_found(tmp_path: Path) -> None:
    result = bisect(compiler(tmp_path, NEEDS_TWO)).result
    assert (result.verdict, result.culprit, result.minimal) == ("found", ("sort", "slice"), True)
    assert result.signature is not None
    assert (result.signature.code, result.signature.stage) == ("NCC_ITIN902", "TensorInitialization")
    assert not result.simulated


def test_the_search_does_not_slide_to_another_bug(tmp_path: Path) -> None:
    other = NEEDS_TWO + "if 'sort' in ops or 'dot' in ops:\n    print('[ERROR] [NCC_EVRF029] no'); sys.exit(70)\n"
    findings = bisect(compiler(tmp_path, other))
    assert findings.result.culprit == ("sort", "slice")
    assert findings.result.signature is not None
    assert findings.result.signature.code == "NCC_ITIN902"
    assert "another failure came in" in findings.result.note
    assert "NCC_EVRF029" in findings.result.note


def test_a_crash_and_a_kill_are_narrowed_by_their_signal(tmp_path: Path) -> None:
    for name in ("SIGSEGV", "SIGKILL", "SIGABRT"):
        cc = compiler(tmp_path, f"if 'dot' in ops:\n    os.kill(os.getpid(), signal.{name})\n", f"{name}.py")
        result = bisect(cc).result
        assert result.culprit == ("dot",)
        assert result.signature is not None
        assert result.signature.signal == name


def test_a_hang_is_narrowed_within_its_limit(tmp_path: Path) -> None:
    cc = compiler(tmp_path, "if 'dot' in ops:\n    time.sleep(3600)\n")
    findings = bisect(cc, ("add", "dot"), limit_s=1.0)
    assert findings.result.culprit == ("dot",)
    assert {trial.outcome for trial in findings.trials} == {"timeout", "ok"}


def test_a_failure_that_comes_and_goes_is_told_and_found(tmp_path: Path) -> None:
    # Every second run that has the line fails: the count lies beside the compiler, so it outlives the trial.
    flaky = f"""
if "dot" in ops:
    count = {str(tmp_path / "count")!r}
    number = len(open(count).read()) if os.path.exists(count) else 0
    open(count, "a").write(".")
    if number % 2:
        print("[INTERNAL_ERROR] [NCC_IBIR229] allocation failed"); sys.exit(70)
"""
    result = bisect(compiler(tmp_path, flaky), repetition=Repetition(whole=2)).result
    assert result.flaky
    assert (result.culprit, result.verdict, result.minimal) == (("dot",), "found", True)
    assert 0 < result.failing_runs < result.whole_runs


def test_a_failure_that_shows_itself_flaky_at_the_end_is_searched_again(tmp_path: Path) -> None:
    # Fails the first two times, then every third time: the whole looks steady.
    late = f"""
if "dot" in ops:
    count = {str(tmp_path / "count")!r}
    number = len(open(count).read()) if os.path.exists(count) else 0
    open(count, "a").write(".")
    if number < 2 or number % 3 == 0:
        print("[INTERNAL_ERROR] [NCC_IBIR229] allocation failed"); sys.exit(70)
"""
    result = bisect(compiler(tmp_path, late), repetition=Repetition(whole=2, confirm=4)).result
    assert (result.culprit, result.flaky) == (("dot",), True)


def test_a_whole_that_compiles_is_not_reproduced(tmp_path: Path) -> None:
    findings = bisect(compiler(tmp_path, "print('Compiler status PASS')"), repetition=Repetition())
    assert (findings.result.verdict, findings.result.minimal) == ("not_reproduced", False)
    assert (len(findings.trials), findings.result.culprit) == (2, ())
    assert "the whole compiles" in str(findings)


def test_wrong_use_is_refused_after_one_trial(tmp_path: Path) -> None:
    cc = compiler(tmp_path, "print('usage: cc FILE'); sys.exit(2)")
    findings = bisect(cc, repetition=Repetition())
    assert (findings.result.verdict, len(findings.trials)) == ("usage_error", 1)


def test_a_compiler_that_fails_on_nothing_is_at_fault_itself(tmp_path: Path) -> None:
    result = bisect(compiler(tmp_path, "print('[NCC_IDRV077] folder'); sys.exit(70)")).result
    assert (result.verdict, result.culprit) == ("usage_error", ())
    assert "fails on nothing at all" in result.note


def test_no_set_is_compiled_twice_and_a_second_search_compiles_nothing(tmp_path: Path) -> None:
    cc = compiler(tmp_path, counted(tmp_path, NEEDS_TWO))
    first = bisect(cc, cache=tmp_path / "trials")
    compiled = runs(tmp_path)
    assert len(compiled) == len(set(compiled)) == first.result.trials
    second = bisect(cc, cache=tmp_path / "trials")
    assert runs(tmp_path) == compiled
    assert (second.result.trials, second.result.cached_trials) == (0, first.result.trials)
    assert second.result.culprit == first.result.culprit


def test_another_compiler_is_asked_again(tmp_path: Path) -> None:
    bisect(compiler(tmp_path, counted(tmp_path, NEEDS_TWO)), cache=tmp_path / "trials")
    before = len(runs(tmp_path))
    bisect(compiler(tmp_path, counted(tmp_path, NEEDS_TWO) + "# another version\n"), cache=tmp_path / "trials")
    assert len(runs(tmp_path)) == 2 * before


def test_a_pass_at_a_longer_limit_stands_and_a_timeout_at_a_shorter_one_does_not(tmp_path: Path) -> None:
    cc = compiler(tmp_path, counted(tmp_path, "if 'dot' in ops:\n    time.sleep(0.6)\n"))
    first = bisect(cc, ("dot",), cache=tmp_path / "trials", limit_s=0.2)
    assert first.result.verdict == "found"
    second = bisect(cc, ("dot",), cache=tmp_path / "trials", limit_s=30.0)
    assert second.result.verdict == "not_reproduced"


def test_trials_go_to_a_journal_as_they_end(tmp_path: Path) -> None:
    with Journal(path=tmp_path / "run.wbj") as journal:
        with CompileBisection(
            LineSubject(_OPS), compiler(tmp_path, NEEDS_TWO), sink=journal.append, repetition=_ONCE
        ) as bisection:
            bisection.step()
            seen = Journal.open(tmp_path / "run.wbj").of_kind(CompileTrial)
            assert [trial.phase_of_search for trial in seen] == ["whole"]
            result = bisection.run().result
        journal.append(result)
    again = Journal.open(tmp_path / "run.wbj")
    assert again.of_kind(BisectionResult)[0].culprit == ("sort", "slice")
    proof = [trial for trial in again.of_kind(CompileTrial) if trial.stamp.seq in result.trial_seqs]
    assert {trial.subject for trial in proof} == {("sort", "slice"), ("sort",), ("slice",)}


def test_progress_tells_a_line_a_trial(tmp_path: Path) -> None:
    lines: list[str] = []
    with CompileBisection(
        LineSubject(_OPS), compiler(tmp_path, NEEDS_TWO), progress=lines.append, repetition=_ONCE
    ) as bisection:
        bisection.run()
    assert lines[0].startswith("trial 1 (whole): 8 items: compile error: NCC_ITIN902 in TensorInitialization (")
    assert len(lines) == len(bisection.trials)


# By hand


def test_marks_skips_and_undo_work_as_in_git_bisect(tmp_path: Path) -> None:
    cc = compiler(tmp_path, counted(tmp_path, NEEDS_TWO))
    with CompileBisection(LineSubject(_OPS), cc, repetition=_ONCE) as bisection:
        bisection.step()
        second = bisection.proposal
        assert second is not None
        bisection.mark("fails_same")
        assert bisection.smallest() == second.kept
        bisection.undo()
        assert bisection.proposal == second
        bisection.skip()
        assert bisection.proposal != second
        bisection.undo()
        assert bisection.run().result.culprit == ("sort", "slice")
        assert [trial.outcome for trial in bisection.trials if trial.phase_of_search == "user"] == [
            "compile_error", "skipped",
        ]  # fmt: skip
        with pytest.raises(StepError, match="mark: the search is over"):
            bisection.mark("passes")


def test_stop_returns_the_smallest_so_far(tmp_path: Path) -> None:
    with CompileBisection(LineSubject(_OPS), compiler(tmp_path, NEEDS_TWO), repetition=_ONCE) as bisection:
        for _ in range(4):
            bisection.step()
        findings = bisection.stop()
    assert findings.result.verdict == "undecided"
    assert {"sort", "slice"} <= set(findings.result.culprit)
    assert not findings.result.minimal


def test_an_interrupt_ends_the_running_trial_and_keeps_what_there_is(tmp_path: Path) -> None:
    def interrupt(line: str) -> None:
        if line.startswith("trial 3 "):
            raise KeyboardInterrupt

    with CompileBisection(
        LineSubject(_OPS), compiler(tmp_path, NEEDS_TWO), repetition=_ONCE, progress=interrupt
    ) as bisection:
        findings = bisection.run()
    assert (findings.result.verdict, len(findings.trials)) == ("interrupted", 3)
    assert findings.result.leftover_processes == 0


def test_nothing_can_be_marked_the_same_before_a_failure_was_seen(tmp_path: Path) -> None:
    cc = compiler(tmp_path, NEEDS_TWO)
    with (
        CompileBisection(LineSubject(_OPS), cc) as bisection,
        pytest.raises(StepError, match="no failure has been seen yet"),
    ):
        bisection.mark("fails_same")


# A real kill


_DRIVER = """
import sys
from pathlib import Path
from workbench.bisection.compile_bisection import CompileBisection
from workbench.bisection.repetition import Repetition
from workbench.bisection.subjects.lines import LineSubject
from workbench.compilers.command import CommandCompiler
argv, ops, cache = {argv!r}, {ops!r}, {cache!r}
with CompileBisection(LineSubject(ops), CommandCompiler(argv), cache=cache,
                      repetition=Repetition(whole=1, absent=1, confirm=0), time_limit_s=60) as bisection:
    bisection.run()
"""


def test_a_bisection_killed_with_signal_9_goes_on_where_it_stood(tmp_path: Path) -> None:
    ops = [f"op{number}" for number in range(40)] + ["sort", "slice"]
    # The sixth trial waits for ever, but only in the first bisection.
    wait = (
        f"if sum(1 for _ in open({str(tmp_path / 'runs')!r})) == 6 and not os.path.exists({str(tmp_path / 'go')!r}):\n"
    )
    body = counted(tmp_path, wait + "    time.sleep(3600)\n" + NEEDS_TWO)
    compiler(tmp_path, body)
    argv, cache = [sys.executable, "-IS", str(tmp_path / "cc.py")], tmp_path / "trials"
    driver = subprocess.Popen([sys.executable, "-c", _DRIVER.format(argv=argv, ops=ops, cache=str(cache))])
    try:
        deadline = time.monotonic() + 60
        while len(runs(tmp_path)) < 6 and time.monotonic() < deadline:
            threading.Event().wait(0.02)
        below = psutil.Process(driver.pid).children(recursive=True)
    finally:
        driver.kill()
        driver.wait()
    assert psutil.wait_procs(below, timeout=10)[1] == []
    assert len(cache.read_text().splitlines()) == 5
    with open(cache, "a", encoding="utf-8") as file:
        file.write('{"kind": "compile_tr')  # what a kill in the middle of a write leaves
    (tmp_path / "go").touch()
    findings = bisect(CommandCompiler(argv), ops, cache=cache)
    assert findings.result.culprit == ("sort", "slice")
    assert [trial.cached for trial in findings.trials[:6]] == [True] * 5 + [False]
    first, rest = runs(tmp_path)[:6], runs(tmp_path)[6:]
    assert not set(first[:5]) & set(rest), "a finished trial was run again"
    assert all(json.loads(line)["kind"] == "compile_trial" for line in cache.read_text().splitlines())


def test_a_journal_of_before_answers_too_and_is_not_written_to(tmp_path: Path) -> None:
    cc = compiler(tmp_path, counted(tmp_path, NEEDS_TWO))
    with (
        Journal(path=tmp_path / "run.wbj") as journal,
        CompileBisection(LineSubject(_OPS), cc, sink=journal.append, repetition=_ONCE) as bisection,
    ):
        bisection.run()
    before = (tmp_path / "run.wbj").read_bytes(), len(runs(tmp_path))
    assert bisect(cc, cache=tmp_path / "run.wbj").result.trials == 0
    assert ((tmp_path / "run.wbj").read_bytes(), len(runs(tmp_path))) == before


# Errors


def test_errors_say_what_was_found_and_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="expected a program on the path, found none called 'no-such-cc'"):
        CompileBisection(LineSubject(_OPS), CommandCompiler(["no-such-cc"]))
    with pytest.raises(PlanError, match="expected 'lines' for a graph file, found 'nodes'"):
        CompileBisection(LineSubject(_OPS), compiler(tmp_path, ""), levels=("nodes",))
    (tmp_path / "empty.txt").write_text("\n\n")
    with pytest.raises(PlanError, match="expected at least one line to narrow, found none"):
        LineSubject.read(tmp_path / "empty.txt")
    with pytest.raises(PlanError, match="cannot read the graph file"):
        LineSubject.read(tmp_path / "absent.txt")
    (tmp_path / "other").write_text("hello\n")
    with pytest.raises(JournalError, match="other:1: expected a JSON object, found 'hello'"):
        TrialCache(tmp_path / "other")
    (tmp_path / "other").write_text('{"kind": "note"}\n')
    with pytest.raises(JournalError, match="expected a trial of a bisection"):
        TrialCache(tmp_path / "other")
