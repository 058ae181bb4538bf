"""What a look at this machine found, as a value that can be shown: text, HTML, data."""

from __future__ import annotations

import html
import textwrap
from dataclasses import dataclass
from typing import Literal

from workbench.records.base import Json, to_plain

State = Literal["ok", "note", "missing", "problem"]
Basis = Literal["measured", "documented", "inferred"]

_WIDTH = 100
_WORD: dict[State, str] = {"ok": "ok", "note": "note", "missing": "missing", "problem": "PROBLEM"}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementLine:
    """Whether one placement runs here.

    Attributes:
        name: of the placement.
        able: the answer.
        found: what was tried and came out, or what stands in the way.
        advice: what to do, "" where nothing needs doing.
        basis: what the answer rests on.
    """

    name: str
    able: bool
    found: str
    advice: str
    basis: Basis


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One thing that was looked at.

    Attributes:
        topic: heading it stands under.
        name: of the thing.
        state: "ok", "note" (worth knowing), "missing" (an optional part is not here), "problem".
        found: what was found.
        advice: what to do, "" where nothing needs doing.
        basis: what `found` and `advice` rest on.
    """

    topic: str
    name: str
    state: State
    found: str
    advice: str = ""
    basis: Basis = "measured"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class DoctorReport:
    """Everything that was looked at, placements first."""

    placements: tuple[PlacementLine, ...]
    lines: tuple[Line, ...]

    def able(self, placement: str) -> bool:
        """Say whether a placement runs here.

        Raises:
            KeyError: it was not looked at.
        """
        return {line.name: line.able for line in self.placements}[placement]

    def __str__(self) -> str:
        parts = ["Placements: where one side of a session can run on this machine"]
        for place in self.placements:
            word = "able" if place.able else "NOT ABLE"
            parts += _entry(f"{place.name:<8} {word:<8}", place.found, place.advice, place.basis)
        for topic in dict.fromkeys(line.topic for line in self.lines):
            parts += ["", topic]
            for line in self.lines:
                if line.topic == topic:
                    parts += _entry(f"{_WORD[line.state]:<8} {line.name}:", line.found, line.advice, line.basis)
        return "\n".join(parts)

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        rows = [("placement", p.name, "able" if p.able else "NOT ABLE", p.found, p.advice, p.basis)
                for p in self.placements]  # fmt: skip
        rows += [(o.topic, o.name, _WORD[o.state], o.found, o.advice, o.basis) for o in self.lines]
        header = ("topic", "what", "state", "found", "to do", "basis")
        head = "".join(f'<th scope="col" style="text-align:left">{text}</th>' for text in header)
        body = "".join(f"<tr>{''.join(f'<td style={_LEFT}>{html.escape(cell)}</td>' for cell in row)}</tr>"
                       for row in rows)  # fmt: skip
        caption = "<caption>What this machine can run</caption>"
        return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"

    def to_dict(self) -> dict[str, Json]:
        """Return both lists as data."""
        return {"placements": to_plain(self.placements), "lines": to_plain(self.lines)}


_LEFT = '"text-align:left;vertical-align:top"'


def _entry(start: str, found: str, advice: str, basis: str) -> list[str]:
    ending = "" if basis == "measured" else f" [{basis}]"
    lines = _wrapped(f"{start} {found}{ending}", 2, 11)
    if advice:
        lines += _wrapped(f"do: {advice}", 11, 15)
    return lines


def _wrapped(text: str, first: int, rest: int) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent=" " * first, subsequent_indent=" " * rest, break_on_hyphens=False)
