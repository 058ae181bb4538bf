"""`python -m demo.notebooks`: every notebook is run and kept as HTML, and one that stops is named and fails the run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from demo.notebook_run import _set_parameters
from demo.notebooks import main
from tests.contracts.imports import ROOT

_CODE = (
    "import sys; from pathlib import Path; from demo.notebooks import main; "
    "sys.exit(main(['--out', sys.argv[1]], folder=Path(sys.argv[2])))"
)


def _write(path: Path, *code: str) -> None:
    cells = [nbformat.v4.new_markdown_cell("# A question"), *(nbformat.v4.new_code_cell(one) for one in code)]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)


def test_every_notebook_is_run_and_the_one_that_stops_is_named(tmp_path: Path) -> None:
    _write(tmp_path / "00_good.ipynb", "print('a line')")
    _write(tmp_path / "01_bad.ipynb", "1 / 0")
    _write(tmp_path / "scratch.ipynb", "raise SystemExit('not a notebook of the series')")
    done = subprocess.run(
        [sys.executable, "-c", _CODE, str(tmp_path / "out"), str(tmp_path)],
        cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert "STOPPED: ZeroDivisionError: division by zero" in done.stdout
    assert "1 of 2 notebooks ran to their end" in done.stdout
    assert "a line" in (tmp_path / "out" / "00_good.html").read_text(encoding="utf-8")
    assert "ZeroDivisionError" in (tmp_path / "out" / "01_bad.html").read_text(encoding="utf-8")


def test_a_folder_without_notebooks_and_one_of_someone_else_are_wrong_use(tmp_path: Path, capsys) -> None:
    assert main(["--out", str(tmp_path / "out")], folder=tmp_path) == 2
    assert "expected at least one" in capsys.readouterr().err
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").touch()
    _write(tmp_path / "00_any.ipynb")
    assert main(["--out", str(tmp_path / "taken")], folder=tmp_path) == 2
    assert "left alone" in capsys.readouterr().err


def test_a_parameter_is_set_in_the_cell_that_is_for_it() -> None:
    cell = nbformat.v4.new_code_cell("out = None  # a folder\nother = 1", metadata={"tags": ["parameters"]})
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("out = None"), cell])
    _set_parameters(notebook, {"out": "/a/b\\1'c"}, Path("x.ipynb"))
    assert notebook.cells[0].source == "out = None"
    assert notebook.cells[1].source == 'out = "/a/b\\\\1\'c"\nother = 1'
    with pytest.raises(ValueError, match=r"x\.ipynb: expected a cell tagged 'parameters' that assigns seed, found 0"):
        _set_parameters(notebook, {"seed": "1"}, Path("x.ipynb"))
