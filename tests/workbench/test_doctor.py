"""The look at the machine: trials for placements, metadata for packages, and an instruction with every line."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from workbench.doctor import PLACEMENTS, examine, neuron_obstacles, variable_lines
from workbench.doctor_report import DoctorReport, Line, PlacementLine
from workbench.installed import Installed, look_up, version_numbers
from workbench.machine import look_at_machine
from workbench.neuron_variables import KNOWN, PREFIXES
from workbench.placement_trial import Trial, run_trial, try_placements

_REAL = Installed(name="torch-neuronx", kind="installed", version="2.14.3.0.1")
_COMPILER = Installed(name="neuronx-cc", kind="installed", version="2.27.5334.0")


def _write_wheel(
    folder: Path, name: str, version: str, *, words: str = "", code: str = "", recorded: int = 100
) -> None:
    module = name.replace("-", "_")
    info = folder / f"{module}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n\n{words}\n")
    (info / "RECORD").write_text(f"{module}/__init__.py,,{recorded}\n")
    (folder / module).mkdir()
    (folder / module / "__init__.py").write_text(code)


@pytest.fixture(scope="module")
def looked() -> tuple[DoctorReport, list[str]]:
    said: list[str] = []
    return examine(progress=said.append), said


def test_host_and_dry_are_tried_and_neuron_is_not_able_here(looked) -> None:
    report, said = looked
    assert [line.name for line in report.placements] == list(PLACEMENTS)
    assert report.able("host")
    assert report.able("dry")
    assert not report.able("neuron")
    assert "exact sum" in next(line.found for line in report.placements if line.name == "host")
    assert len(said) == 1


def test_every_line_that_is_not_ok_says_what_to_do(looked) -> None:
    report, _ = looked
    silent = [line.name for line in report.lines if line.state in ("missing", "problem") and not line.advice]
    silent += [line.name for line in report.placements if not line.able and not line.advice]
    assert silent == []


def test_text_stays_within_a_hundred_columns_and_html_is_escaped() -> None:
    line = Line(topic="Machine", name="<b>", state="note", found="word " * 60, advice="do it " * 40, basis="inferred")
    place = PlacementLine(name="host", able=False, found="x", advice="y", basis="measured")
    report = DoctorReport(placements=(place,), lines=(line,))
    assert max(map(len, str(report).splitlines())) <= 100
    assert "[inferred]" in str(report)
    assert "<b>" not in report._repr_html_()
    assert json.loads(json.dumps(report.to_dict()))["lines"][0]["basis"] == "inferred"


def test_a_placeholder_wheel_is_recognised_and_never_imported(tmp_path, monkeypatch) -> None:
    _write_wheel(tmp_path, "torch-neuronx", "1.0", words="WRONG PACKAGE. Please", code="raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    found = look_up("torch-neuronx", "torch_neuronx")
    assert (found.kind, found.version) == ("placeholder", "1.0")
    obstacles = dict(neuron_obstacles(found, _COMPILER, (3, 13)))
    assert list(obstacles) == ["torch-neuronx 1.0 is a placeholder wheel"]
    assert "uninstall" in obstacles["torch-neuronx 1.0 is a placeholder wheel"]
    refused = {name: Trial(placement=name, able=name == "host", words="x") for name in ("host", "dry", "virtual")}
    monkeypatch.setattr("workbench.doctor.try_placements", lambda names: {name: refused[name] for name in names})
    report = examine()
    assert "torch_neuronx" not in sys.modules
    assert next(line.state for line in report.lines if line.name == "torch-neuronx") == "problem"
    assert "uninstall" in next(line.advice for line in report.placements if line.name == "dry")


def test_a_small_wheel_is_a_placeholder_whatever_its_version(tmp_path, monkeypatch) -> None:
    _write_wheel(tmp_path, "neuronx-cc", "2.27.0")
    monkeypatch.syspath_prepend(tmp_path)
    assert look_up("neuronx-cc", "neuronxcc").kind == "placeholder"


@pytest.mark.parametrize(
    ("version", "kind"), [("2.9.0.1", "xla"), ("2.10.0", "installed"), ("2.14.3.0+abc", "installed")]
)
def test_the_torch_xla_package_is_told_from_the_native_one(tmp_path, monkeypatch, version: str, kind: str) -> None:
    _write_wheel(tmp_path, "torch-neuronx", version, recorded=50_000_000)
    monkeypatch.syspath_prepend(tmp_path)
    assert look_up("torch-neuronx", "torch_neuronx").kind == kind


def test_a_module_without_a_package_is_not_taken_for_one(tmp_path, monkeypatch) -> None:
    (tmp_path / "torch_neuronx.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    found = look_up("torch-neuronx", "torch_neuronx")
    assert (found.kind, found.place) == ("unnamed", str(tmp_path / "torch_neuronx.py"))
    assert "belongs to no installed package" in next(neuron_obstacles(found, _COMPILER, (3, 12)))[0]


def test_versions_are_read_up_to_their_first_word() -> None:
    assert version_numbers("2.14.3.0.1+aa8779f4.dev") == (2, 14, 3)
    assert version_numbers("2.13.0rc1") == (2, 13, 0)
    assert version_numbers("dev") == ()


def test_nothing_stands_in_the_way_of_a_complete_machine() -> None:
    assert list(neuron_obstacles(_REAL, _COMPILER, (3, 12))) == []


def test_every_obstacle_is_named() -> None:
    absent = Installed(name="x", kind="absent")
    found = [words for words, _ in neuron_obstacles(absent, absent, (3, 11))]
    assert len(found) == 3
    assert "torch-neuronx" in found[0]
    assert "neuronx-cc" in found[1]
    assert "3.12 to 3.14" in found[2]


def test_a_known_variable_says_what_to_do_and_a_misspelt_one_asks() -> None:
    lines = {line.name: line for line in variable_lines({"NEURON_CC_FLAGS": "-O2", "NEURON_CCFLAGS": "-O3"})}
    assert "'-O2'" in lines["NEURON_CC_FLAGS"].found
    assert lines["NEURON_CC_FLAGS"].basis == "documented"
    assert lines["NEURON_CCFLAGS"].advice == "did you mean NEURON_CC_FLAGS?"
    assert [line.name for line in variable_lines({})] == ["none"]


def test_every_known_variable_would_be_found() -> None:
    assert [name for name in KNOWN if not name.startswith(PREFIXES)] == []


def test_a_containers_limits_go_before_the_machines(tmp_path) -> None:
    (tmp_path / "memory.max").write_text("1073741824\n")
    (tmp_path / "memory.current").write_text("73741824\n")
    (tmp_path / "cpu.max").write_text("150000 100000\n")
    found = look_at_machine(tmp_path)
    assert (found.memory_limit_bytes, found.available_bytes, found.usable_cores) == (1073741824, 1000000000, 1)
    assert look_at_machine(tmp_path / "absent").memory_limit_bytes is None


def test_a_trial_that_ends_its_process_is_an_answer() -> None:
    code = 'import os, sys; print(\'{"placement": "host", "able": true, "words": "ran"}\', flush=True); os.abort()'
    trials = try_placements(("host", "dry"), command=(sys.executable, "-c", code))
    assert trials["host"].able
    assert not trials["dry"].able
    assert "signal 6" in trials["dry"].words


def test_a_trial_that_hangs_is_ended() -> None:
    trials = try_placements(("host",), limit_s=0.2, command=(sys.executable, "-c", "import signal; signal.pause()"))
    assert (trials["host"].able, trials["host"].words) == (False, "no answer within 0.2 s")


def test_a_placement_this_version_lacks_says_what_to_use() -> None:
    trial = run_trial("virtual")
    assert not trial.able
    assert "'host'" in trial.words
