"""What holds for every command: help with exit codes, a schema that its documents fit and that can refuse one."""

from __future__ import annotations

import copy
import io
import json
import os
import subprocess
import sys
from importlib import resources
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator, ValidationError

from tests.contracts.imports import ROOT
from workbench.cli import _SUMMARY, main
from workbench.commands import COMMANDS, load_command
from workbench.exit_codes import MEANING
from workbench.journal import Journal, JournalHeader
from workbench.output import Output
from workbench.plan import Plan

_TINY = str(ROOT / "fixtures" / "tiny_v41")
_GOLDEN = str(ROOT / "fixtures" / "golden_A")
_PROGRAM = """
import torch

def build_model():
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()).eval()

def example_inputs():
    return (torch.ones(2, 4),)
"""


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a user's file, a graph, a case of an unknown class, and a recorded session."""
    (tmp_path / "program.py").write_text(_PROGRAM, encoding="utf-8")
    (tmp_path / "graph.txt").write_text("add\nsort\ntanh\n", encoding="utf-8")
    (tmp_path / "cases" / "NEW-01").mkdir(parents=True)
    (tmp_path / "cases" / "NEW-01" / "expected.json").write_text('{"id": "NEW-01", "class": "new"}', encoding="utf-8")
    plan = Plan(model="module", source="program.py").to_json()
    with Journal(JournalHeader(plan=plan), path=tmp_path / "run.wbj") as journal:
        journal.act("note", {"text": "x"})
    monkeypatch.chdir(tmp_path)
    return tmp_path


# command -> (a call that gives an answer, its exit code, a call that gives an error, its exit code)
CALLS: dict[str, tuple[list[str], int, list[str], int]] = {
    "doctor": (["--require", "neuron"], 3, [], -1),
    "show": ([_TINY], 0, ["absent"], 2),
    "plan": ([_TINY, "--world-size", "2"], 0, ["absent"], 2),
    "run": (["program.py"], 0, [_TINY, "--reference", "gpu"], 2),
    "verify": ([f"{_GOLDEN}/checkpoint", "--golden", _GOLDEN, "--prompts", "len1"], 0,
               [f"{_GOLDEN}/checkpoint", "--golden", "absent"], 2),
    "memory": (["program.py"], 0, ["absent.py"], 2),
    "breaks": (["program.py"], 0, ["absent.py"], 2),
    "bisect": (["graph.txt", "--compiler", "planted:sort"], 1, ["graph.txt", "--compiler", "absent"], 2),
    "replay": (["run.wbj"], 1, ["absent.wbj"], 2),
    "fixtures": (["made"], 0, ["run.wbj"], 2),
    "cases": (["cases"], 125, ["absent"], 2),
}  # fmt: skip
_EACH = pytest.mark.parametrize("command", COMMANDS)


def schema_of(command: str) -> dict:
    """Return a command's schema as it is installed."""
    text = resources.files("workbench").joinpath(f"schemas/{command}.json").read_text(encoding="utf-8")
    return json.loads(text)


def answer(command: str, arguments: list[str], expected: int, capsys: pytest.CaptureFixture[str]) -> dict:
    """Return the document of a call, having held its exit code against the expected one."""
    code = main([command, *arguments, "--json"])
    out, err = capsys.readouterr()
    assert code == expected, (out[-1000:], err[-1000:])
    document = json.loads(out)
    assert (document["command"], document["schema"], document["exit_code"]) == (command, 1, code)
    return document


def test_every_command_has_a_call_here_and_a_schema() -> None:
    assert tuple(CALLS) == COMMANDS == tuple(_SUMMARY)
    schemas = {path.stem for path in (ROOT / "workbench" / "schemas").glob("*.json")}
    assert schemas == set(COMMANDS)


