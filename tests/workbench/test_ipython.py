"""The notebook face: one magic that is the command line, and views that stay in a saved notebook."""

from __future__ import annotations

import sys

import pytest

from workbench import ipython
from workbench.journal import Journal
from workbench.views.errors import error_plot
from workbench.views.steps import step_table


class _Shell:
    def __init__(self) -> None:
        self.magics: dict[tuple[str, str], object] = {}

    def register_magic_function(self, func: object, magic_kind: str, magic_name: str) -> None:
        self.magics[magic_kind, magic_name] = func


def test_the_extension_registers_one_line_magic() -> None:
    shell = _Shell()
    ipython.load_ipython_extension(shell)
    assert shell.magics == {("line", "wb"): ipython.wb}


def test_the_magic_is_the_command_line(capsys, tmp_path) -> None:
    name = str(tmp_path / "with a space.wbj")
    ipython.wb(f"replay '{name}'")
    captured = capsys.readouterr()
    assert f"cannot read the journal {name}" in captured.err
    assert "exit code 2: wrong use" in captured.err


def test_help_and_wrong_arguments_leave_the_kernel_alone(capsys) -> None:
    ipython.wb("replay --help")
    assert "exit codes" in capsys.readouterr().out
    ipython.wb("replay")
    assert "exit code 2" in capsys.readouterr().err


def test_an_exit_code_of_0_says_nothing(monkeypatch, capsys) -> None:
    monkeypatch.setattr(ipython, "main", lambda words: 0)
    ipython.wb("doctor")
    assert capsys.readouterr() == ("", "")


def test_progress_is_shown_in_one_line_that_does_not_stay(monkeypatch, capsys) -> None:
    def command(words: list[str]) -> int:
        sys.stderr.write("first of many\n")
        sys.stderr.write("second\n")
        print("the answer")
        return 0

    monkeypatch.setattr(ipython, "main", command)
    ipython.wb("run")
    assert capsys.readouterr() == ("first of many\r             \rsecond\r      \rthe answer\n", "")


@pytest.mark.parametrize(("code", "words"), [(3, "environment not able"), (130, "interrupted")])
def test_every_exit_code_has_its_meaning(monkeypatch, capsys, code: int, words: str) -> None:
    monkeypatch.setattr(ipython, "main", lambda words: code)
    ipython.wb("doctor")
    assert f"exit code {code}: {words}" in capsys.readouterr().err


def test_views_are_shown_as_outputs_that_can_be_replaced(monkeypatch) -> None:
    calls: list[tuple[object, dict[str, object]]] = []

    class Handle:
        def update(self, value: object, **options: object) -> None:
            calls.append((value, {"update": True, **options}))

    def display(value: object, **options: object) -> Handle:
        calls.append((value, options))
        return Handle()

    monkeypatch.setattr("IPython.display.display", display)
    journal = Journal()
    table, picture = step_table(journal), error_plot(journal)
    replace = ipython.show_live("the buttons", table, picture)
    assert calls[0] == ("the buttons", {})
    assert calls[1] == (table, {"display_id": True})
    drawing, options = calls[2]
    assert isinstance(drawing, dict)
    assert drawing["image/png"].startswith(b"\x89PNG")
    assert drawing["text/plain"] == str(picture)
    assert options == {"raw": True, "display_id": True}
    replace(table, picture)
    assert [options.get("update") for _, options in calls[3:]] == [True, True]
