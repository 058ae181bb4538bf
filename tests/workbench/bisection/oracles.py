"""Answers for searches: what fails with which sets, and a driver that counts the questions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from workbench.bisection.search import Kept, Proposal, SearchResult, Verdict, search_minimal

Oracle = Callable[[Kept], Verdict]


def contains(*needed: int) -> Oracle:
    """Fails when every needed item is kept."""
    wanted = set(needed)
    return lambda kept: "fails_same" if wanted <= set(kept) else "passes"


def any_of(*oracles: Oracle) -> Oracle:
    """Fails when one of the oracles fails."""
    return lambda kept: "fails_same" if any(one(kept) == "fails_same" for one in oracles) else "passes"


@dataclass
class Run:
    """One search driven to its end."""

    result: SearchResult
    proposals: list[Proposal] = field(default_factory=list)

    @property
    def trials(self) -> int:
        return len(self.proposals)


def drive(count: int, oracle: Oracle) -> Run:
    """Run the search over `count` items and keep every question."""
    search, proposals = search_minimal(count), []
    proposal = next(search)
    while True:
        proposals.append(proposal)
        try:
            proposal = search.send(oracle(proposal.kept))
        except StopIteration as end:
            return Run(result=end.value, proposals=proposals)


def is_one_minimal(kept: Sequence[int], oracle: Oracle) -> bool:
    """Say whether the set fails and no single removal does."""
    smaller: Iterable[Kept] = (tuple(item for item in kept if item != gone) for gone in kept)
    return oracle(tuple(kept)) == "fails_same" and all(oracle(one) != "fails_same" for one in smaller)
