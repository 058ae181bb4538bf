"""A line is counted once each time its statement is begun, with the module that stood in it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from torch import nn

from workbench.probes.observed_call import copy_call
from workbench.probes.reached_lines import watch_lines
from workbench.probes.user_code import shown_path

_FILE = shown_path(__file__)
_LINES = Path(__file__).read_text().splitlines()


def _line(mark):
    return next(number for number, line in enumerate(_LINES, start=1) if line.endswith(f"# {mark}"))


def program(count):
    total = 0
    for index in range(  # for
        count
    ):
        total += max(
            index,  # inner
            total,
        )
    while total > 0:  # while
        total -= 100
    if count > 100:
        total = 7  # never
    return max(
        total,  # answer
        0,
    )


@pytest.mark.parametrize(("mark", "calls"), [("for", 1), ("inner", 3), ("while", 2), ("never", 0), ("answer", 1)])
def test_a_statement_is_counted_when_it_begins(mark, calls):
    reached = watch_lines(copy_call(program, (3,), {}), {(_FILE, _line(mark))})
    assert reached.places[_FILE, _line(mark)].calls == calls
    assert reached.modules == ()


class Part(nn.Module):
    def forward(self, x):
        return helper(x)


class Whole(nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleList([Part(), Part()])
        self.spare = Part()

    def forward(self, x):
        for part in self.parts:
            x = part(x)
        return helper(x)


def helper(x):
    return x + 1  # helper


def test_a_line_of_a_plain_function_belongs_to_the_module_that_called_it():
    place = (_FILE, _line("helper"))
    reached = watch_lines(copy_call(Whole(), (1,), {}), {place})
    assert reached.places[place].calls == 3
    assert list(reached.places[place].modules) == ["parts.0", "parts.1", ""]
    assert reached.modules == ("", "parts.0", "parts.1")


def test_another_tracer_is_put_back_also_after_an_error():
    before = sys.gettrace()
    with pytest.raises(ZeroDivisionError):
        watch_lines(copy_call(lambda x: x / 0, (1,), {}), ())
    assert sys.gettrace() is before
