"""Where two runs part: the first step that differs, found by halving, and the step whose own error stands out.

Pure Python: a step is a number, and what it costs to look at one is the caller's business.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

OUTLIER_FACTOR = 5.0
"""A step stands out when its isolated error is more than this many times the median of the other steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Answer of a search.

    Attributes:
        index: the first step that differs, None when none does.
        comparisons: how many steps were looked at.
    """

    index: int | None
    comparisons: int


def first_difference(steps: int, differs: Callable[[int], bool]) -> Found:
    """Return the first of `steps` steps that differs, by halving; looks at no more than ceil(log2 steps) + 1 of them.

    Right where a difference, once there, stays. Where differences may heal, the answer is still a step that differs
    after one that does not, but an earlier one may exist.

    Args:
        steps: how many there are.
        differs: whether the two sides differ after a step; asked once per step at most.
    """
    if steps <= 0:
        return Found(index=None, comparisons=0)
    if not differs(steps - 1):
        return Found(index=None, comparisons=1)
    comparisons = 1
    low, high = -1, steps - 1
    while high - low > 1:
        middle = (low + high) // 2
        comparisons += 1
        if differs(middle):
            high = middle
        else:
            low = middle
    return Found(index=high, comparisons=comparisons)


def culprit(errors: Sequence[float], *, floor: float = 0.0, factor: float = OUTLIER_FACTOR) -> int | None:
    """Return the step whose isolated error stands out from the others, None when none does.

    Args:
        errors: isolated error of each step; NaN stands out from any number.
        floor: errors up to this are within tolerance and never stand out.
        factor: how many times the median of the others it must exceed.
    """
    if not errors:
        return None
    ranked = [math.inf if math.isnan(error) else error for error in errors]
    index = max(range(len(ranked)), key=ranked.__getitem__)
    others = [error for number, error in enumerate(ranked) if number != index]
    limit = factor * statistics.median(others) if others else 0.0
    worst = ranked[index]
    if worst <= floor or (not math.isinf(worst) and worst <= limit):
        return None
    return index
