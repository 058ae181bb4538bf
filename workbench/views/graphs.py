"""Graph breaks as a table and as a report with source lines, reasons and advice; recompiles as a table.

Which modules run in which graph is drawn by `graph_map`. All of it from records: a journal, or any records.
"""

from __future__ import annotations

import html
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import cast

from workbench.records.base import Json, to_plain
from workbench.records.graphs import GraphBreak, GraphSummary, Recompile
from workbench.units import count_text
from workbench.views.base import TableView
from workbench.views.graph_map import GraphMap, graph_map

__all__ = ["BreakReport", "GraphMap", "break_report", "break_table", "graph_map", "recompile_table"]

_WIDTH = 100
_MODULES_SHOWN = 6


def break_table(source: Iterable[object]) -> TableView:
    """Return one row per break: where, what kind, how often, what Dynamo did with the frame.

    Look first at breaks in loops and at skipped frames: there everything around the line runs eagerly too. "behind" is
    a break that shows only once an earlier one is gone.

    Args:
        source: a journal, or records; others than those of captures are passed over.
    """
    entries = list(source)
    breaks = [one for one in entries if isinstance(one, GraphBreak)]
    rows = tuple(
        (
            str(number),
            f"{one.file}:{one.line}",
            one.reason_class,
            one.registry_id or "-",
            "-" if one.calls is None else str(one.calls),
            _fate(one),
            _modules_text(one.modules) or "-",
        )
        for number, one in enumerate(breaks, start=1)
    )
    return TableView(
        title="Graph breaks",
        header=("#", "place", "kind", "id", "reached", "effect", "modules"),
        rows=rows,
        data=tuple(_plain(one) for one in breaks),
        note="; ".join(_notes(entries)),
        align="rpllrll",
    )


def break_report(source: Iterable[object]) -> BreakReport:
    """Return every break with its source line, Dynamo's reason and advice, and the way to it; see `break_table`."""
    entries = list(source)
    return BreakReport(
        breaks=tuple(one for one in entries if isinstance(one, GraphBreak)),
        note="\n".join(line for text in _notes(entries) for line in _wrapped(text, "")),
    )


def recompile_table(source: Iterable[object]) -> TableView:
    """Return one row per function that was compiled again, with the guard that failed."""
    recompiles = [one for one in source if isinstance(one, Recompile)]
    return TableView(
        title="Recompiles",
        header=("function", "place", "guard that failed"),
        rows=tuple((one.function, f"{one.file}:{one.line}", _one_line(one.reason)) for one in recompiles),
        data=tuple(_plain(one) for one in recompiles),
        align="lpl",
    )


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class BreakReport:
    """Breaks one after the other, as an engineer reads them.

    Attributes:
        breaks: in order of appearance.
        note: what the captures say of themselves, "" for none.
    """

    breaks: tuple[GraphBreak, ...]
    note: str

    def __str__(self) -> str:
        parts = ["\n".join(_text_of(number, one)) for number, one in enumerate(self.breaks, start=1)]
        return "\n\n".join([*(parts or ["Graph breaks: (nothing)"]), *([self.note] if self.note else [])])

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        parts = [_html_of(number, one) for number, one in enumerate(self.breaks, start=1)]
        note = f"<p>{html.escape(self.note)}</p>" if self.note else ""
        return f"<section><h3>Graph breaks</h3>{''.join(parts) or '<p>(nothing)</p>'}{note}</section>"

    def to_dict(self) -> dict[str, Json]:
        """Return the breaks with every field, and the note."""
        return {"title": "Graph breaks", "breaks": [_plain(one) for one in self.breaks], "note": self.note}


