"""What holds for every view: it accepts any journal, an empty one too, and is text, HTML and data."""

from __future__ import annotations

import inspect
import json
import pkgutil
from collections.abc import Callable
from html.parser import HTMLParser
from importlib import import_module
from typing import get_type_hints

import pytest

import workbench
import workbench.views
from tests.contracts.samples import samples
from workbench.journal import Journal
from workbench.views.base import View

Function = Callable[[Journal], View]


def views() -> dict[str, Function]:
    """Return every public function of `workbench.views` that makes a view of a journal alone."""
    found: dict[str, Function] = {}
    for module_info in pkgutil.iter_modules(workbench.views.__path__, "workbench.views."):
        module = import_module(module_info.name)
        for name, function in inspect.getmembers(module, inspect.isfunction):
            if name.startswith("_") or function.__module__ != module.__name__:
                continue
            made = get_type_hints(function, vars(module)).get("return")
            needed = [one for one in inspect.signature(function).parameters.values() if one.default is one.empty]
            if isinstance(made, type) and hasattr(made, "_repr_html_") and len(needed) == 1:
                found[name] = function
    return found


VIEWS = views()
_BY_NAME = {"argvalues": list(VIEWS.values()), "ids": list(VIEWS)}


def full_journal() -> Journal:
    """Return a journal with made-up records of every kind."""
    journal = Journal()
    for record in samples():
        journal.append(record)
    return journal


class _Tags(HTMLParser):
    """Counts open tags and keeps what loads something from elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.refused: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("br", "img", "hr", "meta"):
            self.open.append(tag)
        if tag in ("script", "link", "iframe") or any(
            name in ("src", "href") and not str(value).startswith("data:") for name, value in attrs
        ):
            self.refused.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag


def check(view: View) -> None:
    """Hold one view against the law."""
    assert isinstance(view, View)
    text = str(view)
    assert text.strip(), "an empty answer says so in words"
    assert max(map(len, text.splitlines())) <= 100
    assert repr(view) == text, "a cell shows the text, not the fields"
    tags = _Tags()
    tags.feed(view._repr_html_())
    assert (tags.open, tags.refused) == ([], [])
    assert json.loads(json.dumps(view.to_dict(), allow_nan=False)) == view.to_dict()


def test_every_view_of_the_package_is_under_the_law() -> None:
    public = {name for name, module in workbench._WHERE.items() if module.startswith("workbench.views.")}
    assert public <= set(VIEWS)
    assert len(VIEWS) >= 12


@pytest.mark.parametrize("function", **_BY_NAME)
def test_view_accepts_an_empty_journal(function: Function) -> None:
    check(function(Journal()))


@pytest.mark.parametrize("function", **_BY_NAME)
def test_view_accepts_records_of_every_kind(function: Function) -> None:
    journal = full_journal()
    check(function(journal))
    assert str(function(journal)) == str(function(journal)), "the same journal gives the same text"
    assert "<planted>" not in function(journal)._repr_html_(), "what a record says is text, never markup"


@pytest.mark.parametrize("function", **_BY_NAME)
def test_picture_can_be_drawn_of_any_journal(function: Function) -> None:
    for journal in (Journal(), full_journal()):
        figure = getattr(function(journal), "figure", None)
        if figure is not None:
            figure().canvas.draw()


def test_the_law_can_fail() -> None:
    class Wide:
        def __str__(self) -> str:
            return "x" * 101

        def _repr_html_(self) -> str:
            return "<script src='elsewhere'></script>"

        def to_dict(self) -> dict:
            return {}

    with pytest.raises(AssertionError):
        check(Wide())  # type: ignore[arg-type]
