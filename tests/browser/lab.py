"""A JupyterLab of its own, in folders of its own, and a page of Debian's chromium that looks at it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from queue import Empty, SimpleQueue

from playwright.sync_api import Page, sync_playwright

_ADDRESS = re.compile(r"http://(?:127\.0\.0\.1|localhost):\d+/lab\?token=\w+")
_START_LIMIT_S = 120.0
WAIT_MS = 120_000
"""The longest a condition is waited for; a slow machine shared with others needs most of it at the start."""

# The indicator beside the notebook shows an idle kernel before there is one, so the kernel itself is asked.
_IDLE = "window.jupyterapp.shell.currentWidget?.sessionContext?.session?.kernel?.status === 'idle'"

_SETTINGS = {
    "@jupyterlab/apputils-extension/notification.jupyterlab-settings": {"fetchNews": "false", "checkForUpdates": False},
    # Cells out of sight stay in the page, so that they can be looked at.
    "@jupyterlab/notebook-extension/tracker.jupyterlab-settings": {"windowingMode": "none"},
}


@contextlib.contextmanager
def jupyter_lab(folder: Path, home: Path) -> Iterator[str]:
    """Serve `folder` and give the address of the server; it and its kernels are ended afterwards."""
    for name, settings in _SETTINGS.items():
        path = home / "settings" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(settings), encoding="utf-8")
    own = {"JUPYTER_CONFIG_DIR": "config", "JUPYTER_DATA_DIR": "data", "JUPYTER_RUNTIME_DIR": "runtime",
           "IPYTHONDIR": "ipython", "JUPYTERLAB_SETTINGS_DIR": "settings", "JUPYTERLAB_WORKSPACES_DIR": "workspaces",
           "HOME": "."}  # fmt: skip
    environment = {**os.environ, **{name: str(home / value) for name, value in own.items()}, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--ip=127.0.0.1", "--port=0", "--allow-root",
               f"--ServerApp.root_dir={folder}", "--LabApp.expose_app_in_browser=True"]  # fmt: skip
    server = subprocess.Popen(
        command, env=environment, start_new_session=True, text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip
    words: SimpleQueue[str] = SimpleQueue()
    reader = threading.Thread(target=_read, args=(server, words))
    reader.start()
    try:
        yield _address(words)
    finally:
        # Kernels are children of the server in groups of their own: the server ends them when it is asked to end.
        server.send_signal(signal.SIGTERM)
        try:
            server.wait(timeout=30)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()
        reader.join()
        assert server.stderr is not None, "it was asked for"
        server.stderr.close()


@contextlib.contextmanager
def open_page(chromium: str) -> Iterator[Page]:
    """Give a page of a headless browser."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1400, "height": 1600})
        page.set_default_timeout(WAIT_MS)
        yield page
        browser.close()


def open_notebook(page: Page, address: str, name: str) -> None:
    """Open a notebook in JupyterLab and wait until its kernel is ready."""
    lab, token = address.split("/lab?token=")
    page.goto(f"{lab}/lab/tree/{name}?token={token}")
    page.locator(".jp-Notebook .jp-Cell").first.wait_for()
    page.wait_for_function(f"() => {_IDLE}")


def run_all_cells(page: Page, *, limit_ms: float = WAIT_MS) -> None:
    """Run every cell and wait until each has its number and the kernel is idle again."""
    _command(page, "notebook:run-all-cells")
    page.wait_for_function(
        """() => {
            const prompts = [...document.querySelectorAll('.jp-CodeCell .jp-InputPrompt')].map(p => p.textContent);
            return prompts.length > 0 && prompts.every(text => /^\\[\\d+\\]:?$/.test(text.trim())) && IDLE;
        }""".replace("IDLE", _IDLE),
        timeout=limit_ms,
    )


def save(page: Page) -> None:
    """Save the notebook and wait until it is on disk."""
    _command(page, "docmanager:save")
    page.wait_for_function("() => !document.querySelector('.lm-TabBar-tab.jp-mod-dirty')")


def _command(page: Page, name: str) -> None:
    # Its promise is not waited for: it may end long after the call, or never where a dialog opens.
    page.evaluate(f"() => {{ window.jupyterapp.commands.execute('{name}'); }}")


def _read(server: subprocess.Popen[str], words: SimpleQueue[str]) -> None:
    assert server.stderr is not None, "it was asked for"
    for line in server.stderr:
        words.put(line)
    words.put("")


def _address(words: SimpleQueue[str]) -> str:
    said: list[str] = []
    while True:
        try:
            line = words.get(timeout=_START_LIMIT_S)
        except Empty:
            line = ""
        if not line:
            raise RuntimeError("JupyterLab gave no address; it said:\n" + "".join(said[-20:]))
        said.append(line)
        found = _ADDRESS.search(line)
        if found:
            return found.group()