def _text_of(number: int, one: GraphBreak) -> list[str]:
    kind = f"{one.reason_class} ({one.registry_id})" if one.registry_id else one.reason_class
    rest = f":{one.line} in {one.function}: {kind}"
    room = _WIDTH - len(rest) - len(f"{number}. ")
    # The end of a path tells more than its beginning.
    file = one.file if len(one.file) <= room else "…" + one.file[len(one.file) - max(room - 1, 0) :]
    lines = [_cut(f"{number}. {file}{rest}")]
    source = one.text if len(one.text) <= _WIDTH - 6 else one.text[: _WIDTH - 7] + "…"
    lines += [f"    > {source}", f"      {'^' * len(source)}"]
    lines += _wrapped(one.reason, "    ")
    lines += _wrapped("; ".join(_facts(one)), "    ")
    if one.explanation and one.explanation != one.reason:
        lines += _wrapped(one.explanation, "    why: ")
    for hint in one.hints:
        lines += _wrapped(hint, "    try: ")
    for frame in one.frames[1:]:
        lines.append(_cut(f"    from {frame.file}:{frame.line} in {frame.function}: {frame.text}"))
    return lines


def _html_of(number: int, one: GraphBreak) -> str:
    frames = "".join(
        f"<li><code>{html.escape(f'{frame.file}:{frame.line}')}</code> in {html.escape(frame.function)}: "
        f"<code>{html.escape(frame.text)}</code></li>"
        for frame in one.frames[1:]
    )
    hints = "".join(f"<li>{html.escape(hint)}</li>" for hint in one.hints)
    kind = f"{one.reason_class} ({one.registry_id})" if one.registry_id else one.reason_class
    return (
        f"<h4>{number}. <code>{html.escape(f'{one.file}:{one.line}')}</code> {html.escape(kind)}</h4>"
        f"<pre><mark>{html.escape(one.text)}</mark></pre>"
        f"<p><b>{html.escape(one.reason)}</b><br>{html.escape('; '.join(_facts(one)))}</p>"
        + (f"<p>{html.escape(one.explanation)}</p>" if one.explanation else "")
        + (f"<ul>{hints}</ul>" if hints else "")
        + (f"<details><summary>reached from</summary><ol>{frames}</ol></details>" if frames else "")
    )


def _facts(one: GraphBreak) -> list[str]:
    facts = ["in a loop"] if one.in_loop else []
    facts.append("the whole frame runs eagerly" if one.frame_skipped else "Dynamo goes on after it")
    if one.calls is not None:
        facts.append(f"reached {count_text(one.calls, 'time')}")
    if one.modules:
        facts.append(f"by {_modules_text(one.modules)}")
    if one.intentional:
        facts.append("asked for by the author")
    if one.pass_index:
        facts.append("behind an earlier break: a plain run does not show it")
    return facts


def _fate(one: GraphBreak) -> str:
    words = ["eager frame" if one.frame_skipped else "goes on"]
    words += ["loop"] if one.in_loop else []
    words += ["behind"] if one.pass_index else []
    words += ["asked for"] if one.intentional else []
    return ", ".join(words)


def _modules_text(modules: Sequence[str]) -> str:
    names = [name or "(root)" for name in modules]
    more = len(names) - _MODULES_SHOWN
    return ", ".join(names[:_MODULES_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _notes(entries: Sequence[object]) -> list[str]:
    summaries = [one for one in entries if isinstance(one, GraphSummary)]
    lines: list[str] = []
    for one in summaries:
        phase = f"{one.stamp.phase}: " if one.stamp.phase else ""
        lines.append(
            f"{phase}{count_text(one.break_sites, 'break')}, {count_text(one.graph_count, 'graph')}, "
            f"{count_text(one.recompile_count, 'recompile')}, "
            f"{count_text(one.skipped_frames, 'function')} wholly eager (backend {one.backend!r})"
        )
        lines.append("every line reached was examined" if one.complete else "not every line reached was examined")
        lines += [f"note: {_one_line(warning)}" for warning in one.warnings]
    return lines


def _wrapped(text: str, lead: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent=lead, subsequent_indent=" " * len(lead)) if text else []


def _cut(line: str) -> str:
    return line if len(line) <= _WIDTH else line[: _WIDTH - 1] + "…"


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _plain(value: object) -> dict[str, Json]:
    return cast("dict[str, Json]", to_plain(value))
