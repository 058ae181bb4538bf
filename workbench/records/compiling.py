"""Records about bisection: one per trial, and the result with its proof."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from workbench.records.base import Record

Outcome = Literal[
    "ok", "mismatch", "compile_error", "run_error", "crash", "timeout", "killed", "usage_error", "skipped"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureSignature:
    """What makes two failures the same bug.

    Attributes:
        outcome: the kind of failure.
        code: compiler error code or exception type, None when none was printed.
        stage: pass or stage named by the compiler, None when unknown.
        signal: name of the signal, None when the child exited by itself.
        operation: operation the compiler named as the one it failed on, None when it named none.
        detail: its message without numbers, paths and names of instructions; tells failures apart that have no code.
    """

    outcome: Outcome
    code: str | None = None
    stage: str | None = None
    signal: str | None = None
    operation: str | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileTrial(Record):
    """One attempt in its own child process.

    Attributes:
        subject: the items kept, by name, in order.
        subject_digest: content key of the trial cache.
        backend: compiler driver and flags in words.
        simulated: the compiler is a planted fault, not a real one.
        outcome: how it ended.
        signature: of the failure, None when it passed.
        exit_status: of the child, negative for a signal, None when it never exited by itself.
        trial_s: seconds it took; never compared.
        error: last lines of what it printed, without escape sequences.
        cached: answered from the cache, nothing was run.
        phase_of_search: "ladder", "whole", "prefix", "suffix", "ddmin", "confirm", "user".
    """

    kind: ClassVar[str] = "compile_trial"
    volatile: ClassVar[frozenset[str]] = frozenset({"trial_s", "error", "cached", "subject_digest"})
    subject: tuple[str, ...]
    subject_digest: str
    backend: str
    simulated: bool
    outcome: Outcome
    signature: FailureSignature | None
    exit_status: int | None
    trial_s: float
    error: str
    cached: bool
    phase_of_search: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BisectionResult(Record):
    """What a bisection found.

    Attributes:
        question: what was searched, in words.
        level: rung of the ladder: "layers", "modules", "nodes", "lines".
        culprit: smallest failing set known, in order; empty where the whole compiles or is no compile failure.
        minimal: removing any single item makes the failure go away (1-minimal), proven by trials.
        signature: of the failure that was followed.
        trials: trials run on this level; `cached_trials` were answered from the cache.
        trial_seqs: journal seqs of the trials that prove the answer.
        verdict: "found", "not_reproduced", "usage_error", "interrupted", "undecided".
        simulated: the compiler was a planted fault.
        leftover_processes: children still alive after the search; must be 0.
        repro: path of the self-contained script, None when none was written.
        backend: compiler driver and flags in words.
        whole_runs: how often the whole was run; `failing_runs` of them failed in the way that was followed.
        flaky: the same input sometimes failed and sometimes did not; every set was then run several times.
        doubts: items whose removal could not be judged, so that the answer may not be minimal.
        note: what a reader must know beside, "" for nothing.
    """

    kind: ClassVar[str] = "bisection_result"
    volatile: ClassVar[frozenset[str]] = frozenset(
        {"trial_seqs", "repro", "trials", "cached_trials", "whole_runs", "failing_runs"}
    )
    question: str
    level: str
    culprit: tuple[str, ...]
    minimal: bool
    signature: FailureSignature | None
    trials: int
    cached_trials: int
    trial_seqs: tuple[int, ...]
    verdict: Literal["found", "not_reproduced", "usage_error", "interrupted", "undecided"]
    simulated: bool
    leftover_processes: int
    repro: str | None = None
    backend: str = ""
    whole_runs: int = 0
    failing_runs: int = 0
    flaky: bool = False
    doubts: tuple[str, ...] = ()
    note: str = ""
