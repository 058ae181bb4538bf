"""A compile failure narrowed step by step: ladder, then level by level, every trial in a child process.

    with CompileBisection(subject, compiler, levels=("layers", "nodes")) as bisection:
        while bisection.step() is not None:
            pass
        bisection.findings().result

Driven by hand it is a `git bisect`: `proposal`, `step`, `mark`, `skip`, `undo`, `stop`. What happened is in the trials,
so a bisection begun again with the same cache stands where the former stood.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Literal

from workbench.bisection.findings import BisectionFindings
from workbench.bisection.machine import Bisection
from workbench.bisection.oracle import Oracle
from workbench.bisection.repetition import Repetition
from workbench.bisection.search import Kept, Proposal, Verdict
from workbench.bisection.subjects.base import Subject
from workbench.bisection.trial_cache import TrialCache
from workbench.bisection.trials import Progress, Sink, TrialRunner
from workbench.compilers.base import Compiler
from workbench.errors import PlanError, StepError
from workbench.records.compiling import BisectionResult, CompileTrial, FailureSignature
from workbench.units import count_text

TIME_LIMIT_S = 600.0
"""Seconds a trial may take when nobody says otherwise; a whole decode graph takes a real compiler many minutes."""

_RESTARTS = 3

ResultVerdict = Literal["found", "not_reproduced", "usage_error", "interrupted", "undecided"]


class CompileBisection:
    """The narrowing of one failure; a context manager.

    Args:
        subject: the whole.
        compiler: what it fails with.
        levels: rungs to narrow on, coarse to fine; the subject's own level when None. A level with one item is passed
            over, since there is nothing to choose.
        alternatives: further subjects, looked at in turn when the whole of the one before does not fail: the graphs of
            one call, of which nobody knows which is at fault.
        time_limit_s: seconds a trial may take.
        memory_limit_bytes: resident bytes its processes may take; most of what is free when None.
        repetition: how often sets are run.
        cache: file of trials, or an opened cache; in memory when None.
        sink: given every trial as it ends and every result; a journal's `append` for example.
        progress: told a line for every trial.
        question: what is searched, in words.

    Raises:
        DeviceError: this machine lacks what the compiler needs.
        PlanError: the compiler cannot be given this subject, or the subject has no such level.
    """

    def __init__(
        self,
        subject: Subject,
        compiler: Compiler,
        *,
        levels: Sequence[str] | None = None,
        alternatives: Sequence[Subject] = (),
        time_limit_s: float = TIME_LIMIT_S,
        memory_limit_bytes: int | None = None,
        repetition: Repetition | None = None,
        cache: TrialCache | str | Path | None = None,
        sink: Sink | None = None,
        progress: Progress | None = None,
        question: str = "",
    ) -> None:
        if time_limit_s <= 0:
            raise ValueError(f"time_limit_s: expected more than 0 seconds, found {time_limit_s}")
        if subject.kind not in compiler.reads:
            raise PlanError(
                f"compiler {compiler.name!r} reads {' and '.join(sorted(compiler.reads))}, found a subject of "
                f"{subject.kind}; choose a compiler for it"
            )
        compiler.check()
        self._levels = tuple(levels) if levels is not None else (subject.level,)
        if not self._levels:
            raise PlanError("level: expected at least one level to narrow on, found none")
        self._alternatives = list(alternatives)
        self._graphs = 1 + len(self._alternatives)
        self._level = 0
        self.subject = self._entered(subject)
        self.question = question or f"smallest part that {compiler.name} fails on"
        self.results: list[BisectionResult] = []
        self.ladder: list[CompileTrial] = []
        self._compiler, self._given = compiler, compiler
        self._repetition = repetition or Repetition()
        self._own_cache = not isinstance(cache, TrialCache)
        self._cache = cache if isinstance(cache, TrialCache) else TrialCache(cache)
        self._scratch = Path(tempfile.mkdtemp(prefix="workbench-bisect-"))
        self._runner = TrialRunner(
            self._scratch,
            cache=self._cache,
            time_limit_s=time_limit_s,
            memory_limit_bytes=memory_limit_bytes,
            sink=sink,
            progress=progress,
        )
        self._sink = sink
        self._interrupted = False
        self._restarts = 0
        self._level_began = 0
        self._broken = self._concluded = False
        self._climbed = len(compiler.rungs()) == 1
        self._note = ""
        self.machine, self._oracle = self._begin(None)

    @property
    def compiler(self) -> Compiler:
        """The compiler in use: the lowest rung of the ladder that shows the failure."""
        return self._compiler

    @property
    def time_limit_s(self) -> float:
        """Seconds a trial may take."""
        return self._runner.time_limit_s

    @property
    def followed(self) -> FailureSignature | None:
        """The failure that is followed, None before one was seen."""
        return self._oracle.followed

    @property
    def proposal(self) -> Proposal | None:
        """The set to try next; None when the search is over."""
        return self.machine.proposal

    @property
    def trials(self) -> tuple[CompileTrial, ...]:
        """Every trial so far."""
        return tuple(self._runner.trials)

    @property
    def done(self) -> bool:
        """Whether every level has its result."""
        return self.machine.proposal is None

    def step(self) -> CompileTrial | None:
        """Answer the current proposal by trials and return the last of them; None when the search is over.

        Raises:
            KeyboardInterrupt: after the running trial's processes were ended.
        """
        if self.done:
            return None
        count = len(self._runner.trials)
        if not self._climbed:
            self._climb()
        if not self.done:
            self.machine.step()
            self._after_answer()
        trials = self._runner.trials
        return trials[-1] if len(trials) > count else None

    def catch_up(self) -> int:
        """Take every answer known from before, without running anything, and return how many trials that were."""
        count = len(self._runner.trials)
        while not self.done and self._is_known():
            self.step()
        return len(self._runner.trials) - count

    def run(self) -> BisectionFindings:
        """Step to the end and return the findings; an interrupt ends it early, and what it had is returned."""
        try:
            while not self.done:
                self.step()
        except KeyboardInterrupt:
            self._interrupted = True
            return self.stop()
        return self.findings()

    def mark(self, verdict: Verdict) -> CompileTrial:
        """Answer the current proposal by hand.

        Raises:
            StepError: the search is over, or no failure is known yet that the set could share.
        """
        proposal = self.proposal
        if proposal is None:
            raise StepError(f"mark: the search is over ({self.machine.outcome().verdict}); undo() reopens it")
        signature = None
        if verdict in ("fails_same", "other_failure"):
            if self.followed is None:
                raise StepError("mark: no failure has been seen yet, so none can be marked as the same; step() first")
            other = FailureSignature(outcome="compile_error", detail="another failure, marked by hand")
            signature = self.followed if verdict == "fails_same" else other
        outcome = "ok" if verdict == "passes" else "skipped" if signature is None else signature.outcome
        trial = self._runner.mark(self._compiler, self.subject, proposal.kept, outcome, signature)
        self._oracle.put(proposal.kept, trial)
        self.machine.mark(verdict)
        self._after_answer()
        return trial

    def skip(self) -> CompileTrial:
        """Leave the current proposal unanswered; the search goes round it and says so in its result."""
        return self.mark("unresolved")

    def undo(self, count: int = 1) -> None:
        """Take the last answers of this level back; what was given by hand is forgotten, trials stay known.

        Raises:
            StepError: fewer answers than that were given.
        """
        undone = self.machine.history[-count:] if count > 0 else []
        self.machine.undo(count)
        for answer in undone:
            self._oracle.forget(answer.proposal.kept)
        if self._concluded:
            self.results.pop()
            self._concluded = False

    def stop(self) -> BisectionFindings:
        """End the search here and return what is known."""
        if not self.done:
            self.machine.stop()
        if not self._concluded:
            self.results.append(self._result())
            self._concluded = True
        return self.findings()

    def findings(self) -> BisectionFindings:
        """Return what is known now."""
        results = self.results if self._concluded else [*self.results, self._result()]
        return BisectionFindings(trials=self.trials, results=tuple(results), machine=self.machine)

    def smallest(self) -> Kept:
        """Return the smallest set of the current level known to fail."""
        return self.machine.outcome().kept

    def close(self) -> None:
        """End every process and remove the scratch folder."""
        self._runner.close()
        if self._own_cache:
            self._cache.close()
        shutil.rmtree(self._scratch, ignore_errors=True)

    def __enter__(self) -> CompileBisection:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None):
        self.close()

    def _begin(self, followed: FailureSignature | None) -> tuple[Bisection, Oracle]:
        subject, compiler = self.subject, self._compiler
        oracle = Oracle(
            lambda kept, phase: self._runner.run(compiler, subject, kept, phase), self._repetition, followed
        )
        return Bisection(subject.items, oracle), oracle

    def _entered(self, subject: Subject) -> Subject:
        """Return the subject at the first level that leaves something to choose."""
        everything = tuple(range(len(subject.items)))
        for number, level in enumerate(self._levels):
            self._level = number
            found = subject.refined(level, everything)
            if len(found.items) > 1:
                break
        return found

    def _is_known(self) -> bool:
        """Say whether the next step can be answered from the cache alone."""
        proposal, whole = self.proposal, tuple(range(len(self.subject.items)))
        if proposal is None:
            return False
        if not self._climbed:
            for rung in self._given.rungs()[:-1]:
                known = self._runner.known(rung, self.subject, whole)
                if not known:
                    return False
                if known[0].signature is not None:
                    return True
        return self._oracle.can_answer(proposal, self._runner.known(self._compiler, self.subject, proposal.kept))

    def _climb(self) -> None:
        """Find the lowest rung of the ladder on which the whole fails and go on with that."""
        self._climbed = True
        whole = tuple(range(len(self.subject.items)))
        for rung in self._given.rungs()[:-1]:
            trial = self._runner.run(rung, self.subject, whole, "ladder")
            self.ladder.append(trial)
            if trial.signature is not None:
                self._note = f"it fails already with {rung.name}, below {self._given.name}"
                self._broken = trial.outcome == "run_error"
                self._compiler = rung
                self.machine, self._oracle = self._begin(None)
                self._runner.forget()
                return

    def _after_answer(self) -> None:
        if self.machine.result is None:
            first = self.machine.history[-1]
            if first.proposal.phase == "whole" and self._is_no_compile_failure():
                self.stop()
            return
        again = self.machine.result.verdict == "found" and self._restarts < _RESTARTS
        if again and not self._oracle.holds(self.machine.result.kept):
            self._restarts += 1
            self.machine = Bisection(self.subject.items, self._oracle)
            return
        self._conclude()

    def _is_no_compile_failure(self) -> bool:
        return self._broken or (self.followed is not None and self.followed.outcome == "usage_error")

    def _conclude(self) -> None:
        result = self._result()
        if result.verdict == "not_reproduced" and self._alternatives:
            self._try_next_graph()
            return
        self.results.append(result)
        self._concluded = True
        if result.verdict == "found" and result.culprit:
            self._descend()

    def _try_next_graph(self) -> None:
        self.subject = self._entered(self._alternatives.pop(0))
        self._compiler = self._given
        self._climbed = len(self._given.rungs()) == 1
        self._note = f"graph {self._graphs - len(self._alternatives)} of {self._graphs}"
        self._runner.forget()
        self.machine, self._oracle = self._begin(None)

    def _descend(self) -> None:
        """Go on at the next level that leaves something to choose, with what was found here."""
        kept, followed = self.machine.outcome().kept, self.followed
        oracle = self._oracle
        for number in range(self._level + 1, len(self._levels)):
            finer = self.subject.refined(self._levels[number], kept)
            if len(finer.items) > 1 or number + 1 == len(self._levels):
                self._level, self.subject, self._concluded = number, finer, False
                self._level_began = len(self._runner.trials)
                self._runner.forget()
                self._restarts = 0
                self.machine, self._oracle = self._begin(followed)
                self._oracle.passes_needed, self._oracle.flaky = oracle.passes_needed, oracle.flaky
                return

    def _result(self) -> BisectionResult:
        outcome, oracle = self.machine.outcome(), self._oracle
        trials = self._runner.trials[self._level_began :]
        proof = [outcome.kept, *(tuple(k for k in outcome.kept if k != gone) for gone in outcome.kept)]
        seqs = {trial.stamp.seq for kept in proof for trial in oracle.trials_of(kept) if trial.stamp.seq >= 0}
        failing = self._verdict() in ("found", "undecided", "interrupted")
        return BisectionResult(
            question=self.question,
            level=self.subject.level,
            culprit=tuple(self.subject.items[index] for index in outcome.kept) if failing else (),
            minimal=outcome.minimal and self._verdict() == "found",
            signature=oracle.followed,
            trials=sum(not trial.cached for trial in trials),
            cached_trials=sum(trial.cached for trial in trials),
            trial_seqs=tuple(sorted(seqs)),
            verdict=self._verdict(),
            simulated=self._given.simulated,
            leftover_processes=self._runner.leftover_processes + self._runner.living(),
            backend=self._compiler.name,
            whole_runs=oracle.whole_runs,
            failing_runs=oracle.failing_runs,
            flaky=oracle.flaky,
            doubts=tuple(self.subject.items[index] for index in outcome.doubts),
            note=self._notes(outcome.kept),
        )

    def _verdict(self) -> ResultVerdict:
        outcome = self.machine.outcome()
        if self._is_no_compile_failure():
            return "usage_error"
        if self._interrupted:
            return "interrupted"
        if outcome.verdict == "found" and not outcome.kept:
            return "usage_error"
        return outcome.verdict

    def _notes(self, kept: Kept) -> str:
        notes = [self._note] if self._note else []
        outcome = self.machine.outcome()
        if self._broken:
            notes.append("it fails without any compiler: this is no compile failure")
        if outcome.verdict == "found" and not kept:
            notes.append("it fails on nothing at all: the compiler or its set-up is at fault, not the graph")
        others = self._oracle.others
        if others:
            codes = sorted({one.code or one.outcome for one in others})
            count = count_text(sum(others.values()), "trial")
            notes.append(f"another failure came in {count} and was not followed: {', '.join(codes)}")
        return "; ".join(notes)
