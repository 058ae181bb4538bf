"""Cuts a function into pieces that Dynamo can examine one by one: same statements, same lines, same order, same effect.

A break inside a loop or a `try` makes Dynamo leave out the whole function. Here the loop or `try` on the way to the
break stays behind in an outer function that runs eagerly, and each run of statements around it becomes a function of
its own, which is compiled where it is called. Everything else in the function stays whole. Syntax only; `look_past`
installs the result. One difference is left: a name that is read before it has a value is None, and no error.

Not for functions without source, generators, or inner functions whose outer names change under them.
"""

from __future__ import annotations
import __future__

import ast
import copy
import functools
import operator
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import CodeType

from workbench.probes.frame_names import changing_outer_names, name_use
from workbench.probes.frame_rewrites import (
    act_on,
    at,
    bare,
    is_name,
    leaving,
    load,
    mark_leaves,
    own_super,
    pair,
    stays,
    store,
    template,
    without_delete,
)

PIECE = "__workbench_piece_{}__"
_COMPOUND = (ast.For, ast.While, ast.If, ast.With, ast.Try, ast.Match)
_OWN_NAMES = ("locals", "vars", "exec", "eval")


class CannotSplit(Exception):
    """The function is of a form that cannot be cut; says which."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A run of statements as a function of its own.

    Attributes:
        name: global name the outer function calls it by.
        code: its code; file and lines are those of the original.
        lines: first and last line.
        single: it is one simple statement, so it cannot be cut further.
    """

    name: str
    code: CodeType
    lines: tuple[int, int]
    single: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitFunction:
    """A function in pieces.

    Attributes:
        outer: code that takes the place of the original's.
        pieces: what it calls.
    """

    outer: CodeType
    pieces: tuple[Piece, ...]


def split_function(
    definition: ast.FunctionDef,
    code: CodeType,
    *,
    class_name: str | None,
    breaks: Iterable[int],
    first_piece: int = 0,
) -> SplitFunction:
    """Return the function cut around the lines of known breaks.

    Args:
        definition: the function's syntax.
        code: its code, whose arguments and free names the outer code keeps.
        class_name: class it stands in, for private names; None for none.
        breaks: lines at which Dynamo gave the function up.
        first_piece: number of the first piece, so that several functions of one module do not share names.

    Raises:
        CannotSplit: with the reason.
    """
    _refuse(definition)
    cutter = _Cutter(definition, code, class_name, frozenset(breaks), first_piece)
    outer = cutter.outer()
    same = outer.co_freevars == code.co_freevars and outer.co_argcount == code.co_argcount
    if not same:
        raise CannotSplit(f"{code.co_name}: its free names {code.co_freevars} would become {outer.co_freevars}")
    return SplitFunction(outer=outer, pieces=tuple(cutter.pieces))


