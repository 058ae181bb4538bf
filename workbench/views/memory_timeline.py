"""Bytes over the events of a memory run, by role: what was held when, and where the peak stands."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from textwrap import wrap
from typing import TYPE_CHECKING, Any, cast

from workbench.records.base import Json
from workbench.records.memory import Allocation, Counts, MemoryPeak, Role
from workbench.units import bytes_text, count_text, table_text
from workbench.views.base import html_table
from workbench.views.memory_roles import ROLES, look_of
from workbench.views.memory_runs import MemoryRun, Source, last_run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MOST_POINTS = 600
_TEXT_ROWS = 24
_BAR = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelinePoint:
    """The run's own bytes after one event.

    Attributes:
        event: number of the birth or death.
        nbytes: by role.
        op: operation of the birth, "" for a death.
        owner: of the storage born or given back.
    """

    event: int
    nbytes: dict[Role, int]
    op: str
    owner: str

    @property
    def total(self) -> int:
        """Bytes of all roles."""
        return sum(self.nbytes.values())


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class MemoryTimeline:
    """What was held over a run.

    Attributes:
        title: what is shown.
        points: in order; of a long run the highest point of each stretch, so that no peak is lost.
        baseline: bytes alive before the run, by role.
        peak: the answer, None for an empty view.
        events: births and deaths of the run.
    """

    title: str
    points: tuple[TimelinePoint, ...]
    baseline: dict[Role, int]
    peak: MemoryPeak | None
    events: int

    def __str__(self) -> str:
        if not self.points:
            return f"{self.title}\n(nothing)"
        return "\n".join([self.title, table_text(_HEADER, self._cells(), align="rrlpl"), *wrap(self._note, width=100)])

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return html_table(self.title, _HEADER, self._cells(), self._note, "rrlpl")

    def to_dict(self) -> dict[str, Json]:
        """Return points and baseline as data."""
        points: list[Json] = [
            {
                "event": point.event,
                "bytes": {role: size for role, size in point.nbytes.items()},
                "op": point.op,
                "owner": point.owner,
            }
            for point in self.points
        ]
        baseline: dict[str, Json] = {role: size for role, size in self.baseline.items()}
        return {"title": self.title, "points": points, "baseline": baseline, "events": self.events}

    def figure(self, *, baseline: bool = False) -> Figure:
        """Return stacked areas over the events, one a role with a colour and a hatch; the peak is marked.

        Args:
            baseline: draw also what was there before the run, below.
        """
        from matplotlib.figure import Figure

        figure = Figure(figsize=(10.0, 4.5), layout="constrained")
        # matplotlib types the keywords of its methods as unknown.
        axes = cast("Any", figure.add_subplot())
        axes.set_title(self.title, loc="left", fontsize=10)
        axes.set_xlabel("birth or death of a storage, in order")
        axes.set_ylabel("MiB" if baseline else "MiB above what was there before")
        if not self.points:
            axes.text(0.5, 0.5, "nothing was allocated", ha="center", va="center", transform=axes.transAxes)
            return figure
        events = [0, *(point.event for point in self.points)]
        floor = [0.0] * len(events)
        for role in ROLES:
            base = self.baseline.get(role, 0) if baseline else 0
            sizes = [base / 2**20, *((base + point.nbytes.get(role, 0)) / 2**20 for point in self.points)]
            if not any(sizes):
                continue
            colour, hatch = look_of(role)
            top = [low + size for low, size in zip(floor, sizes, strict=True)]
            axes.fill_between(
                events,
                floor,
                top,
                step="post",
                facecolor=colour,
                hatch=hatch,
                edgecolor="white",
                linewidth=0,
                label=role,
            )
            floor = top
        if self.peak is not None:
            height = self.peak.peak_bytes_above_baseline + (sum(self.baseline.values()) if baseline else 0)
            label = f"peak: {self.peak.peak_op}"
            axes.plot(
                [self.peak.peak_event], [height / 2**20], marker="v", color="black", linestyle="none", label=label
            )
        axes.set_ylim(bottom=0)
        axes.legend(fontsize=8, loc="upper left")
        return figure

    def _cells(self) -> list[tuple[str, ...]]:
        highest = max((point.total for point in self.points), default=0) or 1
        shown = _highest_of_each(self.points, _TEXT_ROWS)
        return [
            (
                str(point.event),
                bytes_text(point.total),
                "#" * round(_BAR * point.total / highest),
                point.owner or "(root)",
                point.op or "given back",
            )
            for point in shown
        ]

    @property
    def _note(self) -> str:
        shown = min(len(self.points), _TEXT_ROWS)
        note = f"{count_text(self.events, 'event')}; before the run: {bytes_text(sum(self.baseline.values()))}"
        return note if shown == self.events else f"{note}; of each stretch its highest point is shown"


_HEADER = ("event", "bytes", "above what was there before", "owner", "operation")


def memory_timeline(source: Source, *, device: str | None = None, counts: Counts | None = None) -> MemoryTimeline:
    """Return bytes over the events of the latest memory run.

    Args:
        source: a journal, findings, or records.
        device: which device; None for the main one.
        counts: "tensors" or "allocator"; None for the one that counts more, where it was counted.
    """
    run = last_run(source, device=device, counts=counts)
    baseline: dict[Role, int] = {}
    for one in run.baseline:
        baseline[one.role] = baseline.get(one.role, 0) + one.nbytes
    events, points = _points(run)
    if run.peak is None:
        title = "Memory over the run: no memory run recorded"
    else:
        above = bytes_text(run.peak.peak_bytes_above_baseline)
        title = f"Memory over the run on {run.peak.device}: peak {above} above {bytes_text(run.peak.baseline_bytes)}"
    return MemoryTimeline(
        title=title,
        points=points,
        baseline=baseline,
        peak=run.peak,
        events=events,
    )


def _points(run: MemoryRun) -> tuple[int, tuple[TimelinePoint, ...]]:
    """Return how many events there are, and the highest point of each of at most `_MOST_POINTS` equal stretches."""
    changes: list[tuple[int, int, Allocation]] = [(one.born, one.nbytes, one) for one in run.own]
    changes += [(one.died, -one.nbytes, one) for one in run.own if one.died is not None]
    live: dict[Role, int] = {}
    total = 0
    points: list[TimelinePoint] = []
    stretch = -1
    for index, (event, nbytes, one) in enumerate(sorted(changes, key=lambda change: change[0])):
        live[one.role] = live.get(one.role, 0) + nbytes
        total += nbytes
        begins = index * _MOST_POINTS // max(len(changes), _MOST_POINTS) != stretch
        if begins or total > points[-1].total:
            op = one.op if nbytes > 0 else ""
            point = TimelinePoint(event=event, nbytes=dict(live), op=op, owner=one.owner)
            points[len(points) if begins else -1 :] = [point]
        if begins:
            stretch = index * _MOST_POINTS // max(len(changes), _MOST_POINTS)
    return len(changes), tuple(points)


def _highest_of_each(points: tuple[TimelinePoint, ...], most: int) -> tuple[TimelinePoint, ...]:
    """Return at most `most` points: the highest of each of as many equal stretches."""
    if len(points) <= most:
        return points
    edges = [len(points) * index // most for index in range(most + 1)]
    return tuple(max(points[low:high], key=lambda point: point.total) for low, high in pairwise(edges))
