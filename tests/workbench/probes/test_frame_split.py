"""A function cut anywhere does what it did, its lines stay those of the source, and what cannot be cut is refused."""

from __future__ import annotations

import ast
import inspect
import textwrap
from types import FunctionType

import pytest

from tests.workbench.probes import split_programs
from workbench.probes.frame_split import CannotSplit, find_definition, split_function

_TREE = ast.parse(inspect.getsource(split_programs))
_REFUSED = {"inner_sees_later_value"}
_METHODS = [split_programs.Child.value]


def _definition(function):
    definition = find_definition(_TREE, function.__code__)
    assert definition is not None
    return definition


def _cut(function, breaks):
    """Return the function in pieces, its pieces in a copy of its globals, and the pieces."""
    code = function.__code__
    class_name = "Child" if function in _METHODS else None
    split = split_function(_definition(function), code, class_name=class_name, breaks=breaks)
    names = dict(vars(split_programs))
    for piece in split.pieces:
        names[piece.name] = FunctionType(piece.code, names, code.co_name)
    cut = FunctionType(split.outer, names, code.co_name, function.__defaults__, function.__closure__)
    cut.__kwdefaults__ = function.__kwdefaults__
    return cut, split.pieces


def _outcome(function, number):
    split_programs.SEEN.clear()
    receiver = (split_programs.Child(),) if function.__qualname__.startswith("Child") else ()
    try:
        return "gives", function(*receiver, number), list(split_programs.SEEN)
    except Exception as error:
        return "raises", type(error).__name__, str(error), list(split_programs.SEEN)


@pytest.mark.parametrize(
    "function",
    [one for one in [*split_programs.PLAIN, *_METHODS] if one.__name__ not in _REFUSED | {"reads_before_assigning"}],
    ids=lambda one: one.__name__,
)
def test_a_cut_at_any_line_keeps_what_the_function_does(function):
    definition = _definition(function)
    lines = range(definition.body[0].lineno, (definition.end_lineno or 0) + 1)
    wanted = [_outcome(function, number) for number in range(6)]
    pairs = [{first, last} for first in lines for last in lines if first < last]
    for breaks in [*({line} for line in lines), *pairs[:: max(1, len(pairs) // 40)], set(lines)]:
        cut, _ = _cut(function, breaks)
        cut.__qualname__ = function.__qualname__
        assert [_outcome(cut, number) for number in range(6)] == wanted, breaks


def test_many_arguments_reach_the_cut_function():
    function = split_programs.all_kinds_of_arguments
    cut, _ = _cut(function, {_definition(function).body[0].lineno})
    assert cut(1, 2, 3, 4, key=5, more=6) == function(1, 2, 3, 4, key=5, more=6)
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'n'"):
        cut()


def test_the_loop_stays_outside_and_each_run_of_statements_becomes_a_piece():
    function = split_programs.returns_in_loop
    body = _definition(function).body
    loop = body[0]
    square = loop.body[0].lineno
    _, pieces = _cut(function, {square})
    assert [(piece.lines, piece.single) for piece in pieces] == [
        ((square, square), True),
        ((square + 1, square + 3), False),
    ]


def test_a_raised_error_names_the_line_of_the_source():
    function = split_programs.raises_in_loop
    line = _definition(function).body[0].body[0].body[0].lineno
    cut, _ = _cut(function, {line})
    with pytest.raises(ValueError, match="at 3") as caught:
        cut(5)
    last = caught.traceback[-1]
    assert (str(last.path), last.lineno + 1, last.name) == (split_programs.__file__, line, "raises_in_loop")


def test_a_name_read_before_it_has_a_value_is_none_in_a_cut_function():
    function = split_programs.reads_before_assigning
    cut, _ = _cut(function, {_definition(function).body[0].lineno})
    assert (function(1), cut(1)) == ("unbound", "empty")


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("def f(n):\n    for i in range(n):\n        yield i", "a generator or coroutine"),
        ("async def g(): pass\ndef f(n):\n    for i in range(n):\n        vars()", r"its own local names \(vars\)"),
        (
            "def f(n):\n    def g():\n        nonlocal n\n        n += 1\n    for i in range(3):\n        g()",
            "assigns outer names",
        ),
        (
            "def f(n):\n    g = lambda: k\n    for i in range(n):\n        k = i\n        g()",
            r"reads names that change later \(k\)",
        ),
        (
            "def f(n):\n    for i in range(n):\n        k = i\n        g = lambda: k\n        g()",
            r"reads names that change later \(k\)",
        ),
    ],
)
def test_what_cannot_be_cut_is_refused_with_the_reason(source, told):
    names = {}
    exec(compile(source, "made.py", "exec"), names)
    definition = find_definition(ast.parse(source), names["f"].__code__)
    with pytest.raises(CannotSplit, match=told):
        split_function(definition, names["f"].__code__, class_name=None, breaks={3})


def test_a_name_of_a_comprehension_is_no_later_value():
    source = textwrap.dedent("""
        def f(n):
            read = lambda: n
            for k in range(2):
                kept = [n for n in range(k)]
            return read(), kept
    """)
    names = {}
    exec(compile(source, "made.py", "exec"), names)
    definition = find_definition(ast.parse(source), names["f"].__code__)
    split_function(definition, names["f"].__code__, class_name=None, breaks={5})


def test_a_definition_is_found_below_its_decorators():
    source = textwrap.dedent("""
        import functools

        @functools.cache
        @functools.wraps(len)
        def f(n):
            return n

        @staticmethod

        def f(n):
            return -n
    """)
    tree = ast.parse(source)
    names = {}
    exec(compile(source, "made.py", "exec"), names)
    assert find_definition(tree, names["f"].__func__.__code__).lineno == 11
    # The line it begins at, its decorators included, tells two functions of one name apart.
    assert find_definition(ast.parse("x = 1"), names["f"].__func__.__code__) is None
