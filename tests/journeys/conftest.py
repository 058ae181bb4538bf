"""One run of the tour for all journeys: `python -m demo`, in a process of its own, as `make demo` runs it."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tour:
    """What a run of the demo left.

    Attributes:
        folder: its output folder.
        status: its exit status.
        said: its output.
    """

    folder: Path
    status: int
    said: str


@pytest.fixture(scope="session")
def tour(tmp_path_factory: pytest.TempPathFactory) -> Tour:
    """The tour, run once."""
    folder = tmp_path_factory.mktemp("demo") / "out"
    done = subprocess.run(
        [sys.executable, "-m", "demo", "--out", str(folder)],
        cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip
    return Tour(folder=folder, status=done.returncode, said=done.stdout + done.stderr)
