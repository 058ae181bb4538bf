"""What holds for every test: one thread, nothing stays installed, and a browser test left out is told of at the end."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

# Before torch is imported, and for child processes too: with more threads a matrix product may split its sums otherwise
# for another number of rows, and tiny models spend their time on handing work over.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch
from tqdm import tqdm

from tests.hooks import left_behind, take_traces

torch.set_num_threads(1)

# Its monitor thread would live on after the first progress bar of the process.
tqdm.monitor_interval = 0

NO_BROWSER = "no chromium on PATH (on Debian: apt-get install chromium)"


def find_chromium() -> str | None:
    """Return the path of Debian's chromium, None where there is none."""
    return shutil.which("chromium") or shutil.which("chromium-browser")


@pytest.fixture(autouse=True)
def no_hooks_left() -> Iterator[None]:
    """Fail a test that leaves a hook, mode, handler, setting, child process, thread or figure behind."""
    before = take_traces()
    yield
    left = left_behind(before)
    if left:
        pytest.fail("left behind by this test: " + "; ".join(left))


@pytest.fixture(scope="session")
def chromium() -> str:
    """Path of the browser."""
    path = find_chromium()
    if path is None:
        pytest.skip(NO_BROWSER)
    return path


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave the browser tests out where there is no browser, before any of their fixtures starts a server."""
    if find_chromium() is None:
        for item in items:
            if item.get_closest_marker("browser"):
                item.add_marker(pytest.mark.skip(reason=NO_BROWSER))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what was left out and why, one line a reason; a skip in silence reads like a pass."""
    reasons: dict[str, int] = {}
    for report in terminalreporter.stats.get("skipped", []):
        if isinstance(report.longrepr, tuple):
            reason = report.longrepr[2].removeprefix("Skipped: ")
            reasons[reason] = reasons.get(reason, 0) + 1
    for reason, count in sorted(reasons.items()):
        terminalreporter.write_line(f"left out: {count} {'test' if count == 1 else 'tests'}: {reason}")
