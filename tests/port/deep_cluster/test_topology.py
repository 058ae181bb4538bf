"""Where a process should run, and what binding it did."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from port.deep_cluster import topology
from port.errors import PlatformError
from tests.port.deep_cluster.machines import listed, write_machine


@pytest.fixture
def trn2(tmp_path: Path) -> Path:
    return write_machine(tmp_path, listed(0), listed(1))


@pytest.fixture
def bound(monkeypatch: pytest.MonkeyPatch) -> list[set[int]]:
    """The CPU sets that were asked for, in a process that may use 0 to 15."""
    asked: list[set[int]] = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)))
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, cpus: asked.append(set(cpus)))
    monkeypatch.setattr("ctypes.util.find_library", lambda name: None)
    return asked


def write_nodes(root: Path, nodes: dict[int, str], siblings: dict[int, str]) -> Path:
    for node, cpus in nodes.items():
        folder = root / f"sys/devices/system/node/node{node}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(cpus + "\n")
    for cpu, text in siblings.items():
        folder = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(text + "\n")
    return root


def test_a_rank_lies_where_its_core_lies(trn2: Path) -> None:
    variables = {"NEURON_RT_VISIBLE_CORES": "5,1"}
    assert [topology.which_numa(rank, trn2, variables) for rank in (0, 1)] == [1, 0]
    assert topology.cpus_near(1, trn2, variables) == (0, 1, 2, 3, 8)
    with pytest.raises(IndexError):
        topology.which_numa(2, trn2, variables)


def test_a_machine_without_devices_has_no_place_for_a_rank(tmp_path: Path) -> None:
    assert topology.which_numa(0, tmp_path, {}) is None
    assert topology.cpus_near(0, tmp_path, {}) == ()


def test_a_cpu_list_is_read_as_the_tool_writes_it(bound: list[set[int]]) -> None:
    assert topology.set_cpu_affinity("0-2,14-20") == (0, 1, 2, 14, 15)
    assert topology.set_cpu_affinity([3, 4]) == (3, 4)
    assert bound == [{0, 1, 2, 14, 15}, {3, 4}]


@pytest.mark.parametrize(
    ("cpus", "error"), [("", ValueError), ([], ValueError), ([-1], ValueError), ([99], PlatformError)]
)
def test_cpus_that_cannot_be_had_are_refused(bound: list[set[int]], cpus: object, error: type[Exception]) -> None:
    with pytest.raises(error, match="CPU list: expected"):
        topology.set_cpu_affinity(cpus)  # pyright: ignore[reportArgumentType]
    assert bound == []


def test_a_node_is_bound_by_its_cpus_and_says_that_memory_is_not(tmp_path: Path, bound: list[set[int]]) -> None:
    write_nodes(tmp_path, {0: "0-3", 1: "4-7"}, {})
    done = topology.bind_numa(1, tmp_path)
    assert (done.node, done.cpus, done.binds_memory) == (1, (4, 5, 6, 7), False)
    assert "libnuma is not installed" in done.reason
    with pytest.raises(PlatformError, match="NUMA node 7: expected one of 0-1"):
        topology.bind_numa(7, tmp_path)


def test_no_node_binds_nothing_and_says_so(bound: list[set[int]]) -> None:
    assert topology.bind_numa(None).reason == "no NUMA node is known, so nothing was bound"
    assert bound == []


def test_physical_cores_are_one_cpu_of_each_pair(tmp_path: Path) -> None:
    pairs = {cpu: f"{cpu % 4},{cpu % 4 + 4}" for cpu in range(8)}
    write_nodes(tmp_path, {0: "0-1,4-5", 1: "2-3,6-7"}, pairs)
    assert topology.physical_core_cpus_by_numa(tmp_path) == {0: (0, 1), 1: (2, 3)}
    assert topology.physical_core_cpus_by_numa(tmp_path / "absent") == {0: ()}
