"""Changes of single statements that let them run in a function of their own: leaving, deleting, `super()`.

The small building blocks of `frame_split`. Not for deciding where to cut.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Sequence
from typing import TypeVar

_ANSWER = "__workbench_answer__"

_Node = TypeVar("_Node", bound=ast.AST)


class _OwnSuper(ast.NodeTransformer):
    """Spells out `super()`, which in a piece would find neither the class nor the instance."""

    def __init__(self, arguments: Sequence[str]) -> None:
        self._arguments = arguments

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id == "super" and not node.args and self._arguments:
            node.args = [at(load("__class__"), node), at(load(self._arguments[0]), node)]
        return node


class _MarkLeaves(ast.NodeTransformer):
    """Turns `return`, and `break` and `continue` of a loop outside, into an answer that says so."""

    def __init__(self, values: ast.expr) -> None:
        self._values = values
        self._depth = 0

    def visit_Return(self, node: ast.Return) -> ast.AST:
        return at(ast.Return(value=pair("return", node.value or ast.Constant(None))), node)

    def visit_Break(self, node: ast.Break) -> ast.AST:
        return node if self._depth else at(ast.Return(value=pair("break", self._values)), node)

    def visit_Continue(self, node: ast.Continue) -> ast.AST:
        return node if self._depth else at(ast.Return(value=pair("continue", self._values)), node)

    def visit_For(self, node: ast.For | ast.While) -> ast.AST:
        self._depth += 1
        node.body = [self.visit(one) for one in node.body]
        self._depth -= 1
        node.orelse = [self.visit(one) for one in node.orelse]
        return node

    visit_While = visit_For

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.Lambda | ast.ClassDef) -> ast.AST:
        return node

    visit_Lambda = visit_FunctionDef
    visit_ClassDef = visit_FunctionDef


def own_super(statement: ast.stmt, arguments: Sequence[str]) -> ast.stmt:
    """Return the statement with `super()` spelled out for a function of these arguments; it is changed in place."""
    return _OwnSuper(arguments).visit(statement)


def mark_leaves(statement: ast.stmt, values: ast.expr) -> ast.stmt:
    """Return the statement with every way out of the run turned into an answer; it is changed in place."""
    return _MarkLeaves(values).visit(statement)


class _DropDelete(ast.NodeTransformer):
    def visit_Delete(self, node: ast.Delete) -> ast.AST | list[ast.AST]:
        names = [one for one in node.targets if isinstance(one, ast.Name)]
        rest = [one for one in node.targets if not isinstance(one, ast.Name)]
        kept: list[ast.AST] = [at(ast.Delete(targets=rest), node)] if rest else []
        if names:
            unset = ast.Assign(targets=[store(one.id) for one in names], value=ast.Constant(None))
            kept.append(at(unset, node))
        return kept


def without_delete(statement: ast.stmt) -> ast.stmt:
    """Return the statement with `del name` turned into an assignment of None."""
    # A deleted name could not be handed on; None in its place is as good for a program that does not read it.
    copied = copy.deepcopy(statement)
    if isinstance(copied, ast.Delete):
        changed = _DropDelete().visit(copied)
        return changed[0] if len(changed) == 1 else at(ast.If(test=ast.Constant(True), body=changed, orelse=[]), copied)
    return _DropDelete().visit(copied)


def leaving(body: Sequence[ast.stmt]) -> list[ast.stmt]:
    """Return the statements that leave the function, or a loop around the run, in order."""
    found: list[ast.stmt] = []

    def walk(node: ast.AST, depth: int) -> None:
        if isinstance(node, ast.Return) or (isinstance(node, (ast.Break, ast.Continue)) and not depth):
            found.append(node)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)):
            return
        loop = isinstance(node, (ast.For, ast.While))
        for name, value in ast.iter_fields(node):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    walk(child, depth + (loop and name == "body"))

    for statement in body:
        walk(statement, 0)
    return found


def act_on(call: ast.expr, targets: ast.Tuple, kinds: set[type[ast.stmt]]) -> list[ast.stmt]:
    """Return the statements that take the answer of a piece which may leave: its values, and how it ended."""
    how = ast.Subscript(value=load(_ANSWER), slice=ast.Constant(0), ctx=ast.Load())
    what = ast.Subscript(value=load(_ANSWER), slice=ast.Constant(1), ctx=ast.Load())

    def when(word: str, act: ast.stmt) -> ast.stmt:
        test = ast.Compare(left=copy.deepcopy(how), ops=[ast.Eq()], comparators=[ast.Constant(word)])
        return ast.If(test=test, body=[act], orelse=[])

    result: list[ast.stmt] = [ast.Assign(targets=[store(_ANSWER)], value=call)]
    if ast.Return in kinds:
        result.append(when("return", ast.Return(value=copy.deepcopy(what))))
    if targets.elts:
        result.append(ast.Assign(targets=[targets], value=copy.deepcopy(what)))
    if ast.Break in kinds:
        result.append(when("break", ast.Break()))
    if ast.Continue in kinds:
        result.append(when("continue", ast.Continue()))
    return result


def stays(statement: ast.stmt) -> bool:
    """Say whether a statement must stand in the outer function itself: it binds, jumps, or has nothing to compile."""
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom)):
        return True
    if isinstance(statement, (ast.Break, ast.Continue, ast.Delete)):
        return True
    if isinstance(statement, ast.Raise) and statement.exc is None:
        return True
    if isinstance(statement, ast.Assign) and isinstance(statement.value, (ast.Lambda, ast.GeneratorExp)):
        # Neither can be handed out of compiled code, while the outer function can hold them.
        return True
    plain = (ast.Assign, ast.Return, ast.Expr, ast.Name, ast.Constant, ast.Tuple, ast.expr_context)
    return all(isinstance(node, plain) for node in ast.walk(statement))


def template(name: str, args: ast.arguments, body: list[ast.stmt]) -> ast.FunctionDef:
    """Return a function of this name, these arguments and this body."""
    # Parsed rather than built, so that the fields later Pythons added are there.
    function = ast.parse("def f(): pass").body[0]
    assert isinstance(function, ast.FunctionDef), "the template is a function"
    function.name, function.args, function.body = name, args, body
    return function


def bare(args: ast.arguments) -> ast.arguments:
    """Return arguments without annotations, with None for every default: the function object keeps the real ones."""
    copied = copy.deepcopy(args)
    for one in ast.walk(copied):
        if isinstance(one, ast.arg):
            one.annotation = None
    copied.defaults = [ast.Constant(None) for _ in copied.defaults]
    copied.kw_defaults = [None if one is None else ast.Constant(None) for one in copied.kw_defaults]
    return copied


def pair(word: str, value: ast.expr) -> ast.Tuple:
    """Return `(word, value)`."""
    return ast.Tuple(elts=[ast.Constant(word), copy.deepcopy(value)], ctx=ast.Load())


def load(name: str) -> ast.Name:
    """Return the name as it is read."""
    return ast.Name(id=name, ctx=ast.Load())


def store(name: str) -> ast.Name:
    """Return the name as it is assigned."""
    return ast.Name(id=name, ctx=ast.Store())


def is_name(node: ast.AST, name: str) -> bool:
    """Say whether a node is this name."""
    return isinstance(node, ast.Name) and node.id == name


def at(node: _Node, place: ast.AST) -> _Node:
    """Return `node` placed where `place` stands, so that lines stay those of the source."""
    return ast.fix_missing_locations(ast.copy_location(node, place))
