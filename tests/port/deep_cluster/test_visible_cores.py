"""Which cores a process may take: the lists, the order of the variables, and what does not fit the machine."""

from __future__ import annotations

import json

import pytest

from port.deep_cluster.machine import Machine
from port.deep_cluster.neuron_ls import parse_json
from port.deep_cluster.number_lists import numbers_text
from port.deep_cluster.visible_cores import parse_visible_cores, visible_cores
from port.environment import Environment
from tests.port.deep_cluster.machines import listed


@pytest.fixture
def machine() -> Machine:
    return parse_json(json.dumps([listed(0), listed(1)]))


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("3", (3,)),
        ("0,2,5", (0, 2, 5)),
        ("0-3", (0, 1, 2, 3)),
        ("0-3,8", (0, 1, 2, 3, 8)),
        (" 4 - 5 , 1 ", (4, 5, 1)),
        ("7-7", (7,)),
    ],
)
def test_lists_keep_their_order_and_ranges_include_both_ends(text: str, ids: tuple[int, ...]) -> None:
    assert parse_visible_cores(text) == ids


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "a part is empty"),
        ("0,,1", "a part is empty"),
        ("0,1,", "a part is empty"),
        ("-1", "'-1' is negative"),
        ("3-0", "the range '3-0' is reversed"),
        ("0-3,2", "2 stands there twice"),
        ("a", "'a'"),
        ("1;2", "'1;2'"),
        ("1.5", "'1.5'"),
        ("0-999999", "more than 100,000 numbers"),
        ("0-1-2", "'0-1-2'"),
    ],
)
def test_what_is_no_list_is_refused_with_the_part_at_fault(text: str, fault: str) -> None:
    with pytest.raises(ValueError, match="NEURON_RT_VISIBLE_CORES: expected numbers and ranges") as refused:
        parse_visible_cores(text)
    assert fault in str(refused.value)


def test_numbers_are_written_as_short_as_they_can_be_read() -> None:
    assert numbers_text([8, 3, 1, 2, 0]) == "0-3,8"
    assert numbers_text([]) == ""
    assert parse_visible_cores(numbers_text(range(64))) == tuple(range(64))


def test_the_list_goes_before_the_count(machine: Machine) -> None:
    found = visible_cores(machine, Environment({"NEURON_RT_VISIBLE_CORES": "6,2", "NEURON_RT_NUM_CORES": "3"}))
    assert (found.core_ids, found.decided_by, found.problems) == ((6, 2), "NEURON_RT_VISIBLE_CORES", ())
    assert "NEURON_RT_NUM_CORES is passed over" in found.notes[0]


@pytest.mark.parametrize(("count", "ids"), [("0", 8), ("3", 3)])
def test_a_count_of_nought_is_every_core(machine: Machine, count: str, ids: int) -> None:
    found = visible_cores(machine, Environment({"NEURON_RT_NUM_CORES": count}))
    assert found.core_ids == tuple(range(ids))
    assert found.problems == ()


@pytest.mark.parametrize(
    ("variables", "named"),
    [
        ({"NEURON_RT_VISIBLE_CORES": "6-9"}, "names cores 8-9; this machine has 0-7"),
        ({"NEURON_RT_VISIBLE_CORES": "x"}, "expected numbers and ranges"),
        ({"NEURON_RT_NUM_CORES": "9"}, "asks for 9 cores; this machine has 8"),
        ({"NEURON_RT_NUM_CORES": "-2"}, "expected a whole number of at least 0"),
        ({"NEURON_LOGICAL_NC_CONFIG": "1"}, "NEURON_LOGICAL_NC_CONFIG=1, but neuron-ls says 2"),
        ({"NEURON_LOGICAL_NC_CONFIG": "4"}, "expected 1 or 2"),
    ],
)
def test_what_does_not_fit_the_machine_is_told(machine: Machine, variables: dict[str, str], named: str) -> None:
    problems = visible_cores(machine, Environment(variables)).problems
    assert len(problems) == 1
    assert named in problems[0]


def test_the_size_the_machine_has_is_no_problem(machine: Machine) -> None:
    assert visible_cores(machine, Environment({"NEURON_LOGICAL_NC_CONFIG": "2"})).problems == ()
