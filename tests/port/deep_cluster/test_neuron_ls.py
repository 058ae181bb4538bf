"""neuron-ls: every shape it is known to print, and every way it is known to fail."""

from __future__ import annotations

import json

import pytest

from port.deep_cluster.neuron_ls import find_tool, parse_json, parse_output, read_output, run_tool
from tests.port.deep_cluster.machines import listed, write_tool

_TABLE = """instance-type: trn2.48xlarge
instance-id: i-0
logical-neuroncore-config: 2
+--------+--------+----------+--------+-------------+--------------+----------+------+------+---------+---------+
| NEURON | NEURON |  NEURON  | NEURON |  CONNECTED  |     PCI      |   CPU    | NUMA | PID  | COMMAND | RUNTIME |
| DEVICE | CORES  | CORE IDS | MEMORY |   DEVICES   |     BDF      | AFFINITY | NODE |      |         | VERSION |
+--------+--------+----------+--------+-------------+--------------+----------+------+------+---------+---------+
| 0      | 4      | 0-3      | 96 GB  | 12, 3, 4, 1 | 0000:cc:00.0 | 0-11     | 1    | 7    | py a... | 2.0.0   |
|        |        |          |        |             |              |          |      | 8    |         | NA      |
+--------+--------+----------+--------+-------------+--------------+----------+------+------+---------+---------+
| 1      | 4      | 4-7      | 96 GB  | 13, 0       | 0000:cd:00.0 | 12-23    | -1   |      |         |         |
+--------+--------+----------+--------+-------------+--------------+----------+------+------+---------+---------+
"""
_OLD_TABLE = """+--------+--------+--------+---------+
| NEURON | NEURON | NEURON |   PCI   |
| DEVICE | CORES  | MEMORY |   BDF   |
+--------+--------+--------+---------+
| 0      | 2      | 32 GB  | 00:1f.0 |
+--------+--------+--------+---------+
"""


def test_counts_are_logical_already_and_physical_is_logical_times_the_size() -> None:
    machine = parse_json(json.dumps([listed(0), listed(1)]))
    assert (machine.logical_core_count, machine.physical_core_count, machine.lnc) == (8, 16, 2)
    assert machine.core_ids == tuple(range(8))
    assert machine.devices[0].memory_per_core_bytes == 24 * 1024**3


def test_one_physical_core_a_logical_one_leaves_twelve_gib_each() -> None:
    device = listed(0, nc_count=8, logical_neuroncore_config=1, neuroncore_ids=list(range(8)))
    machine = parse_json(json.dumps([device]))
    assert (machine.logical_core_count, machine.physical_core_count) == (8, 8)
    assert machine.cores[5].memory_bytes == 12 * 1024**3


def test_a_family_without_a_logical_size_has_as_many_physical_cores() -> None:
    keys = {"instance_type": "trn1.2xlarge", "nc_count": 2, "neuroncore_ids": [0, 1], "memory_size": 34359738368}
    machine = parse_json(json.dumps([listed(0, **keys, logical_neuroncore_config="absent")]))
    assert (machine.lnc, machine.logical_core_count, machine.physical_core_count) == (None, 2, 2)


def test_trn2_without_a_logical_size_still_has_eight_physical_cores_a_device() -> None:
    machine = parse_json(json.dumps([listed(0, logical_neuroncore_config="absent")]))
    assert (machine.lnc, machine.physical_core_count) == (None, 8)


@pytest.mark.parametrize("told", ["-1", "", None, "absent"])
def test_a_device_without_a_numa_node_has_none(told: object) -> None:
    assert parse_json(json.dumps([listed(0, numa_node=told)])).devices[0].numa_node is None


def test_an_old_tool_with_three_keys_is_enough() -> None:
    machine = parse_json('[{"neuron_device": 3, "nc_count": 2, "memory_size": 34359738368}]')
    assert machine.core_ids == (6, 7)
    assert "core ids are not told" in machine.notes[0]
    assert machine.devices[0].bdf is None
    assert machine.devices[0].cpus == ()


def test_a_container_shows_some_devices_and_links_to_others() -> None:
    machine = parse_json(json.dumps([listed(5, connected_to=[9, 4, 5, 1])]))
    assert machine.core_ids == (20, 21, 22, 23)
    assert machine.invisible_links == (9, 4, 1)


def test_a_process_without_a_command_holds_its_device_all_the_same() -> None:
    processes = [{"pid": 9, "command": "", "neuron_runtime_version": "NA"}, {"pid": 10, "command": "python ru..."}]
    machine = parse_json(json.dumps([listed(0, neuron_processes=processes), listed(1)]))
    assert machine.busy_core_ids == (0, 1, 2, 3)
    assert machine.free_core_ids == (4, 5, 6, 7)
    assert machine.pids == (9, 10)
    assert [process.is_command_whole for process in machine.devices[0].processes] == [False, False]
    assert machine.devices[0].processes[0].runtime_version is None


@pytest.mark.parametrize("text", ["[]", "null"])
def test_an_empty_list_is_a_machine_without_devices(text: str) -> None:
    machine = read_output(text, "", 0)
    assert (machine.is_available, machine.cause) == (False, "no_device")
    assert "lists none" in machine.reason


def test_log_lines_before_the_document_are_passed_over() -> None:
    text = 'time="x" level=warning msg="old driver"\n' + json.dumps([listed(0)])
    assert parse_json(text).logical_core_count == 4


