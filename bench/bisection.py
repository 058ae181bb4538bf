"""Trials that narrowing takes, against plain delta debugging on the same failures in the same run."""

from __future__ import annotations

import itertools
import random
import statistics
from collections.abc import Callable

from workbench.bisection.search import search_minimal

Kept = tuple[int, ...]
Fails = Callable[[Kept], bool]

_SIZES = (64, 512, 4096)


def ddmin(count: int, fails: Fails) -> tuple[Kept, int]:
    """Return a 1-minimal failing set and the tests it took: delta debugging by subsets, then complements.

    Every set is tested once; repeated questions are answered from memory, as in our own search.
    Source: A. Zeller, R. Hildebrandt, Simplifying and Isolating Failure-Inducing Input, 2002, figure 7.
    """
    known: dict[Kept, bool] = {}

    def test(kept: Kept) -> bool:
        if kept not in known:
            known[kept] = fails(kept)
        return known[kept]

    kept, parts = tuple(range(count)), 2
    assert test(kept), "the whole must fail"
    while len(kept) >= 2:
        bounds = [len(kept) * part // parts for part in range(parts + 1)]
        pieces = [kept[begin:end] for begin, end in itertools.pairwise(bounds)]
        subset = next((piece for piece in pieces if test(piece)), None)
        if subset is not None:
            kept, parts = subset, 2
            continue
        rests = (kept[:begin] + kept[end:] for begin, end in itertools.pairwise(bounds) if begin < end)
        rest = next((rest for rest in rests if test(rest)), None)
        if rest is not None:
            kept, parts = rest, max(parts - 1, 2)
        elif parts < len(kept):
            parts = min(len(kept), 2 * parts)
        else:
            break
    return kept, len(known)


def count_trials(count: int, fails: Fails) -> tuple[Kept, int]:
    """Return what our search finds and the trials it took."""
    search, trials = search_minimal(count), 0
    proposal = next(search)
    while True:
        trials += 1
        try:
            proposal = search.send("fails_same" if fails(proposal.kept) else "passes")
        except StopIteration as end:
            return end.value.kept, trials


def planted(kind: str, count: int, seed: int) -> Fails:
    """Return a failure of one of the kinds below, placed by `seed`."""
    rng = random.Random(f"{kind}-{count}-{seed}")
    if kind == "one item":
        needed = {rng.randrange(count)}
    elif kind == "a pair, near":
        at = rng.randrange(count - 4)
        needed = {at, at + 1 + rng.randrange(3)}
    elif kind == "a pair, far apart":
        needed = {rng.randrange(count // 8), count - 1 - rng.randrange(count // 8)}
    elif kind == "three, scattered":
        needed = set(rng.sample(range(count), 3))
    elif kind == "a run of 8":
        at = rng.randrange(count - 8)
        needed = set(range(at, at + 8))
    else:
        raise ValueError(f"unknown kind of failure {kind!r}")
    return lambda kept: needed <= set(kept)


KINDS = ("one item", "a pair, near", "a pair, far apart", "three, scattered", "a run of 8")


def main(out: Callable[[str], None]) -> None:
    """Print the medians and their ratio for each kind of failure and size."""
    out("bisection: trials to a 1-minimal set, median of 9 planted failures (every trial is one compile)")
    out(f"{'failure':<20}{'items':>7}{'plain ddmin':>13}{'ours':>7}{'ratio':>8}")
    ratios: list[float] = []
    for kind in KINDS:
        for size in _SIZES:
            ours, plain = [], []
            for seed in range(9):
                fails = planted(kind, size, seed)
                found, trials = count_trials(size, fails)
                reference, reference_trials = ddmin(size, fails)
                assert found == reference, "a monotone failure has one minimal set"
                ours.append(trials)
                plain.append(reference_trials)
            ratio = statistics.median(plain) / statistics.median(ours)
            ratios.append(ratio)
            out(f"{kind:<20}{size:>7}{statistics.median(plain):>13.0f}{statistics.median(ours):>7.0f}{ratio:>7.1f}x")
    out(f"geometric mean of the ratios: {statistics.geometric_mean(ratios):.2f}x fewer trials than plain ddmin")
