"""Answers cases of class "bisect": a stand-in compiler narrowed on the lines of its graph file.

General rules, since a case says only what must come out: the compiler is run as `fake_cc.py FILE`, from a copy of the
case's folder, every set is run until its answer is credible, and every key of `expected` is compared by meaning. A key
nobody can answer fails the case.
"""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from workbench.bisection.compile_bisection import CompileBisection
from workbench.bisection.findings import BisectionFindings
from workbench.bisection.repetition import Repetition
from workbench.bisection.signatures import signal_name
from workbench.bisection.subjects.lines import LineSubject
from workbench.cases.base import CaseResult, read_expected
from workbench.compilers.command import CommandCompiler
from workbench.errors import PlanError

_TIME_LIMIT_S = 4.0
_MEMORY_LIMIT_BYTES = 1 << 30
_LIMIT_KEYS = ("time_limit_s", "timeout_s", "limit_s")
# These compilers end within milliseconds, so that doubt is cheap to remove.
_REPETITION = Repetition(whole=8, absent=24, passes=2, confirm=6)

# What a case may call an outcome -> what we call it.
_OUTCOMES: dict[str, tuple[str, ...]] = {
    "timeout": ("timeout", "hang", "hangs", "timed_out"),
    "crash": ("crash", "crashed", "signal", "segfault"),
    "killed": ("killed", "memory", "out_of_memory", "oom", "memory_limit"),
    "compile_error": ("compile_error", "failed", "fails", "error"),
    "usage_error": ("usage_error", "refused", "setup_error", "not_a_graph_failure"),
    "not_reproduced": ("not_reproduced", "no_failure", "passes", "ok", "passed", "did_not_reproduce"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answers:
    """What the bisection says, under the names cases use.

    Attributes:
        findings: everything.
        operations: lines of the answer.
        outcome: in our word.
        error_code, exit_status, signal: of the failure that was followed.
        sets_tried: different sets that were compiled; repeated runs of one set count once.
    """

    findings: BisectionFindings
    operations: tuple[str, ...]
    outcome: str
    error_code: str | None
    exit_status: int | None
    signal: str | None
    sets_tried: int

    def to_json(self) -> dict[str, object]:
        """Return the answers as plain values."""
        result = self.findings.result
        return {
            "verdict": self.outcome,
            "minimal": list(self.operations),
            "is_minimal": result.minimal,
            "error_code": self.error_code,
            "exit_status": self.exit_status,
            "signal": self.signal,
            "stage": None if result.signature is None else result.signature.stage,
            "flaky": result.flaky,
            "failing_runs": result.failing_runs,
            "whole_runs": result.whole_runs,
            "trials": self.sets_tried,
            "runs": result.trials,
            "leftover_processes": result.leftover_processes,
            "note": result.note,
        }


def run_case(folder: Path) -> CaseResult:
    """Return the comparison of one case folder."""
    expected = read_expected(folder)
    body = expected.get("expected")
    if not isinstance(body, Mapping):
        raise PlanError(f"{folder.name}: expected an object called `expected`, found {body!r}")
    wanted = cast("Mapping[str, object]", body)
    answers = _bisect(folder, wanted)
    differences = [line for key, value in wanted.items() for line in _compare(key, value, answers)]
    must_not = cast("Sequence[object]", expected.get("must_not", ()))
    differences += [line for words in must_not for line in _forbidden(str(words), answers)]
    return CaseResult(
        case_id=str(expected["id"]),
        case_class=str(expected["class"]),
        status="failed" if differences else "passed",
        differences=tuple(differences),
        answers=answers.to_json(),
    )


def _bisect(folder: Path, wanted: Mapping[str, object]) -> _Answers:
    subject = LineSubject.read(folder / "graph.txt")
    limit_s = next((float(cast("float", wanted[key])) for key in _LIMIT_KEYS if key in wanted), _TIME_LIMIT_S)
    with tempfile.TemporaryDirectory(prefix="workbench-case-") as scratch:
        # A copy, since a compiler may leave files beside itself; kept for the whole search, since it may count there.
        own = Path(scratch, "case")
        shutil.copytree(folder, own, copy_function=shutil.copyfile)
        own.chmod(0o755)
        compiler = CommandCompiler([sys.executable, str(own / "fake_cc.py")])
        with CompileBisection(
            subject,
            compiler,
            time_limit_s=limit_s,
            memory_limit_bytes=_MEMORY_LIMIT_BYTES,
            repetition=_REPETITION,
        ) as bisection:
            findings = bisection.run()
    return _answers(findings)


def _answers(findings: BisectionFindings) -> _Answers:
    result, signature = findings.result, findings.result.signature
    failing = [trial for trial in findings.trials if signature is not None and trial.signature == signature]
    outcome = result.verdict if signature is None or result.verdict == "usage_error" else signature.outcome
    code = None if signature is None else signature.code
    return _Answers(
        findings=findings,
        operations=result.culprit if result.verdict == "found" else (),
        outcome=outcome,
        error_code=code,
        exit_status=failing[0].exit_status if failing else 0 if outcome == "not_reproduced" else None,
        signal=None if signature is None else signature.signal,
        sets_tried=len({trial.subject_digest for trial in findings.trials}),
    )


def _compare(key: str, value: object, answers: _Answers) -> list[str]:
    if key in _LIMIT_KEYS:
        return []
    if key not in _ANSWERED:
        return [f"{key}: a key this version does not know, so it is not answered"]
    found, same = _ANSWERED[key]
    came = found(answers)
    return [] if same(value, came) else [f"{key}: expected {value!r}, found {came!r}"]


def _same_set(wanted: object, came: object) -> bool:
    if wanted is None:
        return not came
    wanted = [wanted] if isinstance(wanted, str) else wanted
    return isinstance(wanted, (list, tuple)) and Counter(map(str, wanted)) == Counter(cast("Sequence[str]", came))


def _equal(wanted: object, came: object) -> bool:
    return wanted == came and isinstance(wanted, bool) == isinstance(came, bool)


def _same_code(wanted: object, came: object) -> bool:
    if wanted is None or came is None:
        return wanted is came
    return str(wanted).strip("[]").removeprefix("NCC_") == str(came).removeprefix("NCC_")


def _same_status(wanted: object, came: object) -> bool:
    # -11 and 139 are one and the same: the second is how a shell tells the first.
    if isinstance(wanted, int) and isinstance(came, int):
        return wanted == came or (min(wanted, came) < 0 and abs(min(wanted, came)) + 128 == max(wanted, came))
    return wanted is came


def _same_signal(wanted: object, came: object) -> bool:
    if wanted is None or came is None:
        return wanted is came
    named = signal_name(-abs(wanted)) if isinstance(wanted, int) else str(wanted).upper()
    return named is not None and named.removeprefix("SIG") == str(came).removeprefix("SIG")


def _same_outcome(wanted: object, came: object) -> bool:
    findings, outcome = cast("tuple[BisectionFindings, str]", came)
    word = str(wanted).strip().lower().replace(" ", "_").replace("-", "_")
    if word == "flaky":
        return findings.result.flaky
    if word in ("found", "undecided", "interrupted"):
        return findings.result.verdict == word
    return word in _OUTCOMES.get(outcome, (outcome,))


def _at_most(wanted: object, came: object) -> bool:
    return isinstance(wanted, (int, float)) and cast("int", came) <= wanted


def _codes_of_others(answers: _Answers) -> tuple[str, ...]:
    followed = answers.error_code
    codes = {trial.signature.code for trial in answers.findings.trials if trial.signature is not None}
    return tuple(sorted(code for code in codes if code is not None and code != followed))


_Found = Callable[[_Answers], object]
_Same = Callable[[object, object], bool]
_ANSWERED: dict[str, tuple[_Found, _Same]] = {
    "minimal": (lambda answers: answers.operations, _same_set),
    "culprit": (lambda answers: answers.operations, _same_set),
    "minimal_size": (lambda answers: len(answers.operations), _equal),
    "is_minimal": (lambda answers: answers.findings.result.minimal, _equal),
    "error_code": (lambda answers: answers.error_code, _same_code),
    "error_codes": (lambda answers: [code for code in [answers.error_code] if code is not None], _same_set),
    "other_error_codes": (_codes_of_others, _same_set),
    "exit_status": (lambda answers: answers.exit_status, _same_status),
    "signal": (lambda answers: answers.signal, _same_signal),
    "verdict": (lambda answers: (answers.findings, answers.outcome), _same_outcome),
    "outcome": (lambda answers: (answers.findings, answers.outcome), _same_outcome),
    "leftover_processes": (lambda answers: answers.findings.result.leftover_processes, _equal),
    "flaky": (lambda answers: answers.findings.result.flaky, _equal),
    "reproduced": (lambda answers: answers.findings.result.verdict == "found", _equal),
    "trials": (lambda answers: answers.sets_tried, _at_most),
    "max_trials": (lambda answers: answers.sets_tried, _at_most),
    "trials_at_most": (lambda answers: answers.sets_tried, _at_most),
    "trials_max": (lambda answers: answers.sets_tried, _at_most),
    "compiles_at_most": (lambda answers: answers.sets_tried, _at_most),
    "max_compiles": (lambda answers: answers.sets_tried, _at_most),
    "other_error_code": (_codes_of_others, _same_set),
    "different_error_code": (_codes_of_others, _same_set),
    "different_error_seen": (_codes_of_others, _same_set),
    "minimal_ops": (lambda answers: answers.operations, _same_set),
    "ops": (lambda answers: answers.operations, _same_set),
    "size": (lambda answers: len(answers.operations), _equal),
    "failing_pass": (lambda answers: answers.to_json()["stage"], _equal),
    "stage": (lambda answers: answers.to_json()["stage"], _equal),
}


def _forbidden(words: str, answers: _Answers) -> list[str]:
    """Return a line where the answer is one that `words` rules out.

    Words that speak of a number of operations, of a code or of processes are judged; of waiting, ours has an end. What
    else a case rules out is another answer than the expected one, and was compared with that.
    """
    said = False
    lowered = words.lower()
    count = re.search(r"\b(a single|one|two|three|\d+) ops?\b", lowered)
    if count and lowered.startswith(("return", "report", "name", "blame", "give", "say")):
        number = {"a single": 1, "one": 1, "two": 2, "three": 3}.get(count[1]) or int(count[1])
        said = len(answers.operations) == number
    code = re.search(r"\bNCC_[A-Z]+\d+\b", words)
    if code and lowered.startswith(("return", "report", "name", "follow", "slide", "switch", "answer")):
        said = said or answers.error_code == code[0]
    if re.search(r"\b(child|process|children)\b", lowered) and re.search(r"\b(leave|left|leak)", lowered):
        said = said or answers.findings.result.leftover_processes > 0
    return [f"must not {words}, but does: {answers.to_json()}"] if said else []
