"""A map of one capture: which modules' code runs in which graph, and which runs in none.

Many graphs in a row mean many launches; a module in no graph runs operation by operation.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from workbench.records.base import Json
from workbench.records.graphs import CapturedGraph, GraphBreak, GraphSummary
from workbench.units import count_text, table_text
from workbench.views.base import HATCHES, PALETTE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MOST_ROWS = 40
_NO_GRAPH = "#BBBBBB"


@dataclass(frozen=True, slots=True, kw_only=True)
class MapRow:
    """One module, or all modules below a path.

    Attributes:
        module: path; "" for the root itself.
        graphs: indices of the graphs that hold code of it.
        breaks: numbers, from 1, of the breaks reached through it.
        ran: its code was seen to run; None where that was not watched.
    """

    module: str
    graphs: tuple[int, ...]
    breaks: tuple[int, ...]
    ran: bool | None

    @property
    def label(self) -> str:
        """Name to show."""
        return self.module or "(root)"

    @property
    def note(self) -> str:
        """What the graphs do not say."""
        return "in no graph: runs eagerly, or has no operations of its own" if self.ran and not self.graphs else ""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class GraphMap:
    """Modules against graphs.

    Attributes:
        rows: in order of first appearance.
        node_counts: operations of each graph, by index.
        truncated: rows left out at the end.
    """

    rows: tuple[MapRow, ...]
    node_counts: tuple[int, ...]
    truncated: int = 0

    def __str__(self) -> str:
        if not self.rows:
            return f"{self._title}\n(nothing)"
        cells = [(row.label, _ranges(row.graphs) or "-", _numbers(row.breaks), row.note) for row in self.rows]
        parts = [self._title, table_text(("module", "graphs", "breaks", "note"), cells, align="plll")]
        if self.truncated:
            parts.append(f"{count_text(self.truncated, 'row')} more; give a smaller depth to see all in fewer rows")
        return "\n".join(parts)

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        head = "".join(
            f'<th scope="col" title="{count_text(nodes, "operation")}">{index}</th>'
            for index, nodes in enumerate(self.node_counts)
        )
        body = "".join(
            f'<tr><th scope="row" style="text-align:left">{html.escape(row.label)}</th>'
            + "".join(_html_cell(index, index in row.graphs) for index in range(len(self.node_counts)))
            + f"<td>{html.escape(_numbers(row.breaks))}</td><td>{html.escape(row.note)}</td></tr>"
            for row in self.rows
        )
        caption = f"<caption>{html.escape(self._title)}</caption>"
        if not self.rows:
            return f"<table>{caption}<tbody><tr><td>(nothing)</td></tr></tbody></table>"
        return (
            f"<table>{caption}<thead><tr><th>module</th>{head}<th>breaks</th><th></th></tr></thead>"
            f"<tbody>{body}</tbody></table>"
        )

    def to_dict(self) -> dict[str, Json]:
        """Return rows and graphs as data."""
        rows: list[Json] = [
            {"module": row.module, "graphs": list(row.graphs), "breaks": list(row.breaks), "ran": row.ran}
            for row in self.rows
        ]
        graphs: list[Json] = [{"index": index, "node_count": nodes} for index, nodes in enumerate(self.node_counts)]
        return {"title": self._title, "rows": rows, "graphs": graphs, "truncated": self.truncated}

    def figure(self) -> Figure:
        """Return the map drawn: a column a graph, a row a module; a grey hatched bar is a module in no graph.

        Colours and hatches repeat after eight graphs and only tell neighbours apart; the column is what counts.
        """
        from matplotlib.figure import Figure
        from matplotlib.patches import Rectangle

        columns, count = max(1, len(self.node_counts)), max(1, len(self.rows))
        figure = Figure(figsize=(min(16.0, 4.0 + 0.35 * columns), min(14.0, 1.2 + 0.26 * count)), layout="constrained")
        # matplotlib types the keywords of its methods as unknown.
        axes = cast("Any", figure.add_subplot())
        axes.set_title(self._title, loc="left", fontsize=10)
        if not self.rows:
            axes.text(0.5, 0.5, "no graph was captured", ha="center", va="center", transform=axes.transAxes)
        for place, row in enumerate(self.rows):
            for index in row.graphs:
                look = index % len(PALETTE)
                patch = Rectangle(
                    (index - 0.45, place - 0.4),
                    0.9,
                    0.8,
                    facecolor=PALETTE[look],
                    hatch=HATCHES[look],
                    edgecolor="white",
                )
                axes.add_patch(patch)
            if row.note:
                bar = Rectangle(
                    (-0.45, place - 0.4), columns - 0.1, 0.8, facecolor="white", hatch="////", edgecolor=_NO_GRAPH
                )
                axes.add_patch(bar)
            if row.breaks:
                axes.text(columns - 0.4, place, f"break {_numbers(row.breaks)}", va="center", fontsize=8)
        axes.set_xlim(-0.6, columns + 0.4)
        axes.set_ylim(count - 0.4, -0.6)
        axes.set_yticks(range(len(self.rows)), [row.label for row in self.rows], fontsize=8)
        axes.set_xticks(
            range(len(self.node_counts)), [str(index) for index in range(len(self.node_counts))], fontsize=8
        )
        axes.set_xlabel("graph, in order of compilation")
        return figure

    @property
    def _title(self) -> str:
        total = sum(self.node_counts)
        return f"Modules by graph: {count_text(len(self.node_counts), 'graph')}, {count_text(total, 'operation')}"


def graph_map(source: Iterable[object], *, depth: int | None = None, capture: int = -1) -> GraphMap:
    """Return which modules run in which graph.

    Args:
        source: a journal, or records.
        depth: parts of a module path to keep, at least 1; None for as many as give 40 rows at most.
        capture: which capture of a journal that holds several, in order; the last by default.

    Raises:
        ValueError: `depth` below 1.
    """
    if depth is not None and depth < 1:
        raise ValueError(f"depth: expected at least 1, found {depth}")
    graphs, breaks, summary = _capture(source, capture)
    ran = summary.modules if summary is not None else ()
    named = [(graph.index, module) for graph in graphs for module in graph.modules]
    modules = list(dict.fromkeys([*ran, *(module for _, module in named)]))
    kept = depth or _fitting_depth(modules)
    rows: dict[str, MapRow] = {}
    for label in dict.fromkeys(_shortened(module, kept) for module in modules):
        inside = tuple(sorted({index for index, module in named if _shortened(module, kept) == label}))
        stops = tuple(
            number
            for number, one in enumerate(breaks, start=1)
            if any(_shortened(module, kept) == label for module in one.modules)
        )
        seen = any(_shortened(module, kept) == label for module in ran) if ran else None
        rows[label] = MapRow(module=label, graphs=inside, breaks=stops, ran=seen)
    shown = tuple(rows.values())[:_MOST_ROWS] if depth is None else tuple(rows.values())
    return GraphMap(
        rows=shown, node_counts=tuple(graph.node_count for graph in graphs), truncated=len(rows) - len(shown)
    )


def _capture(source: Iterable[object], which: int) -> tuple[list[CapturedGraph], list[GraphBreak], GraphSummary | None]:
    """Return the records of one capture; a summary ends each."""
    captures: list[tuple[list[CapturedGraph], list[GraphBreak], GraphSummary | None]] = []
    graphs: list[CapturedGraph] = []
    breaks: list[GraphBreak] = []
    for one in source:
        if isinstance(one, CapturedGraph):
            graphs.append(one)
        elif isinstance(one, GraphBreak):
            breaks.append(one)
        elif isinstance(one, GraphSummary):
            captures.append((graphs, breaks, one))
            graphs, breaks = [], []
    if graphs or breaks:
        captures.append((graphs, breaks, None))
    if not captures:
        return [], [], None
    if not -len(captures) <= which < len(captures):
        raise ValueError(f"capture: expected 0 to {len(captures) - 1}, found {which}")
    return captures[which]


def _fitting_depth(modules: Sequence[str]) -> int:
    deepest = max((module.count(".") + 1 for module in modules), default=1)
    fitting = [
        depth for depth in range(1, deepest + 1) if len({_shortened(one, depth) for one in modules}) <= _MOST_ROWS
    ]
    return max(fitting, default=1)


def _shortened(module: str, depth: int) -> str:
    return ".".join(module.split(".")[:depth])


def _ranges(numbers: Sequence[int]) -> str:
    """Return sorted numbers as `0-3, 7`."""
    parts: list[str] = []
    start: int | None = None
    for place, number in enumerate(numbers):
        start = number if start is None else start
        if place + 1 == len(numbers) or numbers[place + 1] != number + 1:
            parts.append(str(start) if start == number else f"{start}-{number}")
            start = None
    return ", ".join(parts)


def _numbers(breaks: Sequence[int]) -> str:
    return ", ".join(f"#{number}" for number in breaks)


def _html_cell(index: int, inside: bool) -> str:
    if not inside:
        return "<td></td>"
    return f'<td style="background:{PALETTE[index % len(PALETTE)]};text-align:center">■</td>'
