"""Which local names a run of statements needs from outside, which it leaves behind, which change. Syntax only.

Not a full data-flow analysis: where in doubt a name counts as needed, which costs an argument and is never wrong.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


@dataclass(frozen=True, slots=True, kw_only=True)
class NameUse:
    """The names of a run of statements.

    Attributes:
        needed: read before the run surely assigned them, or assigned on some paths only; in order of appearance.
        assigned: assigned on at least one path, in order of appearance.
        read: read anywhere in the run.
    """

    needed: tuple[str, ...]
    assigned: tuple[str, ...]
    read: frozenset[str]


def name_use(statements: Sequence[ast.stmt], names: frozenset[str]) -> NameUse:
    """Return the use of `names` (a function's locals) in `statements`, taken in order."""
    walker = _Walker(names)
    walker.block(statements)
    unsure = [name for name in walker.assigned if name not in walker.sure]
    return NameUse(
        needed=tuple(dict.fromkeys([*walker.needed, *unsure])),
        assigned=tuple(walker.assigned),
        read=frozenset(walker.read),
    )


class _Walker(ast.NodeVisitor):
    def __init__(self, names: frozenset[str]) -> None:
        self.names = names
        self.sure: set[str] = set()
        self.needed: dict[str, None] = {}
        self.assigned: dict[str, None] = {}
        self.read: set[str] = set()
        self._hidden: list[set[str]] = []

    def block(self, statements: Iterable[ast.stmt]) -> None:
        for statement in statements:
            self.visit(statement)

    def branch(self, statements: Iterable[ast.stmt]) -> set[str]:
        """Walk statements that may not run; return what they surely assign when they do."""
        before = set(self.sure)
        self.block(statements)
        after, self.sure = self.sure, before
        return after

    def visit_Name(self, node: ast.Name) -> None:
        if node.id not in self.names or any(node.id in hidden for hidden in self._hidden):
            return
        if isinstance(node.ctx, ast.Load):
            self._load(node.id)
        else:
            self._store(node.id)

    def _load(self, name: str) -> None:
        self.read.add(name)
        if name not in self.sure:
            self.needed.setdefault(name)

    def _store(self, name: str) -> None:
        self.assigned.setdefault(name)
        self.sure.add(name)

    def visit_Assign(self, node: ast.Assign) -> None:
        self.visit(node.value)
        for target in node.targets:
            self.visit(target)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)
            self.visit(node.target)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        if isinstance(node.target, ast.Name) and node.target.id in self.names:
            self._load(node.target.id)
        self.visit(node.value)
        self.visit(node.target)

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        self.visit(node.value)
        if node.target.id in self.names:
            # A walrus inside a comprehension or after `and` may not run, so it is no sure assignment.
            self.assigned.setdefault(node.target.id)

    def visit_If(self, node: ast.If) -> None:
        self.visit(node.test)
        first, second = self.branch(node.body), self.branch(node.orelse)
        self.sure |= first & second

    def visit_For(self, node: ast.For) -> None:
        self.visit(node.iter)
        before = set(self.sure)
        self.visit(node.target)
        self.block(node.body)
        self.sure = before
        self.branch(node.orelse)

    def visit_While(self, node: ast.While) -> None:
        self.visit(node.test)
        self.branch(node.body)
        self.branch(node.orelse)

    def visit_Try(self, node: ast.Try) -> None:
        self.branch([*node.body, *node.orelse])
        for handler in node.handlers:
            if handler.type is not None:
                self.visit(handler.type)
            self._hidden.append({handler.name} if handler.name else set())
            self.branch(handler.body)
            self._hidden.pop()
        self.block(node.finalbody)

    def visit_Match(self, node: ast.Match) -> None:
        self.visit(node.subject)
        for case in node.cases:
            before = set(self.sure)
            for pattern in ast.walk(case.pattern):
                name = getattr(pattern, "name", None) or getattr(pattern, "rest", None)
                if isinstance(name, str) and name in self.names:
                    self._store(name)
            if case.guard is not None:
                self.visit(case.guard)
            self.block(case.body)
            self.sure = before

    def visit_Import(self, node: ast.Import | ast.ImportFrom) -> None:
        for alias in node.names:
            name = (alias.asname or alias.name).partition(".")[0]
            if name in self.names:
                self._store(name)

    visit_ImportFrom = visit_Import

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._inner(node, [*node.decorator_list, *_defaults(node.args)], node.args, node.body)
        if node.name in self.names:
            self._store(node.name)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self.generic_visit(node)
        if node.name in self.names:
            self._store(node.name)

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self._inner(node, _defaults(node.args), node.args, [node.body])

    def _inner(self, node: ast.AST, outside: Sequence[ast.expr], args: ast.arguments, body: Sequence[ast.AST]) -> None:
        for value in outside:
            self.visit(value)
        own = {one.arg for one in ast.walk(args) if isinstance(one, ast.arg)}
        for part in body:
            own |= {one.id for one in ast.walk(part) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)}
        if isinstance(node, ast.Lambda):
            own = {one.arg for one in ast.walk(args) if isinstance(one, ast.arg)}
        self._hidden.append(own)
        for part in body:
            self.visit(part)
        self._hidden.pop()

    def _comprehension(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp) -> None:
        self.visit(node.generators[0].iter)
        own = {
            one.id for generator in node.generators for one in ast.walk(generator.target) if isinstance(one, ast.Name)
        }
        self._hidden.append(own)
        for index, generator in enumerate(node.generators):
            if index:
                self.visit(generator.iter)
            for test in generator.ifs:
                self.visit(test)
        for part in (node.key, node.value) if isinstance(node, ast.DictComp) else (node.elt,):
            self.visit(part)
        self._hidden.pop()

    visit_ListComp = _comprehension
    visit_SetComp = _comprehension
    visit_GeneratorExp = _comprehension
    visit_DictComp = _comprehension


