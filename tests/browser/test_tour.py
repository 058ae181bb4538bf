"""The tour itself in a real JupyterLab, as a reader meets it: every cell runs, plots show, the buttons work."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.browser.lab import jupyter_lab, open_notebook, open_page, run_all_cells

pytestmark = [pytest.mark.browser, pytest.mark.slow]

_ROOT = Path(__file__).resolve().parents[2]
_ROWS = ".jp-CodeCell:has(.jupyter-widgets) .jp-OutputArea-output table tbody tr"


def test_the_tour_runs_and_its_stepper_steps(tmp_path: Path, chromium: str) -> None:
    served = tmp_path / "checkout"
    (served / "notebooks").mkdir(parents=True)
    (served / "fixtures").symlink_to(_ROOT / "fixtures")
    shutil.copy(_ROOT / "notebooks" / "00_tour.ipynb", served / "notebooks")
    with jupyter_lab(served, tmp_path / "home") as address, open_page(chromium) as page:
        open_notebook(page, address, "notebooks/00_tour.ipynb")
        run_all_cells(page, limit_ms=600_000)
        assert page.locator(".jp-OutputArea-output [data-mime-type='application/vnd.jupyter.stderr']").count() == 0
        pictures = page.locator(".jp-OutputArea-output img")
        assert pictures.count() >= 6
        assert page.evaluate("[...document.querySelectorAll('.jp-OutputArea-output img')].every(i => i.naturalWidth)")
        rows = page.locator(_ROWS)
        assert rows.count() == 1, "the step the notebook itself took"
        page.get_by_role("button", name="Step", exact=True).click()
        rows.nth(1).wait_for()
        assert "layers.0.attn" in rows.nth(1).inner_text()
