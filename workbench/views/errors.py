"""Error by step as a picture: what each step adds, and what it inherits."""

# matplotlib leaves some of its keyword arguments without a type.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from workbench.journal import Journal
from workbench.records.base import Json
from workbench.units import number_text
from workbench.views.base import PALETTE, html_table
from workbench.views.steps import SHOWN_AS, StepRow, step_rows

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_FLOOR = 1e-9
"""Errors of 0 are drawn here: a logarithm has no place for them."""

_BAR_WIDTH = 30


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ErrorPlot:
    """Accumulated and isolated error of every compared step.

    Look for the step where the isolated error jumps: that one is wrong by itself. Where only the accumulated error
    grows, the step merely passes on what it got.

    Attributes:
        rows: the compared steps, in order.
    """

    rows: tuple[StepRow, ...]

    def __str__(self) -> str:
        lines = ["Error by step (relative L2; # accumulated, o isolated; a bar's length is its decade)"]
        for row in self.rows:
            bar = _bar(row.accumulated, "#")
            lines.append(f"{row.step:>4} {row.module:<22.22} {number_text(row.accumulated):>9} {bar}")
            if row.isolated is not None:
                lines.append(f"{'':>4} {'':<22} {number_text(row.isolated):>9} {_bar(row.isolated, 'o')}")
        return "\n".join(lines if self.rows else [lines[0], "(nothing was compared)"])

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        cells = [
            (str(row.step), row.module, SHOWN_AS[row.verdict], number_text(row.accumulated), number_text(row.isolated))
            for row in self.rows
        ]
        return html_table("Error by step", ("step", "module", "verdict", "accumulated", "isolated"), cells)

    def to_dict(self) -> dict[str, Json]:
        """Return the points of the picture."""
        points: list[Json] = [
            {"step": row.step, "module": row.module, "accumulated": row.accumulated, "isolated": row.isolated}
            for row in self.rows
        ]
        return {"title": "Error by step", "points": points}

    def figure(self) -> Figure:
        """Return a matplotlib figure: two marked lines over the steps, the wrong steps named."""
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator

        figure = Figure(figsize=(9, 4), layout="constrained")
        axes = figure.add_subplot()
        lines = (("accumulated", PALETTE[0], "s", "-"), ("isolated", PALETTE[5], "o", "--"))
        for name, colour, marker, style in lines:
            points = [(row.step, getattr(row, name)) for row in self.rows if getattr(row, name) is not None]
            if points:
                axes.plot(
                    [step for step, _ in points],
                    [max(error, _FLOOR) for _, error in points],
                    color=colour,
                    marker=marker,
                    linestyle=style,
                    markersize=4,
                    label=name,
                )
        axes.set_yscale("log")
        axes.set_ylim(bottom=_FLOOR / 2)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlabel("step")
        axes.set_ylabel(f"relative L2 error (0 drawn at {_FLOOR:g})")
        first = next((row for row in self.rows if row.verdict in ("differ", "flipped", "failed")), None)
        if first is not None:
            axes.axvline(first.step, color=PALETTE[7], linestyle=":", linewidth=1)
            what = "flipped choice" if first.verdict == "flipped" else "out of tolerance"
            axes.set_title(f"first {what}, accumulated: {first.module} (step {first.step})", loc="left", fontsize=10)
        if self.rows:
            axes.legend()
        else:
            axes.text(0.5, 0.5, "nothing was compared", ha="center", transform=axes.transAxes)
        return figure


def error_plot(journal: Journal) -> ErrorPlot:
    """Return the picture of a session's errors, step by step."""
    rows = [row for row in step_rows(journal.records) if row.accumulated is not None or row.isolated is not None]
    return ErrorPlot(rows=tuple(rows))


def _bar(error: float | None, sign: str) -> str:
    if error is None or error <= _FLOOR:
        return ""
    import math

    decades = math.log10(error / _FLOOR)
    return sign * max(1, min(_BAR_WIDTH, round(decades * 3)))
