"""Plant a fault in the port, so that a test can be seen to fail.

A `Trap` is a check that holds, and a way to plant the fault the check is there for. Faults are planted in two ways: a
function or method is replaced by a wrong one wherever the port refers to it, or rewritten in a few characters of its
own source. Both are undone by pytest's `monkeypatch`.
"""

from __future__ import annotations

import functools
import inspect
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from port.errors import PortError

Plant = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trap:
    """One way to get the model wrong.

    Attributes:
        number: of the trap in section 5 of the model specification.
        name: the fact that holds, as a test name.
        check: raises AssertionError where the fact does not hold.
        plant: makes the port fall into the trap.
        golden: whether the golden data of A, mode fp32, sees the fault too.
    """

    number: int
    name: str
    check: Callable[[], None]
    plant: Plant
    golden: bool = False


def is_seen(check: Callable[[], None]) -> bool:
    """Return whether a check fails as a check does. A fault that merely crashes was planted badly, and raises."""
    try:
        check()
    except (AssertionError, PortError, pytest.fail.Exception):
        return True
    return False


def replace_function(monkeypatch: pytest.MonkeyPatch, function: Callable, wrong: Callable) -> None:
    """Put `wrong` in place of a module's function, under every name the port and its tests know it by."""
    places = [
        (module, name)
        for module_name, module in list(sys.modules.items())
        if module_name.split(".")[0] == "port" or module_name.startswith("tests.port")
        for name, value in list(vars(module).items())
        if value is function
    ]
    assert places, f"{function!r} is not referred to anywhere"
    for module, name in places:
        monkeypatch.setattr(module, name, wrong)


def wrap_function(monkeypatch: pytest.MonkeyPatch, function: Callable, wrapper: Callable) -> None:
    """Put `wrapper` in place of a module's function; it is called with the right function before the arguments."""
    replace_function(monkeypatch, function, functools.partial(wrapper, function))


def replace_method(monkeypatch: pytest.MonkeyPatch, owner: type, name: str, wrong: Callable) -> None:
    """Put `wrong` in place of a method; it must be there."""
    assert name in vars(owner), f"{owner.__name__} has no {name}"
    monkeypatch.setattr(owner, name, wrong)


def rewritten(function: Callable, *changes: tuple[str, str]) -> Any:
    """Return a function made from the source of another with some text exchanged; every text must occur."""
    source = textwrap.dedent(inspect.getsource(function))
    for old, new in changes:
        assert old in source, f"{function.__qualname__} has no {old!r} any more; plant the fault anew"
        source = source.replace(old, new)
    names: dict[str, Any] = {}
    exec(compile(source, f"<fault in {function.__qualname__}>", "exec"), function.__globals__, names)
    return names[function.__name__]


def rewrite_function(function: Callable, *changes: tuple[str, str]) -> Plant:
    """Return a plant that exchanges text in a module's function."""
    return lambda monkeypatch: replace_function(monkeypatch, function, rewritten(function, *changes))


def rewrite_method(owner: type, name: str, *changes: tuple[str, str]) -> Plant:
    """Return a plant that exchanges text in a method."""
    return lambda monkeypatch: replace_method(monkeypatch, owner, name, rewritten(vars(owner)[name], *changes))
