"""The search for the smallest failing set: a generator of proposals, answered one by one. No torch, no process.

Order of work: does the whole fail; the shortest failing prefix (binary search); the shortest failing suffix of that
(doubling, since faults tend to be local, then binary search); the needed items between the two ends, one binary
search each; last ddmin by complements down to single removals, which is the proof. Every set is asked for once.

A set counts as failing only when it fails with the failure that is followed: another failure, a pass and an answer
that could not be had all leave it out, so the search never slides to another bug. Where the failure is not monotone
the binary searches may stop early; what they keep always fails, and the last stage finishes the work.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Literal, TypeAlias

Verdict = Literal["fails_same", "passes", "other_failure", "unresolved"]
Phase = Literal["whole", "prefix", "suffix", "ddmin", "confirm", "user"]
Kept: TypeAlias = tuple[int, ...]

# Needed items found one binary search at a time; beyond that many, a failure depends on much of the input (as in "more
# than N lines") and halving by complements takes fewer trials.
_BINARY_ROUNDS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """The next set to try.

    Attributes:
        kept: indices of the items kept, ascending.
        phase: part of the search that asks.
    """

    kept: Kept
    phase: Phase


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """What a search found.

    Attributes:
        verdict: "found", "not_reproduced" (the whole passes) or "undecided" (the whole gave no usable answer, or the
            search was stopped).
        kept: smallest failing set known, ascending; the whole when nothing smaller is known.
        minimal: every single removal was tried and lost the failure.
        doubts: items whose removal could not be judged.
    """

    verdict: Literal["found", "not_reproduced", "undecided"]
    kept: Kept
    minimal: bool = False
    doubts: Kept = ()


Search: TypeAlias = Generator[Proposal, Verdict, SearchResult]


def search_minimal(count: int) -> Search:
    """Yield the sets to try out of `count` items, receive a verdict for each, return the smallest failing set."""
    asker = _Asker()
    whole = tuple(range(count))
    verdict = yield from asker.ask(whole, "whole")
    if verdict != "fails_same":
        return SearchResult(verdict="not_reproduced" if verdict == "passes" else "undecided", kept=whole)
    kept = whole
    if count > 1:
        kept = yield from _shortest_prefix(asker, kept)
        kept = yield from _shortest_suffix(asker, kept)
    settled = len(kept) <= 2
    if not settled:
        kept, settled = yield from _needed_between(asker, kept)
    kept = yield from _remove_chunks(asker, kept, chunk=1 if settled else max(1, len(kept) // 2))
    doubts = tuple(item for item in kept if asker.known.get(_without(kept, item)) == "unresolved")
    return SearchResult(verdict="found", kept=kept, minimal=not doubts, doubts=doubts)


class _Asker:
    """Remembers every verdict of one search, so that no set is proposed twice."""

    def __init__(self) -> None:
        self.known: dict[Kept, Verdict] = {}

    def ask(self, kept: Kept, phase: Phase) -> Generator[Proposal, Verdict, Verdict]:
        if kept not in self.known:
            self.known[kept] = yield Proposal(kept=kept, phase=phase)
        return self.known[kept]

    def fails(self, kept: Kept, phase: Phase) -> Generator[Proposal, Verdict, bool]:
        verdict = yield from self.ask(kept, phase)
        return verdict == "fails_same"


def _shortest_prefix(asker: _Asker, kept: Kept) -> Generator[Proposal, Verdict, Kept]:
    low, high = 0, len(kept)
    while high - low > 1:
        middle = (low + high) // 2
        if (yield from asker.fails(kept[:middle], "prefix")):
            high = middle
        else:
            low = middle
    return kept[:high]


def _shortest_suffix(asker: _Asker, kept: Kept) -> Generator[Proposal, Verdict, Kept]:
    low, high = 0, len(kept)
    width = 1
    while width < high:
        if (yield from asker.fails(kept[-width:], "suffix")):
            high = width
        else:
            low, width = width, width * 2
    while high - low > 1:
        middle = (low + high) // 2
        if (yield from asker.fails(kept[-middle:], "suffix")):
            high = middle
        else:
            low = middle
    return kept[-high:]


def _needed_between(asker: _Asker, kept: Kept) -> Generator[Proposal, Verdict, tuple[Kept, bool]]:
    """Return the failing set left and whether it consists of needed items only; `kept` fails and has both ends."""
    needed: tuple[int, ...] = (kept[0], kept[-1])
    rest = kept[1:-1]
    for _ in range(_BINARY_ROUNDS):
        if (yield from asker.fails(_joined(needed), "ddmin")):
            return _joined(needed), True
        low, high = 0, len(rest)
        while high - low > 1:
            middle = (low + high) // 2
            if (yield from asker.fails(_joined(needed, rest[:middle]), "ddmin")):
                high = middle
            else:
                low = middle
        needed, rest = (*needed, rest[high - 1]), rest[: high - 1]
        if not rest:
            return _joined(needed), True
    return _joined(needed, rest), False


def _remove_chunks(asker: _Asker, kept: Kept, *, chunk: int) -> Generator[Proposal, Verdict, Kept]:
    """Remove runs of `chunk` items, then of half of it, down to single items until none can go."""
    while True:
        removed, position = False, 0
        while position < len(kept):
            smaller = kept[:position] + kept[position + chunk :]
            if (yield from asker.fails(smaller, "ddmin")):
                kept, removed = smaller, True
            else:
                position += chunk
        if chunk == 1 and not removed:
            return kept
        chunk = max(1, chunk // 2)


def _joined(*parts: Kept) -> Kept:
    return tuple(sorted(index for part in parts for index in part))


def _without(kept: Kept, item: int) -> Kept:
    return tuple(index for index in kept if index != item)
