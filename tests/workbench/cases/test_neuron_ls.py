"""neuron-ls and neuron-monitor cases: the handed ones, others of the kind, and answers that must fail."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from port.deep_cluster.machine import Machine
from tests.port.deep_cluster.machines import listed
from tests.shared import shared_path
from workbench.cases import neuron_ls
from workbench.cases.neuron_deeds import deed_faults
from workbench.cases.neuron_ls import run_case

_FATAL = 'time="t" level=fatal msg="Failed to load system information" error="failed to discover Neuron devices"\n'
_TABLE = """instance-type: trn2.3xlarge
instance-id: i-0
logical-neuroncore-config: 2
+--------+--------+----------+--------+--------------+----------+------+
| NEURON | NEURON |  NEURON  | NEURON |     PCI      |   CPU    | NUMA |
| DEVICE | CORES  | CORE IDS | MEMORY |     BDF      | AFFINITY | NODE |
+--------+--------+----------+--------+--------------+----------+------+
| 0      | 4      | 0-3      | 96 GB  | 0000:33:00.0 | 0-11     | 0    |
+--------+--------+----------+--------+--------------+----------+------+
"""


def write_case(folder: Path, files: dict[str, str], expected: dict, **other: object) -> Path:
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    body = {"id": "NLS-99", "class": "neuron_ls_monitor", "files": list(files), "expected": expected, **other}
    (folder / "expected.json").write_text(json.dumps(body), encoding="utf-8")
    return folder


def differences(folder: Path, files: dict[str, str], expected: dict, **other: object) -> str:
    result = run_case(write_case(folder, files, expected, **other))
    assert result.status == ("failed" if result.differences else "passed")
    return "\n".join(result.differences)


@pytest.mark.parametrize("name", ["NLS-01", "NLS-03", "NLS-04", "NLS-07", "NLS-08", "NLS-12"])
def test_a_handed_case_passes(name: str) -> None:
    assert run_case(shared_path("cases", name)).differences == ()


def test_one_physical_core_in_a_logical_one(tmp_path: Path) -> None:
    device = listed(0, nc_count=8, logical_neuroncore_config=1, neuroncore_ids=list(range(8)))
    expected = {
        "lnc": 1,
        "logical_cores": 8,
        "physical_cores": 8,
        "core_ids": "0-7",
        "memory_per_logical_core_bytes": 12884901888,
        "numa": {"0": 0},
        "free_cores": "0-7",
        "cpu_affinity": "0-3,8",
    }
    assert differences(tmp_path, {"neuron-ls.json": json.dumps([device])}, expected) == ""


def test_old_tools_and_held_devices(tmp_path: Path) -> None:
    devices = [{"neuron_device": at, "bdf": f"{at}c:00.0", "nc_count": 2, "memory_size": 34359738368,
                "connected_to": [at ^ 1]} for at in range(2)]  # fmt: skip
    devices[1]["neuron_processes"] = [{"pid": 5, "command": "python a_long_na...", "neuron_runtime_version": "NA"}]
    expected = {
        "instance_type": None,
        "core_ids": [0, 1, 2, 3],
        "busy_cores": [2, 3],
        "free_devices": [0],
        "links": {"0": [1], "1": [0]},
        "links_to_invisible_devices": [],
        "bdf": {"1": "1c:00.0"},
        "processes": [{"pid": 5, "truncated": True, "runtime_version": None}],
        "total_memory_bytes": 68719476736,
        "missing_keys": ["instance_type", "instance_id", "logical_neuroncore_config", "cpu_affinity",
                         "neuroncore_ids", "numa_node"],
    }  # fmt: skip
    assert differences(tmp_path, {"neuron-ls.json": json.dumps(devices)}, expected) == ""


def test_the_printed_table(tmp_path: Path) -> None:
    expected = {"instance_type": "trn2.3xlarge", "devices": 1, "logical_cores": 4, "lnc": 2, "core_ids": "0-3",
                "device_memory_bytes": 103079215104, "numa_node": 0}  # fmt: skip
    assert differences(tmp_path, {"neuron-ls.txt": _TABLE}, expected) == ""


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"stdout.txt": "", "stderr.txt": _FATAL, "exit_code.txt": "1\n"},
         {"devices": 0, "available": False, "exit_code": 1, "error": "failed to discover Neuron devices"}),
        ({"stdout.txt": "", "stderr.txt": "bash: neuron-ls: command not found\n", "exit_code.txt": "127"},
         {"available": False, "reason": "neuron-ls is not installed", "fallback": "host only"}),
        ({"stdout": "", "stderr": 'level=fatal error="open /dev/neuron0: permission denied"', "exit_code": "1"},
         {"devices": 0, "reason": "no permission to open the device"}),
        ({"neuron-ls.json": "[]"}, {"devices": 0, "available": False, "logical_cores": 0, "core_ids": []}),
    ],
)  # fmt: skip
def test_failures_of_every_kind(tmp_path: Path, files: dict[str, str], expected: dict) -> None:
    assert differences(tmp_path, files, expected) == ""


@pytest.mark.parametrize("text", ["", '{"neuron_ru'])
def test_files_cut_to_nothing_are_known_by_their_names(tmp_path: Path, text: str) -> None:
    assert differences(tmp_path, {"neuron-monitor.ndjson": text}, {"samples": 0, "partial_last_line": bool(text)}) == ""
    assert differences(tmp_path, {"neuron-ls.json": text}, {"devices": 0, "available": False}) == ""


def test_two_outputs_in_one_folder_are_told_apart(tmp_path: Path) -> None:
    files = {"a.json": json.dumps([listed(0)]), "b.json": json.dumps([listed(0), listed(1)])}
    expected = {"files": {"a.json": {"devices": 1}, "b.json": {"devices": 2, "lnc": 2}}}
    assert differences(tmp_path, files, expected) == ""
    assert "b.json: devices: expected 3; found 2" in differences(tmp_path, files, {"files": {"b.json": {"devices": 3}}})


@pytest.mark.parametrize(
    ("expected", "named"),
    [
        ({"logical_cores": 2}, "logical_cores: expected 2; found 4"),
        ({"core_ids": "0-2"}, "core_ids: expected '0-2'; found [0, 1, 2, 3]"),
        ({"devices": 0}, "devices: expected 0; found 1"),
        ({"links": {}}, "links: expected {}; found {'0': [1]}"),
        ({"numa": {"0": None}}, "numa: expected"),
        ({"busy_cores": [0]}, "busy_cores: expected [0]; found []"),
        ({"available": False}, "available: expected False; found True"),
        ({"colour_of_the_board": "blue"}, "found no fact of that name, so it is not answered"),
        ({}, "found nothing to compare with"),
    ],
)
def test_a_wrong_expectation_fails_with_both_sides(tmp_path: Path, expected: dict, named: str) -> None:
    assert named in differences(tmp_path, {"neuron-ls.json": json.dumps([listed(0)])}, expected)


def test_monitor_facts_of_several_runtimes(tmp_path: Path) -> None:
    def one(pid: int, used: int) -> dict:
        memory = {"neuron_runtime_used_bytes": {"host": 1, "neuron_device": used}}
        return {"pid": pid, "report": {"memory_used": memory, "neuroncore_counters": {
            "neuroncores_in_use": {str(pid): {"neuroncore_utilization": 50.0}}, "error": ""}}}  # fmt: skip

    line = json.dumps(
        {"neuron_runtime_data": [one(1, 7), one(2, 9)], "instance_info": {"instance_type": "trn1.2xlarge"}}
    )
    expected = {
        "samples": 1,
        "partial_last_line": False,
        "pids": [1, 2],
        "device_bytes": {"1": 7, "2": 9},
        "runtimes": [{"pid": 2, "utilization": {"2": 50.0}}, {"pid": 1, "device_bytes": 7, "errors": []}],
        "ecc_corrected": None,
        "devices": None,
    }
    assert differences(tmp_path, {"neuron-monitor.ndjson": line + "\n"}, expected) == ""
    assert "second: expected" in differences(tmp_path, {"m.ndjson": line + "\n"}, {"second": {"runtimes": 1}})


def test_what_must_not_be_said_is_looked_for(tmp_path: Path) -> None:
    files = {"neuron-ls.json": json.dumps([listed(0)])}
    said = differences(tmp_path, files, {"devices": 1}, must_not=["say 4 logical cores because of nothing"])
    assert "must_not: expected that nobody says" in said
    assert differences(tmp_path, files, {"devices": 1}, must_not=["say 64 cores because of the instance type"]) == ""
    assert "found it" in differences(tmp_path, files, {"devices": 1}, must_not=["say 'no process holds a device'"])


def test_wrong_deeds_are_seen_by_the_text_itself(tmp_path: Path) -> None:
    path = tmp_path / "neuron-ls.json"
    path.write_text(json.dumps([listed(0, neuron_processes=[{"pid": 1, "command": ""}])]))
    wrong = neuron_ls.read_saved(path)[0].found
    assert isinstance(wrong, Machine)
    assert list(deed_faults(path, wrong)) == []
    path.write_text(path.read_text().replace('"nc_count": 4', '"nc_count": 2').replace("[0, 1, 2, 3]", "[0, 2]"))
    faults = "\n".join(deed_faults(path, wrong))
    assert "expected the sum of nc_count, 2; found 4" in faults
    assert "expected those of neuroncore_ids, [0, 2]" in faults


def test_a_folder_without_output_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(Exception, match=r"expected output of neuron-ls or neuron-monitor; found x\.bin"):
        differences(tmp_path, {"x.bin": "\0"}, {"devices": 1})
