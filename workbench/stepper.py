"""The places a session can stop at, and how a name the user types is turned into one.

Pure: no torch, no model. Who runs the steps is in `subjects`.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass

from workbench.errors import StepError


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPoint:
    """One place the stepper can stop: after this module ran.

    Attributes:
        index: place in the program, from 0.
        module: fully qualified name of the module that runs, "" for the whole of a callable.
        kind: embed, engram, attention, ffn, head, or module for a generic one.
        phase: prefill or decode; "" for a generic module.
        forward_pass: 0 for the prefill, then one more for each decode step.
        call: how many times the same module ran before, within the forward pass.
    """

    index: int
    module: str
    kind: str
    phase: str = ""
    forward_pass: int = 0
    call: int = 0

    def __str__(self) -> str:
        where = self.module or "(whole call)"
        if self.call:
            where += f" call {self.call + 1}"
        return f"{where} ({self.phase} {self.forward_pass})" if self.phase == "decode" else where


def point_after(points: Sequence[StepPoint], name: str, position: int) -> int:
    """Return the position reached when everything called `name` has run: the index after its last point.

    Args:
        points: the program.
        name: a module, or a prefix of several as in `layers.3`; `end` for everything, `prefill` for the prefill.
        position: points already run; the first match at or after it is meant, within one forward pass.

    Raises:
        StepError: no such module ahead; says which there are, or to rewind where it lies behind.
    """
    if name == "end":
        return len(points)
    if name == "prefill":
        return sum(point.forward_pass == 0 for point in points)
    ahead = [point for point in points[position:] if covers(name, point.module)]
    if not ahead:
        behind = [point for point in points[:position] if covers(name, point.module)]
        if behind:
            raise StepError(
                f"{name} has run already: it lies behind the cursor, which is at {place_text(points, position)}. "
                f"Use session.rewind({name!r}) first."
            )
        raise StepError(f"expected the name of a module of this run, found {name!r}.{nearest(points, name)}")
    this_pass = [point for point in ahead if point.forward_pass == ahead[0].forward_pass]
    return this_pass[-1].index + 1


def point_before(points: Sequence[StepPoint], name: str, position: int) -> int:
    """Return the position from which `name` would run again: the index of the last start of it behind the cursor.

    Raises:
        StepError: it has not run yet, or there is no such module.
    """
    if name == "start":
        return 0
    behind = [point for point in points[:position] if covers(name, point.module)]
    if not behind:
        if any(covers(name, point.module) for point in points):
            raise StepError(
                f"{name} has not run yet: the cursor is at {place_text(points, position)}. "
                f"Use session.run(until={name!r})."
            )
        raise StepError(f"expected the name of a module of this run, found {name!r}.{nearest(points, name)}")
    last_pass = [point for point in behind if point.forward_pass == behind[-1].forward_pass]
    return last_pass[0].index


def covers(name: str, module: str) -> bool:
    """Say whether `module` is `name` or lies below it."""
    return module == name or module.startswith(name + ".")


def place_text(points: Sequence[StepPoint], position: int) -> str:
    """Return where a cursor stands, in words."""
    if position >= len(points):
        return "the end"
    return f"{points[position]} (step {position} of {len(points)})"


def nearest(points: Sequence[StepPoint], name: str) -> str:
    """Return ` Did you mean ...?` with the names closest to a wrong one."""
    known = list(dict.fromkeys(point.module for point in points if point.module))
    parents = dict.fromkeys(part for module in known for part in _parents(module))
    close = difflib.get_close_matches(name, [*known, *parents], n=3, cutoff=0.4)
    if close:
        return f" Did you mean {' or '.join(close)}?"
    return f" There are {', '.join(known[:4])}{', ...' if len(known) > 4 else ''}." if known else ""


def _parents(module: str) -> list[str]:
    parts = module.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts))]