@_EACH
def test_help_tells_exit_codes_and_every_argument(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    for code, meaning in MEANING.items():
        assert f"{int(code)} {meaning}" in text
    assert "--json" in text
    module = load_command(command)
    assert command == module.NAME
    assert module.HELP[0].upper() + module.HELP[1:] in text


@_EACH
def test_answer_fits_the_schema(command: str, workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    schema = schema_of(command)
    Draft202012Validator.check_schema(schema)
    arguments, code, _, _ = CALLS[command]
    document = answer(command, arguments, code, capsys)
    Draft202012Validator(schema).validate(document)
    for changed in ({"surprise": 1}, {"exit_code": 77}, {"command": "other"}, {"schema": 2}):
        with pytest.raises(ValidationError):
            Draft202012Validator(schema).validate({**copy.deepcopy(document), **changed})
    with pytest.raises(ValidationError):
        Draft202012Validator(schema).validate({key: document[key] for key in ("command", "schema", "exit_code")})


@pytest.mark.parametrize("command", [command for command in COMMANDS if CALLS[command][3] >= 0])
def test_error_fits_the_schema(command: str, workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, _, arguments, code = CALLS[command]
    document = answer(command, arguments, code, capsys)
    Draft202012Validator(schema_of(command)).validate(document)
    assert document["error"]["message"]


@_EACH
def test_wrong_arguments_are_told_in_a_document_too(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, "--json", "--absent"])
    assert ended.value.code == 2
    out, err = capsys.readouterr()
    document = json.loads(out)
    assert document["exit_code"] == 2
    assert document["error"]["message"] in err
    Draft202012Validator(schema_of(command)).validate(document)


@pytest.mark.parametrize("command", ["run", "memory", "breaks", "bisect"])
def test_a_picture_nobody_can_draw_is_refused_before_anything_runs(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, "absent", "--compiler", "eager", "--plot", "map.xyz"])
    assert ended.value.code == 2
    assert "--plot: expected a file ending in .png, .svg, .pdf; found 'map.xyz'" in capsys.readouterr().err


def test_what_the_target_prints_stays_out_of_the_document(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    noisy = _PROGRAM.replace("import torch\n", "import torch\n\nprint('noise')\n")
    (workplace / "noisy.py").write_text(noisy, encoding="utf-8")
    assert main(["run", "noisy.py", "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["verdict"] == "observed"
    assert "noise" in err


@pytest.mark.parametrize(
    ("raised", "code", "kind"),
    [
        (PermissionError(13, "Permission denied", "x"), 2, "PermissionError"),
        (RuntimeError("boom"), 5, "RuntimeError"),
        (SystemExit(0), 5, "SystemExit"),
    ],
)
def test_what_nobody_expected_is_an_error_and_no_difference(
    raised: BaseException, code: int, kind: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: object) -> int:
        raise raised

    monkeypatch.setattr(load_command("show"), "run", fails)
    document = answer("show", [_TINY], code, capsys)
    assert document["error"]["type"] == kind
    Draft202012Validator(schema_of("show")).validate(document)


def test_a_document_needs_no_more_than_ascii(capsys: pytest.CaptureFixture[str]) -> None:
    Output("show", as_json=True).finish(0)
    assert json.loads(capsys.readouterr().out)["exit_code"] == 0
    written = io.StringIO()
    out = Output("show", as_json=True, stream=written)
    out.put("path", {"text": "\udcff \u00fc", "largest": float("nan")})
    out.finish(0)
    assert written.getvalue().isascii()

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    assert json.loads(written.getvalue(), parse_constant=refuse)["path"]["text"] == "\udcff \u00fc"


def test_text_that_the_terminal_cannot_show_is_escaped() -> None:
    kept = io.BytesIO()
    stream = io.TextIOWrapper(kept, encoding="ascii")
    out = Output("show", as_json=False, stream=stream)
    out.line("w\u00f6rk \udcff")
    out.finish(0)
    assert kept.getvalue().split() == [b"w\\xf6rk", b"\\udcff"]


@pytest.mark.parametrize(
    ("shell", "code"), [("| head -c 1", 0), (">&-", 0), *([("> /dev/full", 2)] if os.path.exists("/dev/full") else [])]
)
@pytest.mark.parametrize("form", ["", "--json"])
def test_a_reader_that_is_gone_is_met_without_a_traceback(shell: str, code: int, form: str) -> None:
    command = f'set -o pipefail; "$0" -m workbench show "$1" {form} {shell}'
    ended = subprocess.run(["bash", "-c", command, sys.executable, _TINY], cwd=ROOT, capture_output=True, text=True)
    assert "Traceback" not in ended.stderr
    assert ended.returncode == code


def test_an_unknown_command_is_wrong_use(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["stpe"])
    assert ended.value.code == 2
    assert "stpe" in capsys.readouterr().err
    assert main([]) == 2
    assert "replay" in capsys.readouterr().out
