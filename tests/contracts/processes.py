"""Runs a piece of Python in a fresh process of this checkout, with some packages made impossible to import."""

from __future__ import annotations

import subprocess
import sys
import textwrap

from tests.contracts.imports import ROOT


def run_python(code: str, *, blocked: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """Run `code` and return the finished process; importing a blocked package raises ModuleNotFoundError there."""
    # None in sys.modules is how Python itself marks a name as not importable; submodules then fail too.
    block = "".join(f"sys.modules[{name!r}] = None\n" for name in blocked)
    text = f"import sys\n{block}{textwrap.dedent(code)}"
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", text],
        cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


IMPORT_ALL = """
import importlib, pkgutil
module_names = []
for package in {packages!r}:
    root = importlib.import_module(package)
    module_names += [package, *(found.name for found in pkgutil.walk_packages(root.__path__, package + "."))]
for name in module_names:
    if not name.endswith("__main__"):
        importlib.import_module(name)
"""


def import_all(*packages: str) -> str:
    """Return code that imports every module of these packages."""
    return IMPORT_ALL.format(packages=packages)
