"""The demo as a user meets it: what it writes, what it says, and that it can say no."""

from __future__ import annotations

import re
import subprocess
import sys
from xml.etree import ElementTree

import nbformat

from tests.journeys.conftest import ROOT, Tour
from workbench.journal import Journal

_PLOTS = ("errors", "memory-timeline", "memory-owners", "graph-map", "bisection")


def test_everything_is_written(tour: Tour) -> None:
    names = {path.name for path in tour.folder.iterdir()}
    assert {"tour.html", "tour.wbj", "tour.wbj.safetensors", "golden.wbj", "verify.wbj", "dry.wbj", "graphs.wbj",
            "script.py", "junit.xml", "plots"} <= names  # fmt: skip
    for name in _PLOTS:
        assert (tour.folder / "plots" / f"{name}.png").read_bytes().startswith(b"\x89PNG"), name
    assert Journal.open(tour.folder / "tour.wbj").captures()
    assert int(ElementTree.parse(tour.folder / "junit.xml").getroot().attrib["tests"]) > 5


def test_the_html_needs_no_network(tour: Tour) -> None:
    page = (tour.folder / "tour.html").read_text(encoding="utf-8")
    assert re.findall(r"(?:src|href)\s*=\s*[\"']?(?:https?:)?//[^\"' >]*", page) == []
    assert page.count("data:image/png;base64,") >= 5
    assert "Things to notice" in page


def test_the_summary_says_what_came_out_and_where(tour: Tour) -> None:
    for name in ("steps", "golden checks", "memory", "graph breaks", "culprit", "replay"):
        assert re.search(rf"^  ok +{name} ", tour.said, re.MULTILINE), name
    assert "SIMULATED" in tour.said
    assert f"everything is in {tour.folder}" in tour.said
    assert "-m jupyterlab notebooks/00_tour.ipynb" in tour.said
    assert re.search(r"^ +\d+\.\d s  6\. Where the decode graph breaks$", tour.said, re.MULTILINE), "progress by part"


def test_a_tour_that_stops_is_told_of_and_fails(tmp_path) -> None:
    cells = [
        nbformat.v4.new_code_cell("out = None", metadata={"tags": ["parameters"]}),
        nbformat.v4.new_markdown_cell("# A tour that stops"),
        nbformat.v4.new_code_cell("raise RuntimeError('planted')"),
    ]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), tmp_path / "stops.ipynb")
    code = (
        "import sys; from pathlib import Path; from demo.__main__ import main; "
        "sys.exit(main(['--out', sys.argv[1]], notebook=Path(sys.argv[2])))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "out"), str(tmp_path / "stops.ipynb")],
        cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert "A tour that stops" in done.stdout
    assert "the notebook stopped: RuntimeError: planted" in done.stdout
    assert "FAILED  replay" in done.stdout
    assert "planted" in (tmp_path / "out" / "tour.html").read_text(encoding="utf-8"), "what it had is kept"
