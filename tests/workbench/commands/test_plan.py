from __future__ import annotations

import json
from pathlib import Path

import pytest
from jsonschema import ValidationError

from tests.shared import shared_path
from tests.workbench.commands.schemas import run_json, run_text

GIB = 1 << 30


def test_one_of_64_ranks_of_the_release_keeps_16_3_gib(capsys: pytest.CaptureFixture[str]) -> None:
    config = str(shared_path("spec", "released_config.json"))
    code, document = run_json(capsys, "plan", config, "--world-size", "64")
    assert code == 0
    assert round(document["weights_bytes"] / GIB, 2) == 16.32
    split = {name: round(nbytes / GIB, 2) for name, nbytes in document["weights_bytes_by_category"].items()}
    assert split == {"experts": 4.2, "engram_tables": 2.95, "dense": 6.41, "engram_dense": 0.29, "embedding_head": 2.47}
    assert document["fits"] is True
    assert document["free_bytes"] == document["hbm_bytes"] - document["weights_bytes"]


def test_text_says_that_one_rank_cannot_hold_the_release(capsys: pytest.CaptureFixture[str]) -> None:
    code, text = run_text(capsys, "plan", str(shared_path("spec", "released_config.json")))
    assert code == 0
    assert "does not fit in 24.00 GiB of HBM: 466.95 GiB are 442.95 GiB too many; add ranks (--world-size)" in text


def test_a_folder_and_its_config_give_the_same_plan(capsys: pytest.CaptureFixture[str]) -> None:
    folder = shared_path("golden", "A", "checkpoint")
    _, of_folder = run_json(capsys, "plan", str(folder), "--world-size", "3", "--rank", "2")
    _, of_config = run_json(capsys, "plan", str(folder / "config.json"), "--world-size", "3", "--rank", "2")
    assert of_folder["source"]["kind"] == "checkpoint"
    assert of_config["source"]["kind"] == "config"
    assert of_folder["plan"] == of_config["plan"]
    assert run_json(capsys, "plan", str(folder))[1]["weights_bytes"] == 2207896


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--world-size", "2", "--rank", "2"], "rank 2 of 2: expected a world size of at least 1"),
        (["--world-size", "0"], "rank 0 of 0: expected a world size of at least 1"),
    ],
)
def test_a_rank_outside_the_world_is_refused(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    config = str(shared_path("golden", "A", "checkpoint", "config.json"))
    code, document = run_json(capsys, "plan", config, *arguments)
    assert code == 2
    assert message in document["error"]["message"]


def test_a_path_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, document = run_json(capsys, "plan", str(tmp_path / "gone"))
    assert code == 2
    assert document["error"]["message"].endswith("found nothing at " + str(tmp_path / "gone"))


def test_a_folder_that_lacks_tensors_cannot_be_planned(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    whole = shared_path("golden", "A", "checkpoint")
    for name in ("config.json", "model-00001-of-00002.safetensors"):
        (tmp_path / name).write_bytes((whole / name).read_bytes())
    (tmp_path / "model-00001-of-00002.safetensors").rename(tmp_path / "model.safetensors")
    code, document = run_json(capsys, "plan", str(tmp_path))
    assert code == 2
    assert "the weights cannot be planned" in document["error"]["message"]


def test_the_schema_can_refuse(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    config = str(shared_path("golden", "A", "checkpoint", "config.json"))
    monkeypatch.setattr(json, "loads", lambda text, real=json.loads: {**real(text), "more": 1})
    with pytest.raises(ValidationError):
        run_json(capsys, "plan", config)
