"""Both sides of a plan, one cursor: run a point, compare what it showed, record all of it; find where the sides part.

What a session's verbs are made of. It writes records and no actions; which verb asked is the session's business.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal, TypedDict, TypeVar

import torch
from torch import Tensor

from workbench.captures import summarize
from workbench.compare.search import first_difference
from workbench.compare.steps import compare_step
from workbench.compare.tolerances import ErrorKind
from workbench.errors import StepError, TargetCrash
from workbench.journal import Journal
from workbench.plan import Tolerance
from workbench.records import Divergence, Note, Record, Stamp, StepFailure, StepTiming, TensorSummary
from workbench.records.tensors import Side as SideName
from workbench.results import RunResult, StepResult, step_verdict
from workbench.stepper import StepPoint, place_text
from workbench.subjects.base import Observed, Side

_R = TypeVar("_R", bound=Record)
Progress = Callable[[str], None]
StopAt = Literal["difference", "flip", "never"]

_TELL_EVERY_S = 2.0


class Stepping:
    """One or two sides, stepped together.

    Args:
        reference: the side that is trusted.
        candidate: the side under test, None for a run that only observes.
        tolerances: of the plan.
        journal: where records go.
        clock: seconds, monotonic.
        progress: told in a line what is going on in work that takes longer.

    Attributes:
        last: what each side showed in the step run last.
    """

    def __init__(
        self,
        reference: Side,
        candidate: Side | None,
        *,
        tolerances: tuple[Tolerance, ...],
        journal: Journal,
        clock: Callable[[], float],
        progress: Progress | None,
    ) -> None:
        self.reference, self.candidate, self.journal = reference, candidate, journal
        self.last: dict[SideName, Observed] = {}
        self._tolerances, self._clock, self._progress = tolerances, clock, progress

    @property
    def points(self) -> tuple[StepPoint, ...]:
        """Every place to stop at, in order."""
        return self.reference.points

    @property
    def position(self) -> int:
        """How many of the points have run."""
        return self.reference.position

    @property
    def next_point(self) -> StepPoint | None:
        """What `step` would run; None at the end."""
        return self.points[self.position] if self.position < len(self.points) else None

    def side(self, name: SideName) -> Side:
        """Return a side by its name.

        Raises:
            StepError: no such side.
        """
        if name == "reference":
            return self.reference
        if name == "candidate":
            return self.expect_candidate("this")
        raise StepError(f"side: expected 'reference' or 'candidate', found {name!r}.")

    def expect_candidate(self, verb: str) -> Side:
        """Return the candidate.

        Raises:
            StepError: the plan has none; `verb` needs one.
        """
        if self.candidate is None:
            raise StepError(f"{verb} needs a candidate side; give the plan a candidate placement.")
        return self.candidate

    def both(self) -> Iterator[Side]:
        """Give the sides there are, the reference first."""
        yield self.reference
        if self.candidate is not None:
            yield self.candidate

    def record(self, record: _R) -> _R:
        """Append a record to the journal."""
        return self.journal.append(record)

    def stamp(self, index: int | None = None) -> Stamp:
        """Return the stamp of a point, of the last one that ran when None."""
        if index is None and not self.position:
            return Stamp()
        point = self.points[self.position - 1 if index is None else index]
        return Stamp(step=point.index, module=point.module, phase=point.phase)

    def rewind(self, position: int) -> None:
        """Go back on both sides."""
        for side in self.both():
            side.rewind(position)
        self.last.clear()

    def first_divergence(self, error: ErrorKind) -> Divergence:
        """Find the first step at which the sides differ; see `Session.first_divergence`."""
        candidate = self.expect_candidate("first_divergence")
        dry = [name for name, side in (("reference", self.reference), ("candidate", candidate)) if not side.has_numbers]
        if dry:
            raise StepError(
                f"first_divergence: expected two sides with numbers, found a dry {' and '.join(dry)}: there is nothing "
                "to compare but shapes, which session.run() does."
            )
        seen = self._outputs_of_all()
        steps = len(self.points)
        scanned: list[int] = []

        def differs(index: int) -> bool:
            scanned.append(index)
            reference, accumulated = seen[index]
            found = accumulated
            if error == "isolated":
                feed = self.reference.feed(index)
                found = {} if feed is None else candidate.alone(index, feed).tensors
            stamp = self.stamp(index)
            records = tuple(compare_step(reference, found, error=error, stamp=stamp, **self._rules()))
            for record in records:
                self.record(record)
            return _differs(records)

        if error == "isolated":
            # Errors of single steps do not stay once they are there, so halving would not find the first.
            first = next((index for index in range(steps) if differs(index)), None)
            method = "scan"
        else:
            first, method = first_difference(steps, differs).index, "bisection"
            if first is None:
                # The ends agree; a difference on the way may have healed, as a flipped choice often does.
                first = next((index for index in range(steps - 1) if differs(index)), None)
                method = "bisection then scan"
        divergence = self.record(
            Divergence(
                stamp=self.stamp(),
                question=f"first step with an {error} difference",
                first=None if first is None else self.points[first].module,
                index=first,
                comparisons=len(scanned),
                steps=steps,
                method=method,
            )
        )
        if first is not None:
            for side in self.both():
                side.rewind(first + 1)
        return divergence

    def run_to(self, goal: int, stop_at: StopAt) -> RunResult:
        """Step up to a position, or until the sides differ; an interrupt ends it and keeps what there was."""
        results: list[StepResult] = []
        ended: Literal["reached", "difference", "flip", "failure", "interrupted"] = "reached"
        told = self._clock()
        try:
            while self.position < goal:
                results.append(self.step())
                verdict = results[-1].verdict
                if verdict == "failed":
                    ended = "failure"
                    break
                if verdict == "differ" and stop_at == "difference":
                    ended = "difference"
                    break
                if verdict == "flipped" and stop_at != "never":
                    ended = "flip"
                    break
                if self._progress is not None and self._clock() - told > _TELL_EVERY_S:
                    told = self._clock()
                    self._progress(f"{place_text(self.points, self.position)}")
        except KeyboardInterrupt:
            ended = "interrupted"
            self.level()
            self.record(Note(stamp=self.stamp(), text=f"interrupted at {place_text(self.points, self.position)}"))
        return RunResult(steps=tuple(results), stopped=ended)

    def level(self) -> None:
        """Bring both sides to the same position after a step that one of them did not finish."""
        position = min(side.position for side in self.both())
        for side in self.both():
            if side.position > position:
                side.rewind(position)

    def step(self) -> StepResult:
        """Run the next point on both sides, compare, and record all of it.

        Raises:
            StepError: there is none.
        """
        if self.next_point is None:
            raise StepError("the run is over; use session.rewind(...) to go back.")
        began, first = self._clock(), len(self.journal.entries)
        point = self.next_point
        try:
            reference = self._advance("reference", self.reference)
            if self.candidate is not None:
                candidate = self._advance("candidate", self.candidate)
                self._compare(point, reference, candidate)
        except _StepFailed:
            self.level()
        records = tuple(entry for entry in self.journal.entries[first:] if isinstance(entry, Record))
        return StepResult(point=point, verdict=step_verdict(records), records=records, elapsed_s=self._clock() - began)

    def _advance(self, name: SideName, side: Side) -> Observed:
        began = self._clock()
        point = side.points[side.position]
        stamp = Stamp(step=point.index, module=point.module, phase=point.phase)
        with self._failures(name, point, stamp):
            observed = side.advance()
        self.last[name] = observed
        self.record(
            StepTiming(
                stamp=stamp,
                side=name,
                name=point.module,
                step_kind=point.kind,
                step_s=self._clock() - began,
                weight_bytes=observed.weight_bytes,
            )
        )
        for tensor_name, tensor in observed.tensors.items():
            self.record(TensorSummary(stamp=stamp, name=tensor_name, side=name, **summarize(tensor)))
        return observed

    def _compare(self, point: StepPoint, reference: Observed, candidate: Observed) -> None:
        stamp = Stamp(step=point.index, module=point.module, phase=point.phase)
        rules = self._rules()
        for record in compare_step(reference.tensors, candidate.tensors, error="accumulated", stamp=stamp, **rules):
            self.record(record)
        feed = self.reference.feed(point.index)
        side = self.candidate
        if feed is None or side is None or not side.has_numbers or not self.reference.has_numbers:
            return
        with self._failures("candidate", point, stamp):
            alone = side.alone(point.index, feed)
        for record in compare_step(reference.tensors, alone.tensors, error="isolated", stamp=stamp, **rules):
            self.record(record)

    def _rules(self) -> _Rules:
        formats = [side.precision for side in self.both() if side.precision is not None]
        coarsest = max(formats, key=lambda dtype: torch.finfo(dtype).eps, default=None)
        return _Rules(rules=self._tolerances, precision=coarsest)

    def _outputs_of_all(self) -> list[tuple[Mapping[str, Tensor], Mapping[str, Tensor]]]:
        """Run both sides from the start to the end and return what each step showed, side by side."""
        candidate = self.expect_candidate("first_divergence")
        for side in self.both():
            # At the start there is nothing to take back, and edits of what is still to come shall stay.
            if side.position:
                side.rewind(0)
        seen: list[tuple[Mapping[str, Tensor], Mapping[str, Tensor]]] = []
        told = self._clock()
        for point in self.points:
            stamp = Stamp(step=point.index, module=point.module, phase=point.phase)
            with self._failures("reference", point, stamp):
                reference = self.reference.advance()
            with self._failures("candidate", point, stamp):
                found = candidate.advance()
            self.last = {"reference": reference, "candidate": found}
            seen.append((reference.tensors, found.tensors))
            if self._progress is not None and self._clock() - told > _TELL_EVERY_S:
                told = self._clock()
                self._progress(place_text(self.points, point.index))
        return seen

    @contextlib.contextmanager
    def _failures(self, side: SideName, point: StepPoint, stamp: Stamp) -> Iterator[None]:
        """Turn what a step raises into a record; the journal goes on."""
        try:
            yield
        except Exception as error:
            self.record(
                StepFailure(
                    stamp=stamp,
                    side=side,
                    name=point.module,
                    error=f"{type(error).__name__}: {error}",
                    traceback_text=traceback.format_exc(),
                )
            )
            raise _StepFailed(f"{point} failed on the {side} side: {type(error).__name__}: {error}") from error


class _Rules(TypedDict):
    """What decides when two tensors count as equal."""

    rules: tuple[Tolerance, ...]
    precision: torch.dtype | None


class _StepFailed(TargetCrash):
    """A step failed and has been recorded."""


def _differs(records: Sequence[Record]) -> bool:
    return step_verdict(tuple(records)) in ("differ", "flipped") or any(
        getattr(record, "verdict", "") == "differ" or getattr(record, "flipped_rows", 0) for record in records
    )
