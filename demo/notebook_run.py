"""A notebook run top to bottom in a kernel of its own, told of heading by heading, and kept as HTML."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import nbformat
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from nbformat import NotebookNode

CELL_LIMIT_S = 600
"""Seconds a single cell may take."""

_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True, slots=True, kw_only=True)
class NotebookRun:
    """What came of running one notebook.

    Attributes:
        notebook: with the outputs it has by then.
        error: what stopped it, in words; "" where it ran to its end.
    """

    notebook: NotebookNode
    error: str


def run_notebook(path: Path, *, parameters: Mapping[str, str], tell: Callable[[str], None]) -> NotebookRun:
    """Run a notebook in its own folder and return it with its outputs; an error in a cell ends it and is kept.

    Args:
        path: of the notebook; the file is not changed.
        parameters: values for names of the cell tagged `parameters`, which must assign each of them.
        tell: told each heading as the run reaches it.

    Raises:
        ValueError: a parameter the notebook does not have.
    """
    notebook = nbformat.read(path, as_version=4)
    _set_parameters(notebook, parameters, path)

    def reached(cell: NotebookNode, cell_index: int) -> None:
        for heading in _headings_before(notebook, cell_index):
            tell(heading)

    # Sockets in a folder, not ports: nothing else on the machine can reach the kernel. Their paths must be short.
    with tempfile.TemporaryDirectory(prefix="kernel-") as sockets, open(Path(sockets, "stderr"), "w") as words:
        client = NotebookClient(
            notebook,
            km=AsyncKernelManager(kernel_name="python3", transport="ipc", ip=f"{sockets}/k"),
            timeout=CELL_LIMIT_S,
            coalesce_streams=True,
            resources={"metadata": {"path": str(path.parent)}},
            on_cell_execute=reached,
        )
        try:
            client.execute(env=_kernel_environment(), stderr=words, stdin=subprocess.DEVNULL)
        except CellExecutionError as error:
            return NotebookRun(notebook=notebook, error=f"{error.ename}: {_ESCAPES.sub('', error.evalue)}")
        except Exception as error:
            # A kernel that dies takes its outputs with it; what the notebook holds so far is still worth keeping.
            words.flush()
            last = Path(words.name).read_text(encoding="utf-8", errors="replace").strip().splitlines()[-3:]
            return NotebookRun(notebook=notebook, error=" ".join([f"{type(error).__name__}: {error}", *last]))
    return NotebookRun(notebook=notebook, error="")


def write_html(notebook: NotebookNode, path: Path, *, title: str) -> Path:
    """Write a notebook as one HTML file that needs no network: no script and no style from elsewhere."""
    with warnings.catch_warnings():
        # nbconvert's own template engine warns of its own deprecations.
        warnings.simplefilter("ignore")
        from nbconvert import HTMLExporter

        exporter = HTMLExporter(template_name="basic", embed_images=True)
        body, _ = exporter.from_notebook_node(notebook)
    path.write_text(_PAGE.format(title=title, body=body), encoding="utf-8")
    return path


def _set_parameters(notebook: NotebookNode, parameters: Mapping[str, str], path: Path) -> None:
    if not parameters:
        return
    cells = [cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", [])]
    text = cells[0].source if cells else ""
    for name, value in parameters.items():
        text, count = re.subn(rf"(?m)^{re.escape(name)} = .*$", lambda _, line=f"{name} = {value!r}": line, text)
        if count != 1:
            raise ValueError(f"{path.name}: expected a cell tagged 'parameters' that assigns {name}, found {count}")
    cells[0].source = text


def _headings_before(notebook: NotebookNode, index: int) -> list[str]:
    """Return the headings of the text directly before a cell."""
    found: list[str] = []
    for cell in reversed(notebook.cells[:index]):
        if cell.cell_type != "markdown":
            break
        found = [line.lstrip("# ") for line in cell.source.splitlines() if re.match("#{1,2} ", line)] + found
    return found


def _kernel_environment() -> dict[str, str]:
    # One thread: tiny models gain nothing from more, and lose much where other processes want the cores.
    return {**os.environ, "OMP_NUM_THREADS": "1"}


_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>{title}</title>
<style>
body {{ font: 15px/1.5 sans-serif; max-width: 66em; margin: 2em auto; padding: 0 1em; color: #222; }}
pre {{ font: 13px/1.4 monospace; overflow-x: auto; margin: 0.3em 0; }}
.highlight, .input_area {{ background: #f4f4f4; padding: 0.2em 0.6em; border-left: 3px solid #0072b2; }}
.input_prompt, .output_prompt, .prompt {{ display: none; }}
.output_area {{ margin: 0.4em 0 0.8em 0.6em; overflow-x: auto; }}
.output_stderr pre {{ color: #a33; }}
table {{ border-collapse: collapse; font-size: 13px; }}
caption {{ text-align: left; font-weight: bold; padding: 0.3em 0; }}
.anchor-link {{ display: none; }}
th, td {{ padding: 0.15em 0.7em; border-bottom: 1px solid #ddd; }}
img {{ max-width: 100%; }}
</style>
</head>
<body>
{body}
</body>
</html>
"""
