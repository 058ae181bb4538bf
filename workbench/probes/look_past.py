"""The search beyond a break that made Dynamo give a whole function up: learn where, cut it there, run again.

While `installed()` is entered the functions in question have other code (`frame_split`), and their module has the
pieces as names of its own; both are taken back on leaving. Not safe while another thread runs the same functions.
"""

from __future__ import annotations

import ast
import contextlib
import gc
import linecache
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from types import CodeType, FunctionType

from workbench.probes.break_classes import reason_class
from workbench.probes.break_log import BreakEvent, original_name
from workbench.probes.frame_split import CannotSplit, Piece, find_definition, split_function
from workbench.probes.user_code import is_library, shown_path

_BLOCKS = (ast.For, ast.While, ast.With, ast.Try)
_LOOPS = (ast.For, ast.While)


@dataclass(slots=True, kw_only=True)
class _Function:
    """A function Dynamo gave up: what it was, where, and how it is cut at present."""

    code: CodeType
    objects: tuple[FunctionType, ...]
    definition: ast.FunctionDef | None
    breaks: set[int] = field(default_factory=set[int])
    pieces: tuple[Piece, ...] = ()


class LookPast:
    """State of one search.

    Attributes:
        obstacles: what could not be looked past, in words; empty for a complete search.
    """

    def __init__(self) -> None:
        self.obstacles: dict[str, None] = {}
        self._functions: dict[CodeType, _Function] = {}

    def learn(self, events: Iterable[BreakEvent]) -> bool:
        """Take the events of a run; say whether another run can show more."""
        news = False
        for event in events:
            if (event.skipped or event.rest_skipped) and event.code is not None and event.frames:
                news |= self._learn_one(event, event.code)
        return news

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Run the functions in pieces."""
        with contextlib.ExitStack() as stack:
            count = 0
            for function in self._functions.values():
                count = self._install(function, count, stack)
            yield

    def in_block(self, file: str, line: int) -> tuple[bool, bool]:
        """Say whether a line stands in a block that Dynamo cannot resume in, and whether that block is a loop.

        Args:
            file: as `shown_path` gives it.
            line: from 1.
        """
        blocks: list[ast.stmt] = []
        for function in self._functions.values():
            if function.definition is not None and shown_path(function.code.co_filename) == file:
                for node in ast.walk(function.definition):
                    if isinstance(node, _BLOCKS) and node.lineno < line <= (node.end_lineno or 0):
                        blocks.append(node)
        return bool(blocks), any(isinstance(node, _LOOPS) for node in blocks)

    def _learn_one(self, event: BreakEvent, code: CodeType) -> bool:
        root = event.frames[0]
        if is_library(root.file) or reason_class(event.reason) == "recompile_limit":
            # What such a frame calls runs as a frame of its own, and is examined there.
            return False
        name = original_name(code.co_name)
        function = self._known(root.file, name, root.line) or self._found(root.file, name, root.line)
        if function is None or function.definition is None:
            lines = {line for _, _, line in code.co_lines() if line}
            if len(lines) > 1:
                self.obstacles.setdefault(f"{name} ({root.file}:{root.line}) has no function that could be cut")
            return False
        if function.pieces and code == function.code:
            self.obstacles.setdefault(f"{name} ({root.file}:{root.line}) is made anew at every call")
            return False
        if root.line in function.breaks:
            piece = next((one for one in function.pieces if one.lines[0] <= root.line <= one.lines[1]), None)
            if piece is not None and piece.lines[0] != piece.lines[1]:
                self.obstacles.setdefault(
                    f"{name} ({root.file}:{piece.lines[0]}) breaks in a statement of several lines"
                )
            return False
        function.breaks.add(root.line)
        return True

    def _known(self, file: str, name: str, line: int) -> _Function | None:
        fitting = [one for one in self._functions.values() if _fits(one.code, file, name, line)]
        return max(fitting, key=lambda one: one.code.co_firstlineno, default=None)

    def _found(self, file: str, name: str, line: int) -> _Function | None:
        objects = [
            one for one in gc.get_objects() if type(one) is FunctionType and _fits(one.__code__, file, name, line)
        ]
        if not objects:
            return None
        code = max((one.__code__ for one in objects), key=lambda one: one.co_firstlineno)
        function = _Function(
            code=code,
            # Equal, not the same: a file that was run twice has two of each, and Dynamo does not say which it met.
            objects=tuple(one for one in objects if one.__code__ == code),
            definition=_definition(code, objects[0].__globals__),
        )
        self._functions[code] = function
        return function

    def _install(self, function: _Function, count: int, stack: contextlib.ExitStack) -> int:
        from torch._dynamo.eval_frame import skip_code

        code, definition = function.code, function.definition
        if definition is None or not function.breaks:
            return count
        try:
            split = split_function(
                definition, code, class_name=_class_name(code), breaks=function.breaks, first_piece=count
            )
        except CannotSplit as reason:
            self.obstacles.setdefault(f"{code.co_name} ({code.co_filename}:{code.co_firstlineno}): {reason}")
            return count
        function.pieces = split.pieces
        # The outer function is what Dynamo gave up; only the pieces are to be compiled.
        skip_code(split.outer)
        for one in function.objects:
            for piece in split.pieces:
                one.__globals__[piece.name] = FunctionType(piece.code, one.__globals__, code.co_name)
                stack.callback(one.__globals__.pop, piece.name, None)
            stack.callback(setattr, one, "__code__", one.__code__)
            one.__code__ = split.outer
        return count + len(split.pieces)


def _fits(code: CodeType, file: str, name: str, line: int) -> bool:
    if code.co_name != name or code.co_filename != file:
        return False
    return any(one == line for _, _, one in code.co_lines())


def _definition(code: CodeType, names: dict[str, object]) -> ast.FunctionDef | None:
    source = "".join(linecache.getlines(code.co_filename, names))
    try:
        return find_definition(ast.parse(source), code) if source else None
    except SyntaxError:
        return None


def _class_name(code: CodeType) -> str | None:
    parts = code.co_qualname.split(".")
    return parts[-2] if len(parts) > 1 and parts[-2] != "<locals>" else None
