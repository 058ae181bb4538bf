"""What must work where a package is missing: reading journals without torch, and everything without the notebook."""

from __future__ import annotations

import pytest

from tests.contracts.processes import import_all, run_python

_NOTEBOOK_ONLY = ("IPython", "ipywidgets", "anywidget", "ipykernel", "nbformat", "nbclient", "playwright", "jsonschema")


@pytest.mark.parametrize("package", [*_NOTEBOOK_ONLY, "matplotlib"])
def test_every_module_imports_without(package: str) -> None:
    done = run_python(import_all("port", "workbench"), blocked=(package,))
    assert done.returncode == 0, done.stderr[-2000:]


def test_journals_and_views_open_without_torch(tmp_path) -> None:
    code = f"""
    import workbench
    from workbench.journal import Journal
    from workbench.records import CheckRow, Stamp

    with Journal(path={str(tmp_path / "run.wbj")!r}) as journal:
        journal.act("step", {{}})
        journal.append(CheckRow(stamp=Stamp(step=0), subject="A", check="logits", passed=True, worst=0.5, limit=1.0))
    again = Journal.open({str(tmp_path / "run.wbj")!r})
    print(len(again), again.records[0].worst)
    """
    done = run_python(code + _dedented(import_all("workbench.views", "workbench.records")), blocked=("torch",))
    assert (done.returncode, done.stdout) == (0, "2 0.5\n"), done.stderr[-2000:]


def test_help_needs_no_torch() -> None:
    code = "from workbench.cli import build_parser\nprint(build_parser().format_help())"
    done = run_python(code, blocked=("torch", "matplotlib", "ipywidgets"))
    assert "exit codes" in done.stdout, done.stderr[-2000:]


@pytest.mark.parametrize("package", ["torch", *_NOTEBOOK_ONLY, "matplotlib"])
def test_a_blocked_package_cannot_be_imported(package: str) -> None:
    done = run_python(f"import {package}", blocked=(package,))
    assert done.returncode == 1
    assert "ModuleNotFoundError" in done.stderr


def _dedented(code: str) -> str:
    return "\n".join("    " + line for line in code.splitlines())