def _defaults(args: ast.arguments) -> list[ast.expr]:
    return [value for value in (*args.defaults, *args.kw_defaults) if value is not None]


def changing_outer_names(definition: ast.FunctionDef) -> tuple[str, ...]:
    """Return the names an inner function reads of its outer one that get another value while it may be alive.

    Such a name is one variable for both. It gets another value where an assignment stands after the inner function, or
    in a loop around both. A generator expression is taken as used up at once.
    """
    found: dict[str, None] = {}
    inner = [one for one in ast.walk(definition) if isinstance(one, _FUNCTIONS) and one is not definition]
    loops = [one for one in ast.walk(definition) if isinstance(one, (ast.For, ast.While))]
    assigned = _own_assignments(definition)
    for function in inner:
        around = [loop for loop in loops if _inside(function, loop)]
        outer = _outer_reads(function)
        for store in assigned:
            later = (store.lineno, store.col_offset) > (function.end_lineno or 0, function.end_col_offset or 0)
            if store.id in outer and (later or any(_inside(store, loop) for loop in around)):
                found.setdefault(store.id)
    return tuple(found)


def _own_assignments(definition: ast.FunctionDef) -> list[ast.Name]:
    """Return the names a function assigns itself: not in inner functions, classes and comprehensions."""
    found: list[ast.Name] = []

    def walk(node: ast.AST) -> None:
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            found.append(node)
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, (*_FUNCTIONS, ast.ClassDef, ast.comprehension)):
                walk(child)

    walk(definition)
    return found


def _outer_reads(function: Function) -> set[str]:
    nodes = [node for part in _body(function) for node in ast.walk(part)]
    names = [node for node in nodes if isinstance(node, ast.Name)]
    own = {one.arg for one in ast.walk(function.args) if isinstance(one, ast.arg)}
    if not isinstance(function, ast.Lambda):
        own |= {one.id for one in names if not isinstance(one.ctx, ast.Load)}
    return {one.id for one in names if isinstance(one.ctx, ast.Load)} - own


def _body(function: Function) -> list[ast.AST]:
    return [function.body] if isinstance(function, ast.Lambda) else list(function.body)


def _inside(node: ast.expr | ast.stmt, loop: ast.stmt) -> bool:
    start, end = (loop.lineno, loop.col_offset), (loop.end_lineno or 0, loop.end_col_offset or 0)
    return start <= (node.lineno, node.col_offset) and (node.end_lineno or 0, node.end_col_offset or 0) <= end
