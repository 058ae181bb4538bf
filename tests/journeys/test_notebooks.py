"""Notebooks run top to bottom, are committed without outputs, and find what their scripts find."""

from __future__ import annotations

import runpy
from pathlib import Path

import nbformat
import pytest

from tests.journeys.conftest import ROOT, Tour
from workbench.journal import Journal

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
_BY_NAME = {"argvalues": NOTEBOOKS, "ids": [path.stem for path in NOTEBOOKS]}


def test_tour_runs_top_to_bottom(tour: Tour) -> None:
    assert tour.status == 0, tour.said[-3000:]
    assert "FAILED" not in tour.said


def test_script_equals_notebook(tour: Tour, capsys: pytest.CaptureFixture[str]) -> None:
    recorded = Journal.open(tour.folder / "tour.wbj")
    again = runpy.run_path(str(tour.folder / "script.py"))["session"].journal
    assert [action.to_json() for action in again.actions] == [action.to_json() for action in recorded.actions]
    same = recorded.same_findings(again)
    assert same, str(same)
    assert same.compared > 1000
    assert "Steps" in capsys.readouterr().out


def test_findings_that_changed_would_be_seen(tour: Tour, tmp_path: Path) -> None:
    text = (tour.folder / "tour.wbj").read_text(encoding="utf-8")
    changed = tmp_path / "changed.wbj"
    changed.write_text(text.replace('"layers.1.ffn"', '"layers.2.ffn"', 1), encoding="utf-8")
    assert not Journal.open(tour.folder / "tour.wbj").same_findings(Journal.open(changed))


@pytest.mark.parametrize("path", **_BY_NAME)
def test_notebook_is_committed_without_outputs(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.source for cell in code if cell.outputs or cell.execution_count is not None] == []
    assert "widgets" not in notebook.metadata


@pytest.mark.parametrize("path", **_BY_NAME)
def test_notebook_keeps_the_house_style(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    code = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    text = [cell.source for cell in notebook.cells if cell.cell_type == "markdown"]
    assert text[0].startswith("# ")
    assert sum("Things to notice" in cell for cell in text) >= 3
    assert [cell for cell in code if len(cell.splitlines()) > 15] == []
    refused = ("sys.path", "http://", "https://", "def ", "class ", "!pip", "%pip")
    assert [cell for cell in code if any(word in cell for word in refused)] == []
