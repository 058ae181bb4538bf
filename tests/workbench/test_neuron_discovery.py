"""What `workbench doctor` says of Neuron hardware, of variables that misfit it, and of variables set too late."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.port.deep_cluster.machines import listed, write_machine, write_tool
from workbench.cli import main
from workbench.doctor_report import Line
from workbench.neuron_discovery import hardware_lines, hardware_obstacles, look_at_neuron, system_packages
from workbench.neuron_timing import timing_lines
from workbench.placement_trial import Trial
from workbench.settings import initial_variables

_HELD = [{"pid": 41, "command": "python serve.py", "neuron_runtime_version": "2.34.10"}]
_FATAL = 'level=fatal msg="x" error="failed to discover Neuron devices"'
_STATUS = """Package: aws-neuronx-dkms
Status: install ok installed
Version: 2.27.4.0

Package: aws-neuronx-tools
Status: deinstall ok config-files
Version: 2.30.0.0

Package: bash
Status: install ok installed
Version: 5.2
"""


def lines(root: Path, **variables: str) -> dict[str, Line]:
    return {line.name: line for line in hardware_lines(look_at_neuron(root), variables)}


def write_node(root: Path) -> Path:
    (root / "dev").mkdir(exist_ok=True)
    (root / "dev" / "neuron0").touch()
    return root


def test_everything_of_a_machine_is_told(tmp_path: Path) -> None:
    write_node(write_machine(tmp_path, listed(0, neuron_processes=_HELD, connected_to=[1, 12]), listed(1)))
    (tmp_path / "sys/module/neuron").mkdir(parents=True)
    (tmp_path / "sys/module/neuron/version").write_text("2.27.4.0\n")
    (tmp_path / "var/lib/dpkg").mkdir(parents=True)
    (tmp_path / "var/lib/dpkg/status").write_text(_STATUS)
    found = lines(tmp_path)
    assert found["devices"].found == "trn2.48xlarge, 2 devices, as neuron-ls says"
    assert found["cores"].found == "8 logical cores (ids 0-7), 16 physical, logical core size 2"
    assert found["memory"].found == "96.00 GiB a device, 24.00 GiB a logical core"
    assert "cores 0-3 held by pid 41 (python serve.py)" in found["held by"].found
    assert found["NUMA"].found == "node 0: devices 0; node 1: devices 1; CPUs 0-3,8 / 4-7"
    assert "linked to devices 12" in found["links"].found
    assert found["driver"].found == "version 2.27.4.0"
    assert found["aws-neuronx-dkms"].found == "2.27.4.0"
    assert "aws-neuronx-tools" not in found
    assert found["runtime of others"].found == "2.34.10"
    assert (found["visible cores"].found, found["visible cores"].state) == ("0-7 (8 cores, no variable set)", "ok")
    assert (found["visible and held"].state, found["visible and held"].found) == ("note", "cores 0-3 by pids 41")


@pytest.mark.parametrize(
    ("variables", "named"),
    [
        ({"NEURON_RT_VISIBLE_CORES": "6-9"}, "names cores 8-9; this machine has 0-7"),
        ({"NEURON_RT_VISIBLE_CORES": "3-0"}, "the range '3-0' is reversed"),
        ({"NEURON_RT_NUM_CORES": "16"}, "asks for 16 cores"),
        ({"NEURON_LOGICAL_NC_CONFIG": "1"}, "but neuron-ls says 2"),
    ],
)
def test_a_variable_that_misfits_the_machine_is_a_problem(
    tmp_path: Path, variables: dict[str, str], named: str
) -> None:
    line = lines(write_machine(tmp_path, listed(0), listed(1)), **variables)["variables"]
    assert line.state == "problem"
    assert named in line.found
    assert line.advice


def test_a_value_that_cannot_be_read_is_told_without_a_machine_too(tmp_path: Path) -> None:
    assert "variables" not in lines(tmp_path, NEURON_RT_VISIBLE_CORES="0-3")
    assert "a part is empty" in lines(tmp_path, NEURON_RT_VISIBLE_CORES="0,")["variables"].found


def test_a_tool_that_fails_is_a_problem_with_its_words(tmp_path: Path) -> None:
    write_tool(tmp_path / "opt/aws/neuron/bin", stderr=_FATAL, exit_code=1)
    found = lines(tmp_path)
    assert found["neuron-ls"].state == "problem"
    assert "failed to discover Neuron devices" in found["neuron-ls"].found
    assert "modprobe" in found["neuron-ls"].advice
    assert "JSON" not in found["neuron-ls"].found
    assert "devices" not in found


def test_a_tool_that_is_nowhere_is_missing(tmp_path: Path) -> None:
    assert (lines(tmp_path)["neuron-ls"].state, lines(tmp_path)["device nodes"].state) == ("missing", "missing")


def test_held_cores_stand_in_the_way_only_when_all_are(tmp_path: Path) -> None:
    sight = look_at_neuron(write_node(write_machine(tmp_path, listed(0, neuron_processes=_HELD), listed(1))))
    assert list(hardware_obstacles(sight, {})) == []
    ((found, advice),) = hardware_obstacles(sight, {"NEURON_RT_VISIBLE_CORES": "0-1"})
    assert found == "every visible core is held by other processes (cores 0-1 by pids 41)"
    assert "NEURON_RT_VISIBLE_CORES" in advice


def test_no_device_node_stands_in_the_way(tmp_path: Path) -> None:
    assert [found for found, _ in hardware_obstacles(look_at_neuron(tmp_path), {})] == ["no device node /dev/neuron*"]


def test_a_system_without_a_package_list_has_none(tmp_path: Path) -> None:
    assert system_packages(tmp_path / "status") == ()


def test_doctor_runs_the_tool_on_path(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(
        "workbench.doctor.try_placements",
        lambda names: {name: Trial(placement=name, able=False, words="no") for name in names},
    )
    monkeypatch.setenv("PATH", str(write_tool(tmp_path, stdout=json.dumps([listed(0, neuron_processes=_HELD)]))))
    assert main(["doctor", "--json"]) == 0
    found = {line["name"]: line for line in json.loads(capsys.readouterr().out)["lines"]}
    assert found["cores"]["found"] == "4 logical cores (ids 0-3), 8 physical, logical core size 2"
    assert found["visible and held"]["state"] == "problem"


def timing(initial: dict[str, str] | None, current: dict[str, str], *, is_imported: bool = True) -> list[Line]:
    return list(timing_lines(initial, current, is_imported=is_imported))


def test_variables_count_while_the_library_is_not_imported() -> None:
    (line,) = timing({}, {"NEURON_CC_FLAGS": "-O1"}, is_imported=False)
    assert (line.state, "not imported" in line.found) == ("ok", True)


def test_what_the_process_began_with_was_in_time() -> None:
    (line,) = timing({"NEURON_CC_FLAGS": "-O1"}, {"NEURON_CC_FLAGS": "-O1", "NEURON_LAUNCH_BLOCKING": "1"})
    assert line.state == "ok"
    assert "NEURON_LAUNCH_BLOCKING came with the import itself" in line.found


@pytest.mark.parametrize(
    ("initial", "current", "words"),
    [
        ({}, {"NEURON_CC_FLAGS": "-O1"}, "'-O1' now, not set when this process began"),
        ({"NEURON_CC_FLAGS": "-O1"}, {}, "not set now, '-O1' when"),
        ({"NEURON_LAUNCH_BLOCKING": "1"}, {"NEURON_LAUNCH_BLOCKING": "0"}, "'0' now, '1' when"),
    ],
)
def test_what_changed_since_may_have_come_too_late(
    initial: dict[str, str], current: dict[str, str], words: str
) -> None:
    (line,) = timing(initial, current)
    assert (line.state, line.basis) == ("note", "inferred")
    assert words in line.found
    assert "which of both cannot be seen" in line.found


def test_a_system_that_does_not_tell_leaves_it_unknown() -> None:
    (line,) = timing(None, {})
    assert (line.state, "unknown" in line.found) == ("note", True)


def test_the_variables_a_process_began_with_are_read_from_its_block(tmp_path: Path) -> None:
    block = tmp_path / "environ"
    block.write_bytes(b"NEURON_B=2\0HOME=/x\0NEURON_A=a=b\0")
    assert initial_variables(("NEURON_",), block) == {"NEURON_A": "a=b", "NEURON_B": "2"}
    assert initial_variables(("NEURON_",), tmp_path / "absent") is None
