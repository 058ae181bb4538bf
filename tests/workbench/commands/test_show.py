from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.shared import shared_path
from tests.workbench.commands.schemas import run_json, run_text


def test_a_sound_checkpoint_shows_inventory_configuration_and_schedule(capsys: pytest.CaptureFixture[str]) -> None:
    code, text = run_text(capsys, "show", str(shared_path("golden", "B", "checkpoint")))
    assert code == 0
    assert "all                        1,268    6.92 MiB" in text
    assert "6       1      compress  itself   itself           itself          publishes" in text
    assert "n_routed_experts          12" in text
    assert text.endswith("nothing is wrong with it\n")


def test_the_document_adds_up(capsys: pytest.CaptureFixture[str]) -> None:
    code, document = run_json(capsys, "show", str(shared_path("golden", "A", "checkpoint")))
    assert code == 0
    assert document["outcome"] == "load"
    assert sum(row["nbytes"] for row in document["inventory"]["rows"]) == document["nbytes"] == 2207896
    assert sum(row["tensor_count"] for row in document["inventory"]["rows"]) == document["tensor_count"] == 501
    assert [row["ratio"] for row in document["schedule"]["rows"]] == [0, 0, 2, 2, 1, 1]
    assert document["problems"] == []


def test_a_damaged_checkpoint_is_shown_and_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    whole = shared_path("golden", "A", "checkpoint")
    for path in whole.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    with (tmp_path / "model-00002-of-00002.safetensors").open("r+b") as stream:
        stream.truncate(1_100_000)
    code, document = run_json(capsys, "show", str(tmp_path))
    assert code == 2
    assert document["outcome"] == "refuse"
    kinds = {problem["kind"] for problem in document["problems"]}
    assert "truncated" in kinds
    code, text = run_text(capsys, "show", str(tmp_path), "--no-schedule")
    assert code == 2
    assert "error: model-00002-of-00002.safetensors" in text
    assert "Layer schedule" not in text


def test_another_configuration_is_one_of_the_problems(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    whole = shared_path("golden", "A", "checkpoint")
    for path in whole.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    body = json.loads((whole / "config.json").read_text(encoding="utf-8"))
    body["text_config"]["n_routed_experts"] = 9
    body["text_config"]["q_lora_rank"] = 96
    body["surprise"] = 1
    (tmp_path / "config.json").write_text(json.dumps(body), encoding="utf-8")
    code, document = run_json(capsys, "show", str(tmp_path))
    assert code == 1
    found = {(problem["kind"], problem["tensor"]) for problem in document["problems"]}
    assert ("expert_ids", "layers.0.ffn.experts") in found
    assert ("wrong_shape", "layers.0.attn.wq_a.weight") in found
    assert ("config_json", None) in found


def test_no_configuration_is_a_warning(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    source = shared_path("golden", "A", "checkpoint", "model-00001-of-00002.safetensors")
    (tmp_path / "model.safetensors").write_bytes(source.read_bytes())
    code, document = run_json(capsys, "show", str(tmp_path))
    assert code == 0
    assert document["config"] is None
    assert [problem["severity"] for problem in document["problems"] if problem["kind"] == "config_json"] == ["warning"]


def test_a_configuration_that_cannot_be_used_is_an_error(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    source = shared_path("golden", "A", "checkpoint", "model-00001-of-00002.safetensors")
    (tmp_path / "model.safetensors").write_bytes(source.read_bytes())
    (tmp_path / "config.json").write_text('{"model_type": "other"}', encoding="utf-8")
    code, document = run_json(capsys, "show", str(tmp_path))
    assert code == 1
    found = [problem["found"] for problem in document["problems"] if problem["kind"] == "config_json"]
    assert "text_config.hidden_size: expected an integer; the key is missing" in found


def test_a_folder_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, document = run_json(capsys, "show", str(tmp_path / "gone"))
    assert code == 2
    assert document["error"]["message"].startswith("show: expected a checkpoint's folder, or output of ")
