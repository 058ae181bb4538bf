"""What the session's verbs return: short answers a cell can show, with the records behind them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from workbench.records import Record, StepFailure
from workbench.records.base import Json, to_plain
from workbench.records.tensors import DiscreteFlip, TensorDiff
from workbench.stepper import StepPoint
from workbench.units import count_text, seconds_text
from workbench.views.base import html_table

StepVerdict = Literal["match", "differ", "flipped", "incomparable", "observed", "failed"]
"""`flipped`: tensors match, a discrete choice does not. `observed`: there is nothing to compare with."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class StepResult:
    """What one step showed.

    Attributes:
        point: which step.
        verdict: of all comparisons of the step, see `StepVerdict`.
        records: everything the step appended to the journal.
        elapsed_s: seconds of both sides and of comparing.
    """

    point: StepPoint
    verdict: StepVerdict
    records: tuple[Record, ...]
    elapsed_s: float

    @property
    def diffs(self) -> tuple[TensorDiff, ...]:
        """The tensor comparisons."""
        return tuple(record for record in self.records if isinstance(record, TensorDiff))

    def __str__(self) -> str:
        return f"{self.point}: {self.verdict}{_worst_text(self.diffs)}, {seconds_text(self.elapsed_s)}"

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        rows = [(self.point.module, self.verdict, _worst_text(self.diffs).removeprefix(", "))]
        return html_table(f"step {self.point.index}", ("module", "verdict", "largest error"), rows)

    def to_dict(self) -> dict[str, Json]:
        """Return the result as data, without the records."""
        return {
            "step": self.point.index,
            "module": self.point.module,
            "phase": self.point.phase,
            "verdict": self.verdict,
            "elapsed_s": self.elapsed_s,
        }


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RunResult:
    """What several steps showed.

    Attributes:
        steps: in order.
        stopped: why it ended: "reached" where it should, "difference" or "flip" at the first one, "failure" of a
            step, "interrupted" by the user.
    """

    steps: tuple[StepResult, ...]
    stopped: Literal["reached", "difference", "flip", "failure", "interrupted"]

    @property
    def verdict(self) -> StepVerdict:
        """The worst verdict of the steps."""
        order: tuple[StepVerdict, ...] = ("failed", "differ", "flipped", "incomparable", "match", "observed")
        seen: list[StepVerdict] = [step.verdict for step in self.steps]
        return min(seen, key=order.index) if seen else "observed"

    def __str__(self) -> str:
        lines = [f"{count_text(len(self.steps), 'step')}: {self.verdict}; ended: {self._ended()}"]
        return "\n".join(
            [*lines, *(f"  {step}" for step in self.steps if step.verdict in ("differ", "flipped", "failed"))]
        )

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        rows = [(str(step.point), step.verdict, _worst_text(step.diffs).removeprefix(", ")) for step in self.steps]
        return html_table(str(self).splitlines()[0], ("step", "verdict", "largest error"), rows)

    def to_dict(self) -> dict[str, Json]:
        """Return the result as data, without the records."""
        return {"verdict": self.verdict, "stopped": self.stopped, "steps": to_plain([s.to_dict() for s in self.steps])}

    def _ended(self) -> str:
        last = f" at {self.steps[-1].point}" if self.steps else ""
        words = {"reached": "as asked", "difference": f"at the first difference{last}", "flip": f"at a flip{last}"}
        return words.get(self.stopped, f"{self.stopped}{last}")


def step_verdict(records: tuple[Record, ...]) -> StepVerdict:
    """Return the verdict of a step's records; the accumulated run decides, the isolated one explains."""
    if any(isinstance(record, StepFailure) for record in records):
        return "failed"
    diffs = [record for record in records if isinstance(record, TensorDiff) and record.error == "accumulated"]
    flips = [record for record in records if isinstance(record, DiscreteFlip) and record.error == "accumulated"]
    if any(diff.verdict == "differ" for diff in diffs):
        return "differ"
    if any(flip.flipped_rows for flip in flips):
        return "flipped"
    if not diffs and not flips:
        return "observed"
    if diffs and all(diff.verdict == "incomparable" for diff in diffs):
        return "incomparable"
    return "match"


def _worst_text(diffs: tuple[TensorDiff, ...]) -> str:
    parts = []
    for error in ("accumulated", "isolated"):
        errors = [diff.rel_l2 for diff in diffs if diff.error == error and diff.rel_l2 is not None]
        if errors:
            parts.append(f"{error} {max(errors):.2g}")
    return f", {', '.join(parts)}" if parts else ""
