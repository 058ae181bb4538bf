"""How often a set is run before its answer counts: a failure that comes and goes must not pass for a success.

A failure seen once is a failure. A pass is only as good as the number of runs behind it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

_WRONG_PASS = 0.005
"""Accepted probability that a set which can fail is taken for one that passes."""

_ESTIMATE_RUNS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Repetition:
    """Runs of each kind of set.

    Attributes:
        whole: runs of the whole, at least 1; a mixture shows that the failure comes and goes.
        absent: runs of a whole that keeps passing before the failure counts as not reproduced, at least 1.
        passes: runs without failure before a set counts as passing, at least 1.
        confirm: runs of the answer at the end, 0 for none.
        most: limit of `passes` where a failure comes and goes.
    """

    whole: int = 2
    absent: int = 2
    passes: int = 1
    confirm: int = 1
    most: int = 48

    def __post_init__(self) -> None:
        low = [name for name in ("whole", "absent", "passes", "most") if getattr(self, name) < 1]
        if low or self.confirm < 0:
            raise ValueError(f"Repetition: expected counts of at least 1 (confirm: 0), found {self}")

    @property
    def estimate(self) -> int:
        """Runs after which a failing rate is estimated."""
        return max(_ESTIMATE_RUNS, self.whole)

    def passes_at(self, rate: float) -> int:
        """Return the runs without failure that make a pass credible when a failing set fails at this rate."""
        if rate >= 1:
            return self.passes
        needed = math.ceil(math.log(_WRONG_PASS) / math.log(1 - rate)) if rate > 0 else self.most
        return max(self.passes, min(self.most, needed))
