"""Turns trials into answers for the search: which failure is followed, and how many runs an answer takes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from workbench.bisection.repetition import Repetition
from workbench.bisection.search import Kept, Proposal, Verdict
from workbench.bisection.signatures import MEMORY_LIMIT, is_same_failure
from workbench.records.compiling import CompileTrial, FailureSignature

RunTrial = Callable[[Kept, str], CompileTrial]


class Oracle:
    """Answers proposals by trials.

    Args:
        run: runs one trial of a set in a phase of the search.
        repetition: how often.
        followed: the failure to follow; the most frequent one of the whole when None.

    Attributes:
        followed: the failure that is followed, None before one was seen.
        passes_needed: runs without failure before a set counts as passing.
        flaky: one set was seen to fail and not to fail.
        whole_runs, failing_runs: of the whole.
    """

    def __init__(self, run: RunTrial, repetition: Repetition, followed: FailureSignature | None = None) -> None:
        self.followed = followed
        self.passes_needed = repetition.passes
        self.flaky = False
        self.whole_runs = self.failing_runs = 0
        self._run, self._repetition = run, repetition
        self._runs: dict[Kept, list[CompileTrial]] = {}

    def __call__(self, proposal: Proposal) -> Verdict:
        """Run the trials one proposal takes and return its verdict."""
        if proposal.phase == "whole" and self.whole_runs == 0:
            return self._look_at_whole(proposal.kept)
        return self._verdict(proposal.kept, proposal.phase, self.passes_needed)

    @property
    def others(self) -> Counter[FailureSignature]:
        """Other failures seen on the way, with the number of trials; they were not followed."""
        trials = [trial for runs in self._runs.values() for trial in runs]
        return Counter(
            trial.signature
            for trial in trials
            if trial.signature is not None and trial.phase_of_search != "user" and self.judge(trial) == "other_failure"
        )

    def trials_of(self, kept: Kept) -> tuple[CompileTrial, ...]:
        """Return the trials that were run of a set."""
        return tuple(self._runs.get(kept, ()))

    def put(self, kept: Kept, trial: CompileTrial) -> None:
        """Take an answer given by hand; it counts whatever was or will be run."""
        self._runs.setdefault(kept, []).append(trial)

    def forget(self, kept: Kept) -> None:
        """Drop the answers given by hand for a set."""
        self._runs[kept] = [trial for trial in self._runs.get(kept, ()) if trial.phase_of_search != "user"]

    def judge(self, trial: CompileTrial) -> Verdict:
        """Return what one trial says."""
        if trial.outcome == "ok":
            return "passes"
        if trial.signature is None:
            return "unresolved"
        same = self.followed is not None and is_same_failure(self.followed, trial.signature)
        return "fails_same" if same else "other_failure"

    def can_answer(self, proposal: Proposal, known: list[CompileTrial]) -> bool:
        """Say whether a proposal can be answered from trials known already, in part those run here before."""
        runs = [*self._runs.get(proposal.kept, ()), *known]
        if any(trial.phase_of_search == "user" for trial in runs):
            return True
        if proposal.phase == "whole" and self.whole_runs == 0:
            ended = any(trial.outcome in ("timeout", "usage_error") for trial in runs)
            wanted = self._repetition.whole
            if len(runs) >= wanted and all(trial.outcome == "ok" for trial in runs):
                wanted = max(wanted, self._repetition.absent)
            return ended or len(runs) >= wanted
        return len(runs) >= self.passes_needed or any(self.judge(trial) == "fails_same" for trial in runs)

    def holds(self, kept: Kept) -> bool:
        """Run the answer of the search again and say whether it still stands.

        False when it did not fail every time and this was not known: the search must then be run again, since sets that
        were taken to pass may not.
        """
        runs = self._repetition.confirm
        if self.flaky or runs == 0 or (self.followed is not None and _is_by_limit(self.followed)):
            return True
        for _ in range(runs):
            self._take(kept, "confirm")
        if all(self.judge(trial) == "fails_same" for trial in self._runs[kept]):
            return True
        self._expect_flaky(kept, "confirm")
        return False

    def _look_at_whole(self, kept: Kept) -> Verdict:
        goal = self._repetition.whole
        while len(self._runs.get(kept, ())) < goal:
            trial = self._take(kept, "whole")
            seen = self._runs[kept]
            if trial.outcome == "usage_error" or (trial.signature is not None and _is_by_limit(trial.signature)):
                break
            if len(seen) == goal and all(one.outcome == "ok" for one in seen):
                goal = max(goal, self._repetition.absent)
        trials = self._runs[kept]
        failures = [trial.signature for trial in trials if trial.signature is not None]
        if self.followed is None and failures:
            self.followed = _most_frequent(failures)
        if failures and any(self.judge(trial) != "fails_same" for trial in trials):
            self._expect_flaky(kept, "whole")
        self.whole_runs = len(self._runs[kept])
        self.failing_runs = sum(self.judge(trial) == "fails_same" for trial in self._runs[kept])
        return _best([self.judge(trial) for trial in self._runs[kept]])

    def _expect_flaky(self, kept: Kept, phase: str) -> None:
        while len(self._runs[kept]) < self._repetition.estimate:
            self._take(kept, phase)
        failing = sum(self.judge(trial) == "fails_same" for trial in self._runs[kept])
        if not failing:
            return
        self.flaky = True
        self.passes_needed = self._repetition.passes_at(failing / len(self._runs[kept]))

    def _verdict(self, kept: Kept, phase: str, needed: int) -> Verdict:
        by_hand = [trial for trial in self._runs.get(kept, ()) if trial.phase_of_search == "user"]
        if by_hand:
            return self.judge(by_hand[-1])
        verdicts: list[Verdict] = [self.judge(trial) for trial in self._runs.get(kept, ())]
        while "fails_same" not in verdicts and len(verdicts) < needed:
            trial = self._take(kept, phase)
            verdicts.append(self.judge(trial))
            if verdicts[-1] == "unresolved" or trial.phase_of_search == "user":
                break
        return _best(verdicts)

    def _take(self, kept: Kept, phase: str) -> CompileTrial:
        trial = self._run(kept, phase)
        self._runs.setdefault(kept, []).append(trial)
        return trial


def _is_by_limit(signature: FailureSignature) -> bool:
    # These cost the whole limit every time, and a limit far from what is needed seldom wavers.
    return signature.outcome == "timeout" or signature.detail == MEMORY_LIMIT


def _best(verdicts: list[Verdict]) -> Verdict:
    order: tuple[Verdict, ...] = ("fails_same", "unresolved", "other_failure", "passes")
    return next(verdict for verdict in order if verdict in verdicts)


def _most_frequent(signatures: list[FailureSignature]) -> FailureSignature:
    counts = [sum(is_same_failure(one, other) for other in signatures) for one in signatures]
    return signatures[counts.index(max(counts))]
