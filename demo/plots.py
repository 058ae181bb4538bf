"""The pictures of a tour as PNG files, drawn from its journals alone."""

from __future__ import annotations

from pathlib import Path

from workbench.journal import Journal
from workbench.views.errors import error_plot
from workbench.views.graph_map import graph_map
from workbench.views.memory import top_owners
from workbench.views.memory_timeline import memory_timeline
from workbench.views.narrowing import narrowing_plot

_PICTURES = (
    ("errors", "tour", error_plot),
    ("memory-timeline", "tour", memory_timeline),
    ("memory-owners", "tour", top_owners),
    ("graph-map", "graphs", graph_map),
    ("bisection", "tour", narrowing_plot),
)
"""File, journal and view of each."""


def draw(folder: Path) -> list[Path]:
    """Draw every picture into `folder/plots` and return the files.

    Raises:
        JournalError: a journal of the tour is missing.
    """
    target = folder / "plots"
    target.mkdir(exist_ok=True)
    journals = {name: Journal.open(folder / f"{name}.wbj") for name in {name for _, name, _ in _PICTURES}}
    files = [target / f"{name}.png" for name, _, _ in _PICTURES]
    for file, (_, journal, view) in zip(files, _PICTURES, strict=True):
        view(journals[journal]).figure().savefig(file, dpi=110)
    return files
