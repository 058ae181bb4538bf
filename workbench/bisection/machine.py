"""A bisection one can drive by hand, like `git bisect`: look at the proposal, answer, skip, take back, stop.

The state is the list of answers; taking one back replays the others through a fresh search, so there is nothing else
to undo. Needs no torch and starts no process: who answers is the caller's choice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from workbench.bisection.search import Proposal, Search, SearchResult, Verdict, search_minimal
from workbench.errors import StepError


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One proposal and what came of it."""

    proposal: Proposal
    verdict: Verdict


class Bisection:
    """The search over `items`, driven from outside.

    Attributes:
        items: names, in order.
        history: answers given so far.
        result: None while the search goes on.
        stopped: the user ended it early.
    """

    def __init__(
        self,
        items: Sequence[str],
        oracle: Callable[[Proposal], Verdict] | None = None,
        *,
        search: Callable[[int], Search] = search_minimal,
    ) -> None:
        """Begin a search; `oracle` answers for `step` and `run`, without one only `mark` and `skip` advance it."""
        self.items = tuple(items)
        self.history: list[Answer] = []
        self.result: SearchResult | None = None
        self.stopped = False
        self._oracle = oracle
        self._search = search
        self._restart()

    @property
    def proposal(self) -> Proposal | None:
        """The set to try next; None when the search is over."""
        return None if self.stopped or self.result is not None else self._proposal

    @property
    def smallest(self) -> tuple[int, ...]:
        """The smallest set seen to fail so far; empty before the first failure."""
        failing = [answer.proposal.kept for answer in self.history if answer.verdict == "fails_same"]
        return min(failing, key=len, default=())

    def names(self, kept: Sequence[int]) -> tuple[str, ...]:
        """Return the names of the items kept."""
        return tuple(self.items[index] for index in kept)

    def mark(self, verdict: Verdict) -> None:
        """Answer the current proposal by hand.

        Raises:
            StepError: the search is over.
        """
        proposal = self._expect_proposal("mark")
        self.history.append(Answer(proposal=proposal, verdict=verdict))
        self._send(verdict)

    def skip(self) -> None:
        """Leave the current proposal unanswered; the search goes round it and says so in its result."""
        self.mark("unresolved")

    def undo(self, count: int = 1) -> None:
        """Take back the last answers.

        Raises:
            StepError: fewer answers than that were given.
        """
        if not 1 <= count <= len(self.history):
            raise StepError(f"undo: expected 1 to {len(self.history)} answers to take back, got {count}")
        kept = self.history[:-count]
        self._restart()
        for answer in kept:
            self.history.append(answer)
            self._send(answer.verdict)

    def step(self) -> Answer:
        """Let the oracle answer the current proposal and return the answer.

        Raises:
            StepError: the search is over, or there is no oracle.
        """
        proposal = self._expect_proposal("step")
        if self._oracle is None:
            raise StepError("step: this bisection has no oracle; answer with mark(...) or skip()")
        self.mark(self._oracle(proposal))
        return self.history[-1]

    def run(self) -> SearchResult:
        """Step until the search is over or stopped, and return what it found."""
        while self.proposal is not None:
            self.step()
        return self.outcome()

    def stop(self) -> SearchResult:
        """End the search here and return the smallest failing set so far."""
        self.stopped = self.result is None
        return self.outcome()

    def outcome(self) -> SearchResult:
        """Return the result; before the end, what is known so far with the verdict "undecided"."""
        if self.result is not None:
            return self.result
        return SearchResult(verdict="undecided", kept=self.smallest or tuple(range(len(self.items))))

    def _restart(self) -> None:
        self.history = []
        self.result = None
        self.stopped = False
        self._running = self._search(len(self.items))
        self._proposal: Proposal | None = next(self._running)

    def _send(self, verdict: Verdict) -> None:
        try:
            self._proposal = self._running.send(verdict)
        except StopIteration as end:
            self._proposal, self.result = None, end.value

    def _expect_proposal(self, verb: str) -> Proposal:
        proposal = self.proposal
        if proposal is None:
            raise StepError(f"{verb}: the search is over ({self.outcome().verdict}); undo() reopens it")
        return proposal
