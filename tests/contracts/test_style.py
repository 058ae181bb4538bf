"""The checkout passes `make lint` as it stands, pages included."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("arguments", [("check",), ("format", "--check")], ids=" ".join)
def test_ruff_finds_nothing_in_the_checkout(arguments: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "ruff", *arguments, "--no-cache", "."]
    outcome = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