@pytest.mark.parametrize(
    ("entries", "named"),
    [
        ([{"nc_count": 2}], "device 0 of the list: expected a whole number as neuron_device"),
        ([listed(0), listed(0)], "found device 0 more than once"),
        ([listed(0), listed(1, neuroncore_ids=[3, 4, 5, 6])], "found core id 3 more than once"),
        ([listed(0, neuroncore_ids=[0, 1])], "expected nc_count ids, 4; found 2"),
        ([listed(0, nc_count="four")], "expected a whole number as nc_count; found 'four'"),
        ([listed(0, connected_to=["x"])], "connected_to: expected a list of whole numbers"),
        ([listed(0, connected_to="x")], "connected_to: expected numbers and ranges"),
        ([listed(0, neuron_processes=[{}])], "expected a pid"),
        ([7], "expected an object; found int"),
        ({"a": 1}, "expected a JSON array of devices; found dict"),
    ],
)
def test_a_list_that_cannot_be_right_is_refused_with_its_place(entries: object, named: str) -> None:
    with pytest.raises(ValueError, match="neuron-ls") as refused:
        parse_json(json.dumps(entries))
    assert named in str(refused.value)


def test_the_printed_table_says_the_same_as_the_document() -> None:
    machine = parse_output(_TABLE)
    assert (machine.instance_type, machine.lnc, machine.core_ids) == ("trn2.48xlarge", 2, tuple(range(8)))
    assert machine.devices[0].memory_bytes == 103079215104
    assert machine.devices[0].links == (12, 3, 4, 1)
    assert [process.pid for process in machine.devices[0].processes] == [7, 8]
    assert machine.numa_nodes == {1: (0,), None: (1,)}
    old = parse_output(_OLD_TABLE)
    assert (old.logical_core_count, old.devices[0].memory_bytes, old.lnc) == (2, 34359738368, None)


def test_a_table_without_the_needed_columns_is_refused() -> None:
    with pytest.raises(ValueError, match="columns for device and cores; found NEURON DEVICE, NEURON CORE COUNT"):
        parse_output(_OLD_TABLE.replace("CORES ", "CORE COUNT").replace("| DEVICE |", "| DEVICE |"))


_FATAL = 'time="t" level=fatal msg="Failed to load MLA system information" error="failed to discover Neuron devices"\n'


@pytest.mark.parametrize(
    ("stdout", "stderr", "exit_code", "cause", "words"),
    [
        ("", _FATAL, 1, "no_device", "no Neuron device / driver (exit 1, message on stderr): failed to discover"),
        ("", "", 2, "no_device", "(exit 2, no message)"),
        ("", 'level=fatal msg="x" error="open /dev/neuron0: permission denied"', 1, "no_permission", "no permission"),
        ("", "sh: neuron-ls: command not found", 127, "not_installed", "neuron-ls is not installed"),
        ("", "plain words\nlast words\n", 1, "no_device", "last words"),
        ("[{", "", 0, "unreadable", "no whole JSON"),
        ("[{", _FATAL, 1, "no_device", "failed to discover"),
        ("[]", _FATAL, 1, "no_device", "failed to discover"),
    ],
)
def test_a_failure_is_an_answer_with_its_reason(
    stdout: str, stderr: str, exit_code: int, cause: str, words: str
) -> None:
    machine = read_output(stdout, stderr, exit_code)
    assert not machine.is_available
    assert machine.cause == cause
    assert words in machine.reason
    assert "JSONDecodeError" not in machine.reason
    if cause != "not_installed":
        assert "not installed" not in machine.reason


def test_devices_beside_a_failure_are_kept_and_the_failure_is_noted() -> None:
    machine = read_output(json.dumps([listed(0)]), _FATAL, 1)
    assert machine.is_available
    assert "exit 1" in machine.notes[0]


def test_the_tool_is_found_on_path_before_the_drivers_folder(tmp_path) -> None:
    assert find_tool(None, root=tmp_path) is None
    write_tool(tmp_path / "opt/aws/neuron/bin")
    assert find_tool("/absent", root=tmp_path) == str(tmp_path / "opt/aws/neuron/bin/neuron-ls")
    mine = write_tool(tmp_path / "mine")
    assert find_tool(f"/absent:{mine}", root=tmp_path) == str(mine / "neuron-ls")


def test_a_tool_that_hangs_or_cannot_start_is_a_reason(tmp_path) -> None:
    tool = write_tool(tmp_path, body="exec sleep 60") / "neuron-ls"
    hung = run_tool(str(tool), limit_s=0.2)
    assert (hung.cause, "no answer within 0.2 s" in hung.reason) == ("timeout", True)
    tool.write_text("#!/absent/interpreter\n")
    assert "could not be started" in run_tool(str(tool)).reason


def test_everything_can_be_written_as_json() -> None:
    body = json.loads(json.dumps(parse_json(json.dumps([listed(0)])).to_dict()))
    assert body["devices"][0]["core_ids"] == [0, 1, 2, 3]
    assert body["links_to_invisible_devices"] == [1]


def test_ids_may_be_written_as_ranges() -> None:
    assert parse_json(json.dumps([listed(2, neuroncore_ids="8-11", connected_to="3, 1")])).core_ids == (8, 9, 10, 11)


def test_no_text_whatever_makes_it_raise() -> None:
    whole = json.dumps([listed(0, neuron_processes=[{"pid": 1}])], indent=1)
    for cut in range(0, len(whole), 3):
        for text in (whole[:cut], whole[cut:], whole[:cut] + "null" + whole[cut + 4 :]):
            machine = read_output(text, "", 0)
            assert machine.is_available or machine.reason
    assert read_output("[" * 100_000, "", 0).cause == "unreadable"