def find_definition(tree: ast.AST, code: CodeType) -> ast.FunctionDef | None:
    """Return the syntax of the function `code` was made from, None when the file does not hold it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == code.co_name:
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            if first == code.co_firstlineno:
                return node
    return None


def _refuse(definition: ast.FunctionDef) -> None:
    for node in ast.walk(definition):
        if isinstance(node, (ast.Yield, ast.YieldFrom, ast.Await, ast.AsyncFor, ast.AsyncWith)):
            raise CannotSplit(f"{definition.name}: a generator or coroutine")
        if isinstance(node, ast.Nonlocal):
            raise CannotSplit(f"{definition.name}: an inner function assigns outer names (nonlocal)")
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _OWN_NAMES:
            raise CannotSplit(f"{definition.name}: it looks at its own local names ({node.func.id})")
    changing = changing_outer_names(definition)
    if changing:
        raise CannotSplit(f"{definition.name}: an inner function reads names that change later ({', '.join(changing)})")


class _Cutter:
    def __init__(
        self, definition: ast.FunctionDef, code: CodeType, class_name: str | None, breaks: frozenset[int], first: int
    ) -> None:
        self.definition, self.code, self.class_name, self.breaks = definition, code, class_name, breaks
        self.first = first
        self.pieces: list[Piece] = []
        self.names = frozenset({*code.co_varnames, *code.co_cellvars, *code.co_freevars})
        self.handed: dict[str, None] = {}
        self.globals = [name for one in ast.walk(definition) if isinstance(one, ast.Global) for name in one.names]
        self.arguments = [one.arg for one in ast.walk(definition.args) if isinstance(one, ast.arg)]

    def outer(self) -> CodeType:
        body = self.block(self.definition.body)
        # Every name a piece is handed gets a value first, so that handing it on cannot fail where it has none yet.
        fresh = [one for one in self.handed if one not in self.arguments and one not in self.code.co_freevars]
        start: list[ast.stmt] = [ast.Global(names=self.globals)] if self.globals else []
        if fresh:
            start.append(ast.Assign(targets=[store(one) for one in fresh], value=ast.Constant(None)))
        first = self.definition.body[0]
        return self.compile(self.definition.args, [*(at(one, first) for one in start), *body], first)

    def block(self, statements: Sequence[ast.stmt]) -> list[ast.stmt]:
        result: list[ast.stmt] = []
        run: list[ast.stmt] = []

        def close() -> None:
            if run:
                result.extend(self.piece(list(run)))
                run.clear()

        for statement in statements:
            broken = any(statement.lineno <= line <= (statement.end_lineno or 0) for line in self.breaks)
            if isinstance(statement, (ast.Global, ast.Pass)):
                continue
            if stays(statement):
                close()
                result.append(without_delete(statement))
            elif broken:
                close()
                result.extend([self.opened(statement)] if isinstance(statement, _COMPOUND) else self.piece([statement]))
            else:
                run.append(statement)
        close()
        return result or [at(ast.Pass(), statements[0])]

    def opened(self, statement: ast.stmt) -> ast.stmt:
        """Keep the statement itself in the outer function and cut its bodies."""
        opened = copy.copy(statement)
        if isinstance(opened, (ast.If, ast.While)):
            opened.test = self.test(opened.test)
        for part in ("body", "orelse", "finalbody"):
            inner = getattr(opened, part, None)
            if inner:
                setattr(opened, part, self.block(inner))
        if isinstance(opened, ast.Try):
            opened.handlers = [copy.copy(handler) for handler in opened.handlers]
            for handler in opened.handlers:
                handler.body = self.block(handler.body)
        if isinstance(opened, ast.Match):
            opened.cases = [copy.copy(case) for case in opened.cases]
            for case in opened.cases:
                case.body = self.block(case.body)
        return opened

    def test(self, test: ast.expr) -> ast.expr:
        """Cut the test of an `if` or `while` out together with the jump, which is where a tensor breaks it."""
        if isinstance(test, ast.Constant) or any(isinstance(one, ast.NamedExpr) for one in ast.walk(test)):
            return test
        yes, no = (ast.Return(value=ast.Constant(value)) for value in (True, False))
        jump = at(ast.If(test=test, body=[yes], orelse=[no]), test)
        use = name_use([jump], self.names)
        return self.call(use.needed, [jump], test, single=True)

    def piece(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        first = statements[0]
        single = len(statements) == 1 and not isinstance(first, _COMPOUND)
        body = [own_super(without_delete(one), self.arguments) for one in statements]
        use = name_use(body, self.names)
        read_elsewhere = self._read_outside(statements)
        kept = [name for name in use.assigned if name in read_elsewhere or name in use.needed]
        leaves = leaving(body)
        if leaves == [body[-1]] and isinstance(body[-1], ast.Return):
            return [at(ast.Return(value=self.call(use.needed, body, first, single=single)), body[-1])]
        values = ast.Tuple(elts=[load(name) for name in kept], ctx=ast.Load())
        targets = ast.Tuple(elts=[store(name) for name in kept], ctx=ast.Store())
        if not leaves:
            if not kept:
                return [at(ast.Expr(value=self.call(use.needed, body, first, single=single)), first)]
            call = self.call(use.needed, [*body, at(ast.Return(value=values), body[-1])], first, single=single)
            self.handed.update(dict.fromkeys(kept))
            return [at(ast.Assign(targets=[targets], value=call), first)]
        # The run may leave the function or an outer loop: it answers how it ended beside what it leaves behind.
        needed = tuple(dict.fromkeys([*use.needed, *kept]))
        marked = [mark_leaves(one, values) for one in body]
        marked.append(at(ast.Return(value=pair("next", values)), body[-1]))
        call = self.call(needed, marked, first, single=single)
        return [at(one, first) for one in act_on(call, targets, {type(leave) for leave in leaves})]

    def call(self, needed: Sequence[str], body: list[ast.stmt], place: ast.AST, *, single: bool) -> ast.Call:
        """Make a piece of `body` and return the call of it."""
        args = ast.arguments(
            posonlyargs=[], args=[ast.arg(arg=name) for name in needed], kwonlyargs=[], kw_defaults=[], defaults=[]
        )
        used = [name for name in self.globals if any(is_name(one, name) for top in body for one in ast.walk(top))]
        start: list[ast.stmt] = [at(ast.Global(names=used), place)] if used else []
        code = self.compile(args, [*start, *body], body[0])
        if code.co_freevars:
            raise CannotSplit(f"{self.code.co_name}: a piece of it needs {code.co_freevars} from outside")
        name = PIECE.format(self.first + len(self.pieces))
        lines = (body[0].lineno, max(one.end_lineno or one.lineno for one in body))
        self.pieces.append(Piece(name=name, code=code, lines=lines, single=single))
        self.handed.update(dict.fromkeys(needed))
        return at(ast.Call(func=load(name), args=[load(one) for one in needed], keywords=[]), place)

    def compile(self, args: ast.arguments, body: list[ast.stmt], place: ast.AST) -> CodeType:
        """Return the code of a function of this one's name, in a class of the same name where it stands in one."""
        function = template(self.code.co_name, bare(args), body)
        inner: ast.stmt = function
        if self.class_name is not None:
            inner = ast.parse(f"class {self.class_name}: pass").body[0]
            assert isinstance(inner, ast.ClassDef), "the template is a class"
            inner.body = [function]
        free = [name for name in self.code.co_freevars if name != "__class__"]
        around: list[ast.stmt] = [ast.Assign(targets=[store(one) for one in free], value=ast.Constant(None))]
        factory = template("factory", ast.parse("def f(): pass").body[0].args, [*(around if free else []), inner])  # pyright: ignore[reportAttributeAccessIssue]
        for node in (factory, inner, function, *around):
            at(node, place)
        tree = ast.fix_missing_locations(ast.Module(body=[factory], type_ignores=[]))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                code: CodeType = compile(tree, self.code.co_filename, "exec", _futures(self.code), dont_inherit=True)
            except (SyntaxError, ValueError) as error:
                raise CannotSplit(f"{self.code.co_name}: its pieces do not compile ({error})") from error
        path = ["factory", *([self.class_name] if self.class_name else []), self.code.co_name]
        for name in path:
            code = next(one for one in code.co_consts if isinstance(one, CodeType) and one.co_name == name)
        return code.replace(co_qualname=self.code.co_qualname)

    def _read_outside(self, statements: Sequence[ast.stmt]) -> set[str]:
        inside = {id(one) for top in statements for one in ast.walk(top)}
        read: set[str] = set()
        for one in ast.walk(self.definition):
            target = one.target if isinstance(one, ast.AugAssign) else one
            if (
                isinstance(target, ast.Name)
                and id(target) not in inside
                and (isinstance(target.ctx, ast.Load) or isinstance(one, ast.AugAssign))
            ):
                read.add(target.id)
        return read


def _futures(code: CodeType) -> int:
    return code.co_flags & functools.reduce(
        operator.or_, (getattr(__future__, name).compiler_flag for name in __future__.all_feature_names)
    )
