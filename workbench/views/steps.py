"""The steps of a run, one row each: what the sides agree on, how far they are apart, what it cost."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from workbench.journal import Journal
from workbench.records import DiscreteFlip, Record, StepFailure, StepTiming, TensorDiff
from workbench.records.base import Json
from workbench.units import bytes_text, count_text, number_text, seconds_text
from workbench.views.base import TableView

SHOWN_AS = {
    "match": "ok",
    "differ": "DIFFER",
    "flipped": "flipped",
    "incomparable": "shapes only",
    "observed": "",
    "failed": "FAILED",
}
"""How a verdict is spelled in a table: a word, never a colour alone."""


@dataclass(slots=True, kw_only=True)
class StepRow:
    """What a journal holds of one step of one run.

    Attributes:
        step: its index.
        module, phase, kind: of the point.
        accumulated, isolated: largest relative L2 error of a tensor of the step, None where nothing was compared.
        worst: name of the tensor with the largest accumulated error.
        verdict: of the accumulated comparison, as `StepResult.verdict`.
        isolated_differs: whether a tensor of the isolated run is out of tolerance.
        flips_by_choice: rows that flipped, accumulated, by the name of the choice.
        reference_s, candidate_s: seconds, None for a side that did not run.
        weight_bytes: read for this step on both sides.
    """

    step: int
    module: str
    phase: str
    kind: str = ""
    accumulated: float | None = None
    isolated: float | None = None
    worst: str = ""
    verdict: str = "observed"
    isolated_differs: bool = False
    flips_by_choice: dict[str, int] = field(default_factory=dict[str, int])
    reference_s: float | None = None
    candidate_s: float | None = None
    weight_bytes: int = 0
    compared: int = field(default=0, repr=False)
    incomparable: int = field(default=0, repr=False)

    @property
    def flips(self) -> int:
        """Rows whose discrete choice flipped, over all choices of the step."""
        return sum(self.flips_by_choice.values())


def step_rows(records: Iterable[Record]) -> list[StepRow]:
    """Return one row per step, in the order of the program; a step that was run again shows its newest run."""
    rows: dict[int, StepRow] = {}
    for record in records:
        step = record.stamp.step
        if step is None:
            continue
        if isinstance(record, StepTiming):
            if record.side == "reference" or step not in rows:
                # A step that ran again after a rewind: the newer run is the one to read.
                rows.pop(step, None)
                rows[step] = StepRow(
                    step=step, module=record.stamp.module, phase=record.stamp.phase, kind=record.step_kind
                )
            row = rows[step]
            row.weight_bytes += record.weight_bytes
            if record.side == "reference":
                row.reference_s = record.step_s
            else:
                row.candidate_s = record.step_s
        elif isinstance(record, (TensorDiff, DiscreteFlip, StepFailure)):
            row = rows.setdefault(step, StepRow(step=step, module=record.stamp.module, phase=record.stamp.phase))
            _take(row, record)
    return [_judged(rows[step]) for step in sorted(rows)]


def step_table(journal: Journal, *, differing: bool = False) -> TableView:
    """Return a table of the steps; look for the first row that is not ok, and for an isolated error that stands out.

    Args:
        journal: of a session.
        differing: only the rows that are not ok.
    """
    rows = step_rows(journal.records)
    shown = [row for row in rows if not differing or row.verdict not in ("match", "observed")]
    streamed = any(row.weight_bytes for row in rows)
    header = ("step", "module", "phase", "verdict", "accumulated", "isolated", "flips", "reference", "candidate")
    header = (*header, "weights") if streamed else header
    cells = [
        (
            str(row.step),
            row.module or "(whole call)",
            row.phase,
            SHOWN_AS[row.verdict],
            number_text(row.accumulated),
            number_text(row.isolated) + (" !" if row.isolated_differs else ""),
            str(row.flips) if row.flips else "",
            "" if row.reference_s is None else seconds_text(row.reference_s),
            "" if row.candidate_s is None else seconds_text(row.candidate_s),
            *((bytes_text(row.weight_bytes),) if streamed else ()),
        )
        for row in shown
    ]
    wrong = sum(row.verdict in ("differ", "failed") for row in rows)
    flipped = sum(row.verdict == "flipped" for row in rows)
    note = f"{count_text(len(rows), 'step')}, {wrong} out of tolerance, {flipped} with flips alone"
    if any(row.accumulated is not None for row in rows):
        note += (
            "; errors are relative L2, the largest tensor of the step; the verdict is of the accumulated one; "
            "! isolated error out of its own, tighter tolerance"
        )
    return TableView(
        title="Steps",
        header=header,
        rows=tuple(cells),
        data=tuple(_data(row) for row in shown),
        note=note,
        align="rlllrrrrrr",
    )


def diff_table(journal: Journal, *, module: str = "", differing: bool = False) -> TableView:
    """Return one row per compared tensor.

    Args:
        journal: of a session.
        module: only at or below this module; "" for all.
        differing: only those out of tolerance.
    """
    chosen = [
        diff
        for diff in journal.of_kind(TensorDiff)
        if (not module or diff.stamp.module == module or diff.stamp.module.startswith(module + "."))
        and (not differing or diff.verdict == "differ")
    ]
    cells = [
        (
            diff.name,
            diff.error,
            {"match": "ok", "differ": "DIFFER", "incomparable": "-"}[diff.verdict],
            number_text(diff.max_abs),
            number_text(diff.rel_l2),
            number_text(diff.max_steps),
            diff.note,
        )
        for diff in chosen
    ]
    return TableView(
        title="Tensors compared",
        header=("tensor", "error", "verdict", "max abs", "rel L2", "steps", "note"),
        rows=tuple(cells),
        data=tuple(diff.to_json() for diff in chosen),
        note="" if chosen else "no tensor was compared; a session needs a candidate side for that",
        align="plrrrrl",
    )


def flip_table(journal: Journal) -> TableView:
    """Return one row per discrete choice that flipped; rounding is not in here."""
    flips = [flip for flip in journal.of_kind(DiscreteFlip) if flip.flipped_rows]
    cells = [
        (
            flip.name,
            flip.stamp.phase,
            flip.error,
            f"{flip.flipped_rows} of {flip.rows}",
            "-" if flip.first_row is None else str(flip.first_row),
        )
        for flip in flips
    ]
    return TableView(
        title="Choices that flipped",
        header=("choice", "phase", "error", "rows", "first row"),
        rows=tuple(cells),
        data=tuple(flip.to_json() for flip in flips),
        note="" if flips else "both sides chose the same experts and entries wherever they were compared",
        align="llllr",
    )


def _take(row: StepRow, record: TensorDiff | DiscreteFlip | StepFailure) -> None:
    if isinstance(record, StepFailure):
        row.verdict = "failed"
    elif isinstance(record, DiscreteFlip):
        row.compared += record.error == "accumulated"
        if record.error == "accumulated":
            # By name, since a search may compare a step once more.
            row.flips_by_choice[record.name] = record.flipped_rows
    elif record.error == "isolated":
        row.isolated = _larger(row.isolated, record.rel_l2)
        row.isolated_differs |= record.verdict == "differ"
    else:
        row.compared += 1
        row.incomparable += record.verdict == "incomparable"
        if record.rel_l2 is not None and (row.accumulated is None or record.rel_l2 > row.accumulated):
            row.accumulated, row.worst = record.rel_l2, record.name
        if record.verdict == "differ" and row.verdict != "failed":
            row.verdict = "differ"


def _judged(row: StepRow) -> StepRow:
    if row.verdict == "observed" and row.compared:
        row.verdict = "flipped" if row.flips else "incomparable" if row.incomparable == row.compared else "match"
    return row


def _larger(one: float | None, two: float | None) -> float | None:
    found = [value for value in (one, two) if value is not None]
    return max(found) if found else None


def _data(row: StepRow) -> dict[str, Json]:
    return {
        "step": row.step,
        "module": row.module,
        "phase": row.phase,
        "kind": row.kind,
        "verdict": row.verdict,
        "accumulated_rel_l2": row.accumulated,
        "isolated_rel_l2": row.isolated,
        "isolated_differs": row.isolated_differs,
        "worst_tensor": row.worst,
        "flipped_rows": row.flips,
        "reference_s": row.reference_s,
        "candidate_s": row.candidate_s,
        "weight_bytes": row.weight_bytes,
    }
