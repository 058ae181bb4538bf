from __future__ import annotations

from pathlib import Path

import pytest

from tests.workbench.commands.schemas import run_json, run_text


def test_a_checkpoint_is_written_and_described(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, document = run_json(capsys, "fixtures", str(tmp_path / "tiny"), "--seed", "5")
    assert code == 0
    assert document["seed"] == 5
    assert document["nbytes"] == sum(path.stat().st_size for path in (tmp_path / "tiny").iterdir())


def test_a_folder_with_something_in_it_is_wrong_use(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "x").write_text("", encoding="utf-8")
    code, document = run_json(capsys, "fixtures", str(tmp_path))
    assert code == 2
    assert "expected a new or empty folder" in document["error"]["message"]


def test_text_lists_the_files(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    code, text = run_text(capsys, "fixtures", "tiny")
    assert code == 0
    assert "model-00001-of-00005.safetensors  741,740" in text
    assert text.endswith("look at it with: workbench show tiny\n")
