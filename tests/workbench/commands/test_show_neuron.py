"""`workbench show` of what neuron-ls and neuron-monitor printed: files, folders, and what is piped in."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from tests.port.deep_cluster.machines import listed
from tests.shared import shared_path
from tests.workbench.commands.schemas import run_json, run_text
from workbench.neuron_output import read_saved, recognise

_SAMPLE = {"neuron_runtime_data": [{"pid": 7, "report": {"neuroncore_counters": {"error": "device busy"}}}]}


@pytest.mark.parametrize(
    ("name", "code"), [("NLS-01", 0), ("NLS-03", 0), ("NLS-04", 0), ("NLS-07", 1), ("NLS-08", 0), ("NLS-12", 1)]
)
def test_every_handed_output_fits_the_schema(capsys: pytest.CaptureFixture[str], name: str, code: int) -> None:
    found, document = run_json(capsys, "show", str(shared_path("cases", name)))
    assert found == code
    assert len(document["outputs"]) == 1
    assert run_text(capsys, "show", str(shared_path("cases", name)))[0] == code


def test_a_listing_says_cores_holders_and_links(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    held = listed(0, neuron_processes=[{"pid": 9, "command": ""}], connected_to=[1, 12])
    (tmp_path / "neuron-ls.json").write_text(json.dumps([held, listed(1)]))
    code, text = run_text(capsys, "show", str(tmp_path / "neuron-ls.json"))
    assert code == 0
    assert "8 logical cores (ids 0-7), 16 physical, logical core size 2" in text
    assert "24.00 GiB a logical core" in text
    assert "busy: cores 0-3 held by pid 9 (command not told); free: cores 4-7" in text
    assert "linked to devices that are not visible here: 12" in text
    _, document = run_json(capsys, "show", str(tmp_path / "neuron-ls.json"))
    machine = document["outputs"][0]["machine"]
    assert (machine["busy_core_ids"], machine["lnc"], machine["physical_core_count"]) == ([0, 1, 2, 3], 2, 16)


def test_a_failure_says_why_and_nothing_of_json(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "stdout").write_text("")
    (tmp_path / "stderr").write_text('level=fatal msg="x" error="failed to discover Neuron devices"\n')
    (tmp_path / "exit_code").write_text("1\n")
    code, document = run_json(capsys, "show", str(tmp_path))
    (output,) = document["outputs"]
    assert (code, output["saved_exit_code"], output["machine"]["cause"]) == (1, 1, "no_device")
    assert "failed to discover Neuron devices" in output["machine"]["reason"]
    _, text = run_text(capsys, "show", str(tmp_path))
    assert "no Neuron device / driver (exit 1, message on stderr)" in text
    assert "JSON" not in text
    assert "not installed" not in text


def test_a_stream_says_what_could_not_be_read(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "monitor.ndjson"
    path.write_text(json.dumps(_SAMPLE) + "\n" + json.dumps(_SAMPLE)[:40])
    code, text = run_text(capsys, "show", str(path))
    assert code == 1
    assert "the last line is cut off" in text
    assert "runtime 7: neuroncore_counters: not read: device busy" in text
    assert "0 %" not in text
    _, document = run_json(capsys, "show", str(path))
    assert document["outputs"][0]["stream"]["samples"][0]["runtimes"][0]["utilization"] is None


def test_what_is_piped_in_is_read(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps([listed(0)])))
    assert run_json(capsys, "show", "-")[1]["outputs"][0]["name"] == "stdin"
    monkeypatch.setattr("sys.stdin", io.StringIO("hello\n"))
    code, document = run_json(capsys, "show", "-")
    assert code == 2
    assert "on stdin; found 'hello'" in document["error"]["message"]


def test_other_files_are_not_taken_for_output(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for name, text in (("a.json", '{"model": 1}'), ("b.json", "[1, 2]"), ("c.log", "compile passed\n"), ("d", "\0")):
        (tmp_path / name).write_text(text)
        assert read_saved(tmp_path / name) == ()
    assert recognise("neuronx-cc compiled 3 graphs", "", 0) is None
    code, document = run_json(capsys, "show", str(tmp_path / "a.json"))
    assert code == 2
    assert "found a file that is neither at" in document["error"]["message"]


def test_a_checkpoint_is_shown_as_one_whatever_else_lies_in_its_folder(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    source = shared_path("golden", "A", "checkpoint", "model-00001-of-00002.safetensors")
    (tmp_path / "model.safetensors").write_bytes(source.read_bytes())
    (tmp_path / "neuron-ls.json").write_text("[]")
    assert "outputs" not in run_json(capsys, "show", str(tmp_path))[1]
