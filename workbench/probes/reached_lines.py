"""How often a call reaches given source lines, and through which modules: one plain run, watched line by line.

Dynamo compiles a function once and uses it for every layer, so its log cannot say how many layers share a break; the
program itself can. Costs one more call and Python's tracing, so it is made only when there is something to count.
"""

from __future__ import annotations

import ast
import linecache
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any

from workbench.probes.observed_call import ObservedCall
from workbench.probes.user_code import is_library, shown_path

TraceFunction = Callable[[FrameType, str, Any], Any]
Place = tuple[str, int]
"""File as `shown_path` gives it, and line."""


@dataclass(slots=True, kw_only=True)
class Reach:
    """What was seen of one line.

    Attributes:
        calls: how often the statement it belongs to was begun.
        modules: paths of the modules whose methods stood in it, in order of appearance.
    """

    calls: int = 0
    modules: dict[str, None] = field(default_factory=dict[str, None])


@dataclass(frozen=True, slots=True)
class _Statement:
    """The statement at a place.

    Attributes:
        place: asked for.
        head: its lines; without its body where it has one.
        inside: lines from which coming to the head begins no new turn: the head itself, and the body of a `for`.
        is_for: it is a `for`, which comes back to its head for every item.
    """

    place: Place
    head: range
    inside: range
    is_for: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """What a watched call reached.

    Attributes:
        places: each place asked for.
        modules: paths of the modules whose methods ran, in order of appearance.
    """

    places: dict[Place, Reach]
    modules: tuple[str, ...]


def watch_lines(call: ObservedCall, places: Iterable[Place]) -> Reached:
    """Make the call without Dynamo and return what it reached; another tracer of the thread is put back afterwards."""
    watch = _Watch(call, {place: Reach() for place in places})
    before = sys.gettrace()
    sys.settrace(watch.on_call)
    try:
        call.run()
    finally:
        sys.settrace(before)
    return Reached(places=watch.places, modules=tuple(watch.modules))


class _Watch:
    def __init__(self, call: ObservedCall, places: dict[Place, Reach]) -> None:
        self.places = places
        self.modules: dict[str, None] = {}
        self._names = call.names
        self._codes: dict[CodeType, list[_Statement]] = {}
        self._trees: dict[str, ast.AST] = {}

    def on_call(self, frame: FrameType, _event: str, _value: object) -> TraceFunction | None:
        """Note the module of a new frame, and follow the frame where it holds a line asked for."""
        code = frame.f_code
        if code.co_name == "_call_impl" or not (code.co_name.startswith("__") or is_library(code.co_filename)):
            name = self._owner(frame)
            if name is not None:
                self.modules.setdefault(name)
        statements = self._codes.get(code)
        if statements is None:
            statements = self._codes[code] = self._statements(code)
        return self._follow(statements) if statements else None

    def _follow(self, statements: list[_Statement]) -> TraceFunction:
        last_line, last_offset = 0, -1

        def on_line(frame: FrameType, event: str, _value: object) -> TraceFunction:
            nonlocal last_line, last_offset
            if event == "line":
                line, offset = frame.f_lineno, frame.f_lasti
                for one in statements:
                    # Python comes back to the first line of a statement of several lines when it makes its outer call.
                    forward = len(one.head) > 1 and offset > last_offset
                    again = last_line in one.inside and (one.is_for or forward)
                    if line in one.head and not again:
                        self._note(one.place, frame)
                last_line, last_offset = line, offset
            return on_line

        return on_line

    def _note(self, place: Place, frame: FrameType) -> None:
        reach = self.places[place]
        reach.calls += 1
        above: FrameType | None = frame
        while above is not None:
            name = self._owner(above)
            if name is not None:
                reach.modules.setdefault(name)
                return
            above = above.f_back

    def _owner(self, frame: FrameType) -> str | None:
        code = frame.f_code
        if not code.co_argcount:
            return None
        # A first argument that an inner function reads lies in a cell, which only `f_locals` looks into.
        return self._names.get(id(frame.f_locals.get(code.co_varnames[0])))

    def _statements(self, code: CodeType) -> list[_Statement]:
        file = shown_path(code.co_filename)
        wanted = [place for place in self.places if place[0] == file]
        if not wanted:
            return []
        tree = self._trees.get(file)
        if tree is None:
            tree = self._trees[file] = _tree(code.co_filename)
        lines = {line for _, _, line in code.co_lines() if line}
        return [_statement(tree, place) for place in wanted if place[1] in lines]


def _statement(tree: ast.AST, place: Place) -> _Statement:
    """Return the innermost statement at a place."""
    line = place[1]
    found = _Statement(place, range(line, line + 1), range(line, line + 1), is_for=False)
    for node in ast.walk(tree):
        last = (getattr(node, "end_lineno", None) or 0) + 1
        if isinstance(node, ast.stmt) and node.lineno <= line < last:
            body = getattr(node, "body", None)
            head = range(node.lineno, body[0].lineno if isinstance(body, list) and body else last)
            is_for = isinstance(node, ast.For)
            if line in head:
                found = _Statement(place, head, range(node.lineno, last) if is_for else head, is_for)
    return found


def _tree(file: str) -> ast.AST:
    try:
        return ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return ast.Module(body=[], type_ignores=[])
