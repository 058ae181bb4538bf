"""Runs many checks in one set of real processes: `run_ranks` here, each rank in `tests/port/collectives/rank.py`."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
LIMIT_S = 240


def run_ranks(
    program: str, world: int, folder: Path, *, waited_for: tuple[int, ...] | None = None
) -> list[dict[str, str]]:
    """Run a program in `world` processes and return what each reported: "ok" or a traceback, by name of the check.

    Every process has ended when this returns, whatever happened; `waited_for` are those that end by themselves.
    """
    command = [sys.executable, "-W", "error", "-m", program, str(world), str(folder)]
    ranks: list[subprocess.Popen[bytes]] = []
    deadline = time.monotonic() + LIMIT_S
    try:
        for rank in range(world):
            with (folder / f"stderr.{rank}").open("w") as errors:
                ranks.append(
                    subprocess.Popen(
                        [*command, str(rank)], cwd=ROOT, stdin=subprocess.DEVNULL, stdout=errors, stderr=errors
                    )
                )
        for rank in waited_for or range(world):
            ranks[rank].wait(max(deadline - time.monotonic(), 0.1))
    except subprocess.TimeoutExpired:
        pass  # told by the report that is missing
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    return [_report(folder, rank) for rank in range(world)]


def _report(folder: Path, rank: int) -> dict[str, str]:
    path = folder / f"report.{rank}.json"
    if path.is_file():
        return json.loads(path.read_text())
    return {"start": (folder / f"stderr.{rank}").read_text() or "no report"}
