"""What every picture or table of a journal can do: be text, HTML, data and, where a picture, a matplotlib figure."""

from __future__ import annotations

import html
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from workbench.records.base import Json
from workbench.units import table_text

# Okabe and Ito's eight colours: told apart with every common colour vision; always joined by a hatch, marker or word.
PALETTE: tuple[str, ...] = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#000000")
HATCHES: tuple[str, ...] = ("", "///", "...", "xxx", "\\\\\\", "+++", "ooo", "---")


@runtime_checkable
class View(Protocol):
    """A function of a journal that can be shown."""

    def __str__(self) -> str:
        """Plain text, deterministic, at most 100 columns."""
        ...

    def _repr_html_(self) -> str:
        """Self-contained HTML; no script and no network."""
        ...

    def to_dict(self) -> dict[str, Json]:
        """The same content as data."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TableView:
    """A table with a title and an optional line below it.

    Attributes:
        title: what the reader sees.
        header: column titles.
        rows: cells as text.
        data: one dict per row with the unrounded values; what `to_dict` and a DataFrame get.
        note: a line under the table, "" for none.
        align: see `units.table_text`.
    """

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    data: tuple[dict[str, Json], ...]
    note: str = ""
    align: str = ""

    def __str__(self) -> str:
        parts = [self.title, table_text(self.header, self.rows, align=self.align) if self.rows else "(nothing)"]
        return "\n".join([*parts, *textwrap.wrap(self.note, width=100)])

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return html_table(self.title, self.header, self.rows, self.note, self.align)

    def to_dict(self) -> dict[str, Json]:
        """Return title, note and the rows as dicts."""
        return {"title": self.title, "rows": list(self.data), "note": self.note}


def html_table(
    title: str, header: Sequence[str], rows: Sequence[Sequence[str]], note: str = "", align: str = ""
) -> str:
    """Return a self-contained HTML table; every cell is escaped."""
    modes = (align + "l" * len(header))[: len(header)]
    side = ["text-align:right" if mode == "r" else "text-align:left" for mode in modes]
    head = "".join(
        f'<th scope="col" style="{css}">{html.escape(text)}</th>' for css, text in zip(side, header, strict=True)
    )
    body = "".join(
        "<tr>"
        + "".join(
            f'<td style="{css};white-space:pre-line">{html.escape(cell)}</td>'
            for css, cell in zip(side, row, strict=True)
        )
        + "</tr>"
        for row in rows
    )
    foot = f"<p>{html.escape(note)}</p>" if note else ""
    caption = f"<caption>{html.escape(title)}</caption>"
    return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{foot}"
