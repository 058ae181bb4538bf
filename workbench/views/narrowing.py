"""How a bisection narrowed, as a picture: a column a trial, coloured where something was kept."""

# matplotlib leaves some of its keyword arguments without a type.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from workbench.journal import Journal
from workbench.records import Record
from workbench.records.base import Json, to_plain
from workbench.records.compiling import CompileTrial, FailureSignature
from workbench.units import count_text
from workbench.views.base import HATCHES, PALETTE
from workbench.views.bisection import SIMULATED, cut_text, records_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_TEXT_WIDTH = 56
_FAILS, _PASSES, _OTHER = "fails", "passes", "other"
_SIGNS = {_FAILS: "#", _PASSES: "-", _OTHER: "?"}
_LEGEND = {_FAILS: "fails in the same way", _PASSES: "compiles", _OTHER: "another failure, or no answer"}


@dataclass(frozen=True, slots=True, kw_only=True)
class NarrowingStep:
    """One trial in the picture.

    Attributes:
        number: of the trial, from 1.
        kept: half-open runs of items kept, by place in the whole.
        answer: "fails", "passes" or "other".
        phase: of the search.
    """

    number: int
    kept: tuple[tuple[int, int], ...]
    answer: str
    phase: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NarrowingLevel:
    """One level in the picture.

    Attributes:
        items: names of the whole, in order.
        steps: its trials, in order.
        simulated: the compiler was a planted fault.
    """

    items: tuple[str, ...]
    steps: tuple[NarrowingStep, ...]
    simulated: bool


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class NarrowingPlot:
    """Which items each trial kept, and what came of it.

    Read it from left to right: every column is a trial, the coloured runs are what was kept. Where the columns that
    fail grow short, the search closes in; a column that compiles shows what may not be left out.

    Attributes:
        levels: coarse to fine.
    """

    levels: tuple[NarrowingLevel, ...]

    def __str__(self) -> str:
        lines = ["Narrowing (one line a trial; # kept and fails, - kept and compiles, ? kept and something else)"]
        for level in self.levels:
            simulated = f" [{SIMULATED}]" if level.simulated else ""
            lines.append(f"{count_text(len(level.items), 'item')}{simulated}"[:100])
            lines += [f"{step.number:>5} {step.phase:<8.8} {_bar(step, len(level.items))}" for step in level.steps]
        return "\n".join(lines if self.levels else [lines[0], "(nothing was tried)"])

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"

    def to_dict(self) -> dict[str, Json]:
        """Return the columns of the picture."""
        return {"title": "Narrowing", "levels": [to_plain(level) for level in self.levels]}

    def figure(self) -> Figure:
        """Return a matplotlib figure: one panel a level, a column a trial, colour and hatch by what came of it."""
        from matplotlib.figure import Figure
        from matplotlib.patches import Patch
        from matplotlib.ticker import MaxNLocator

        count = max(1, len(self.levels))
        figure = Figure(figsize=(9, 1.2 + 2.6 * count), layout="constrained")
        panels = figure.subplots(count, 1, squeeze=False)[:, 0]
        looks = {
            _FAILS: (PALETTE[5], HATCHES[0]),
            _PASSES: (PALETTE[4], HATCHES[1]),
            _OTHER: (PALETTE[3], HATCHES[2]),
        }
        for axes, level in zip(panels, self.levels, strict=False):
            for step in level.steps:
                colour, hatch = looks[step.answer]
                for begin, end in step.kept:
                    axes.bar(
                        step.number, end - begin, bottom=begin, width=0.8, color=colour, hatch=hatch, edgecolor="white"
                    )
                if not step.kept:
                    axes.plot(step.number, 0, marker="_", color=colour)
            axes.set_ylim(max(1, len(level.items)), 0)
            axes.yaxis.set_major_locator(MaxNLocator(integer=True))
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
            axes.set_ylabel(f"item of {len(level.items)}")
            if len(level.items) <= 16:
                axes.set_yticks([index + 0.5 for index in range(len(level.items))])
                axes.set_yticklabels([cut_text(name, 28) for name in level.items], fontsize="small")
            if level.simulated:
                axes.set_title(SIMULATED, fontsize="small", loc="right")
        if self.levels:
            panels[-1].set_xlabel("trial")
            figure.legend(
                handles=[
                    Patch(facecolor=looks[one][0], hatch=looks[one][1], edgecolor="white", label=_LEGEND[one])
                    for one in looks
                ],
                loc="outside lower center",
                ncols=3,
                fontsize="small",
            )
        else:
            panels[0].text(0.5, 0.5, "nothing was tried", ha="center", transform=panels[0].transAxes)
        return figure


def narrowing_plot(source: Journal | Iterable[Record]) -> NarrowingPlot:
    """Return the picture of what every trial kept, level by level."""
    levels: list[NarrowingLevel] = []
    items: tuple[str, ...] | None = None
    followed: FailureSignature | None = None
    steps: list[NarrowingStep] = []
    simulated = False
    trials = [record for record in records_of(source) if isinstance(record, CompileTrial)]
    for number, trial in enumerate(trials, start=1):
        if trial.phase_of_search in ("whole", "ladder") and trial.subject != items:
            if items is not None:
                levels.append(NarrowingLevel(items=items, steps=tuple(steps), simulated=simulated))
            items, steps, followed, simulated = trial.subject, [], None, trial.simulated
        if items is None:
            continue
        if followed is None and trial.phase_of_search != "ladder":
            followed = trial.signature
        kept = _places(trial.subject, items)
        answer = _answer(trial, followed)
        steps.append(NarrowingStep(number=number, kept=kept, answer=answer, phase=trial.phase_of_search))
    if items is not None:
        levels.append(NarrowingLevel(items=items, steps=tuple(steps), simulated=simulated))
    return NarrowingPlot(levels=tuple(levels))


def _answer(trial: CompileTrial, followed: FailureSignature | None) -> str:
    if trial.outcome == "ok":
        return _PASSES
    found = trial.signature
    if found is None or followed is None:
        return _OTHER
    same = (found.outcome, found.code, found.signal) == (followed.outcome, followed.code, followed.signal)
    return _FAILS if same else _OTHER


def _places(kept: Sequence[str], items: Sequence[str]) -> tuple[tuple[int, int], ...]:
    """Return where the kept names stand in the whole, as half-open runs; both are in the same order."""
    places: list[int] = []
    start = 0
    for name in kept:
        try:
            start = items.index(name, start) + 1
        except ValueError:
            continue
        places.append(start - 1)
    cuts = [0, *(index + 1 for index, (one, two) in enumerate(pairwise(places)) if two != one + 1), len(places)]
    return tuple((places[begin], places[end - 1] + 1) for begin, end in pairwise(cuts) if end > begin)


def _bar(step: NarrowingStep, count: int) -> str:
    width = min(_TEXT_WIDTH, max(1, count))
    cells = ["."] * width
    for begin, end in step.kept:
        first, last = begin * width // count, -(-end * width // count)
        cells[first:last] = _SIGNS[step.answer] * (last - first)
    return "".join(cells)
