"""In a real JupyterLab: plots show, a click on Step steps, and the saved notebook holds what was seen last."""

from __future__ import annotations

import json
from pathlib import Path

import nbformat
import pytest

from tests.browser.lab import WAIT_MS, jupyter_lab, open_notebook, open_page, run_all_cells, save

pytestmark = pytest.mark.browser

_CHECKPOINT = Path(__file__).resolve().parents[2] / "fixtures" / "golden_A" / "checkpoint"
_CELLS = (
    "%matplotlib inline\nimport workbench as wb",
    "plan = wb.Plan(\n"
    f"    checkpoint={str(_CHECKPOINT)!r},\n"
    "    inputs=wb.Inputs(token_ids=((5, 17, 9),)),\n"
    "    candidate=wb.Placement(profile='bf16'),\n"
    ")\nsession = wb.Session(plan)",
    "session.step()",
    "wb.error_plot(session.journal).figure()",
    "session.widget()",
)
_ROWS = ".jp-CodeCell:last-of-type .jp-OutputArea-output table tbody tr"


def _write_notebook(path: Path) -> None:
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in _CELLS], metadata=kernel)
    nbformat.write(book, path)


def test_a_click_on_step_is_seen_and_saved(tmp_path, chromium) -> None:
    folder = tmp_path / "notebooks"
    folder.mkdir()
    _write_notebook(folder / "stepper.ipynb")
    with jupyter_lab(folder, tmp_path / "home") as address, open_page(chromium) as page:
        open_notebook(page, address, "stepper.ipynb")
        run_all_cells(page)
        assert page.locator(".jp-OutputArea-output img").count() == 2, "the plot of a cell, and the stepper's"
        assert page.evaluate("[...document.querySelectorAll('.jp-OutputArea-output img')].every(i => i.naturalWidth)")
        rows = page.locator(_ROWS)
        assert rows.count() == 1
        picture = page.locator(".jp-OutputArea-output img").last.get_attribute("src")
        page.get_by_role("button", name="Step", exact=True).click()
        rows.nth(1).wait_for()
        assert "layers.0.attn" in rows.nth(1).inner_text()
        changed = "was => [...document.querySelectorAll('.jp-OutputArea-output img')].pop().src !== was"
        page.wait_for_function(changed, arg=picture)
        status = page.locator(".jp-OutputArea-output pre", has_text="next: layers.0.ffn")
        status.wait_for()
        page.get_by_role("button", name="Rewind", exact=True).click()
        page.locator(".jp-OutputArea-output pre", has_text="next: embed").wait_for(timeout=WAIT_MS)
        save(page)
    saved = json.loads((folder / "stepper.ipynb").read_text(encoding="utf-8"))["cells"][-1]["outputs"]
    assert [sorted(output["data"]) for output in saved][1:] == [
        ["text/html", "text/plain"],
        ["image/png", "text/plain"],
    ]
    assert "layers.0.attn" in "".join(saved[1]["data"]["text/plain"]), "the saved table is the one seen last"
