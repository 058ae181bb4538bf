"""The contract's questions, asked of made-up machines: Neuron by each source, and a CPU one."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from port.deep_cluster import hardware
from port.deep_cluster.discovery import discover
from port.deep_cluster.sysfs import core_memory, driver_version
from port.environment import Environment
from port.errors import PlatformError
from tests.port.deep_cluster.machines import listed, write_machine, write_tool, write_tree


@pytest.fixture
def trn2(tmp_path: Path) -> Path:
    return write_machine(tmp_path, listed(0), listed(1))


def test_one_device_is_one_logical_core(trn2: Path) -> None:
    assert hardware.accelerator_kind(trn2, {}) == "neuron"
    assert hardware.physical_device_count(trn2, {}) == hardware.get_actual_num_gpus(trn2, {}) == 8
    assert hardware.visible_device_env_name(trn2, {}) == "NEURON_RT_VISIBLE_CORES"
    assert hardware.visible_devices(trn2, {}) is None
    assert hardware.visible_device_ids(trn2, {}) == tuple("01234567")
    assert hardware.hbm_bytes_per_core(trn2, {}) == 24 * 1024**3


def test_a_machine_without_devices_answers_without_an_error(tmp_path: Path) -> None:
    assert hardware.accelerator_kind(tmp_path, {}) == "cpu"
    assert hardware.physical_device_count(tmp_path, {}) == hardware.num_gpus(tmp_path, {}) == 0
    assert hardware.visible_device_env_name(tmp_path, {}) is None
    assert hardware.visible_device_ids(tmp_path, {"NEURON_RT_VISIBLE_CORES": "0-3"}) == ()
    assert hardware.hbm_bytes_per_core(tmp_path, {}) is None
    assert math.isnan(hardware.get_bf16_tflops_limit(tmp_path, {}))
    assert hardware.is_sm_major_10() is False
    with pytest.raises(PlatformError, match=r"expected a machine with Neuron devices; found no Neuron device"):
        hardware.set_visible_devices("0", tmp_path, {})
    with pytest.raises(RuntimeError):
        hardware.assign_visible_devices(0, 1, 0, tmp_path, {})


@pytest.mark.parametrize(
    ("text", "ids", "count"),
    [("4,6", ("4", "6"), 2), ("", (), 0), ("-1", (), 0), ("0-3,20", ("0", "1", "2", "3", "20"), 5)],
)
def test_the_variable_decides_what_is_visible(trn2: Path, text: str, ids: tuple[str, ...], count: int) -> None:
    variables = {"NEURON_RT_VISIBLE_CORES": text}
    assert hardware.visible_devices(trn2, variables) == text
    assert hardware.visible_device_ids(trn2, variables) == ids
    assert hardware.visible_device_count(trn2, variables) == count


def test_more_ids_than_cores_count_as_the_cores(trn2: Path) -> None:
    assert hardware.visible_device_count(trn2, {"NEURON_RT_VISIBLE_CORES": "0-15"}) == 8


def test_a_value_that_is_no_list_is_an_error(trn2: Path) -> None:
    with pytest.raises(ValueError, match="NEURON_RT_VISIBLE_CORES"):
        hardware.visible_device_ids(trn2, {"NEURON_RT_VISIBLE_CORES": "all"})
    with pytest.raises(ValueError, match="NEURON_RT_NUM_CORES"):
        hardware.visible_device_ids(trn2, {"NEURON_RT_NUM_CORES": "some"})


def test_a_local_rank_has_the_id_at_its_place(trn2: Path) -> None:
    variables = {"NEURON_RT_VISIBLE_CORES": "6,2"}
    assert [hardware.physical_device_id(rank, trn2, variables) for rank in (0, 1)] == ["6", "2"]
    for rank in (-1, 2):
        with pytest.raises(IndexError, match="expected a rank below 2"):
            hardware.physical_device_id(rank, trn2, variables)


@pytest.mark.parametrize(
    ("rank", "size", "offset", "ids"),
    [(0, 2, 0, "0,1"), (3, 2, 0, "6,7"), (5, 2, 0, "2,3"), (1, 2, 4, "6,7"), (2, 2, 4, "4,5"), (7, 1, 0, "7")],
)
def test_ranks_go_round_the_runs_of_cores(trn2: Path, rank: int, size: int, offset: int, ids: str) -> None:
    variables: dict[str, str] = {}
    assert hardware.assign_visible_devices(rank, size, offset, trn2, variables) == tuple(ids.split(","))
    assert variables == {"NEURON_RT_VISIBLE_CORES": ids}


def test_a_container_assigns_the_ids_it_has(tmp_path: Path) -> None:
    root = write_machine(tmp_path, listed(5))
    assert hardware.assign_visible_devices(1, 2, 0, root, {}) == ("22", "23")


@pytest.mark.parametrize(
    ("rank", "size", "offset", "named"),
    [(0, 3, 0, "runs of 3; found 2 left over"), (0, 2, 8, "found 0 left"), (-1, 1, 0, "rank -1"), (0, 0, 0, "0 per")],
)
def test_cores_that_do_not_divide_are_refused(trn2: Path, rank: int, size: int, offset: int, named: str) -> None:
    with pytest.raises(ValueError, match="assign_visible_devices: expected") as refused:
        hardware.assign_visible_devices(rank, size, offset, trn2, {})
    assert named in str(refused.value)


def test_ids_are_written_as_given_and_must_be_on_the_machine(trn2: Path) -> None:
    variables: dict[str, str] = {}
    hardware.set_visible_devices("2-3", trn2, variables)
    assert variables["NEURON_RT_VISIBLE_CORES"] == "2-3"
    hardware.set_visible_devices([5, "6"], trn2, variables)
    assert variables["NEURON_RT_VISIBLE_CORES"] == "5,6"
    hardware.set_visible_devices((), trn2, variables)
    assert hardware.visible_device_ids(trn2, variables) == ()
    with pytest.raises(ValueError, match="expected cores among 0-7; found 8"):
        hardware.set_visible_devices("7-8", trn2, variables)


def test_numa_nodes_are_those_of_the_devices(trn2: Path) -> None:
    assert [hardware.device_numa_node(core, trn2, {}) for core in (0, 3, 4, 7)] == [0, 0, 1, 1]
    with pytest.raises(IndexError, match="expected one of 0-7"):
        hardware.device_numa_node(8, trn2, {})


@pytest.mark.parametrize(("size", "count", "tflops"), [(2, 4, 158.0), (1, 8, 79.0)])
def test_the_peak_is_that_of_a_logical_core(tmp_path: Path, size: int, count: int, tflops: float) -> None:
    device = listed(0, logical_neuroncore_config=size, nc_count=count, neuroncore_ids=list(range(count)))
    assert hardware.get_bf16_tflops_limit(write_machine(tmp_path, device), {}) == tflops


def test_a_family_whose_peak_is_not_known_is_an_error(tmp_path: Path) -> None:
    root = write_machine(tmp_path, listed(0, instance_type="trn9.1xlarge"))
    with pytest.raises(PlatformError, match=r"found trn9\.1xlarge"):
        hardware.get_bf16_tflops_limit(root, {})


def test_the_drivers_tree_answers_where_the_tool_does_not(tmp_path: Path) -> None:
    write_tree(tmp_path, devices=2)
    write_tool(tmp_path / "bin", stderr='level=fatal msg="no"', exit_code=1)
    machine = discover(root=tmp_path, environment=Environment({"PATH": str(tmp_path / "bin")}))
    assert (machine.source, machine.logical_core_count, machine.physical_core_count) == ("sysfs", 8, 16)
    assert machine.devices[1].links == (3, 1)
    assert "neuron-ls gave no list" in machine.notes[-1]
    assert hardware.get_bf16_tflops_limit(tmp_path, {}) == 158.0
    assert hardware.physical_device_count(tmp_path, {"NEURON_LOGICAL_NC_CONFIG": "1"}) == 16
    assert hardware.hbm_bytes_per_core(tmp_path, {"NEURON_LOGICAL_NC_CONFIG": "1"}) == 12 * 1024**3


def test_the_drivers_tree_counts_memory_without_the_runtime(tmp_path: Path) -> None:
    cores = core_memory(write_tree(tmp_path, devices=1, cores=2))
    assert [(core.device, core.core, core.present_bytes) for core in cores] == [(0, 0, 4096), (0, 1, 4096)]
    assert (cores[0].device_memory[0].category, cores[0].device_memory[0].peak) == ("tensors", 8192)
    assert core_memory(tmp_path / "absent") == ()
    (tmp_path / "sys/module/neuron").mkdir(parents=True)
    (tmp_path / "sys/module/neuron/version").write_text("2.27.1.0\n")
    assert driver_version(tmp_path) == "2.27.1.0"


def test_device_nodes_alone_are_devices_without_known_cores(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    for name in ("neuron0", "neuron10", "neuron2", "neuronx"):
        (tmp_path / "dev" / name).touch()
    assert hardware.accelerator_kind(tmp_path, {}) == "neuron"
    assert [device.index for device in discover(root=tmp_path).devices] == [0, 2, 10]
    with pytest.raises(PlatformError, match=r"3 Neuron devices have nodes in /dev, but neither neuron-ls nor"):
        hardware.physical_device_count(tmp_path, {})


def test_an_old_tool_is_completed_by_the_driver(tmp_path: Path) -> None:
    write_tree(tmp_path, devices=1)
    write_machine(tmp_path, listed(0, instance_type="absent"))
    assert discover(root=tmp_path).instance_type == "trn2"


def test_a_made_up_root_is_never_described_by_this_machines_tool(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("PATH", str(write_machine(tmp_path / "real", listed(0)) / "opt/aws/neuron/bin"))
    assert hardware.accelerator_kind(tmp_path / "other") == "cpu"
    assert discover().is_available
