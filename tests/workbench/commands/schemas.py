"""Runs a command in this process and holds its JSON against its schema."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

import workbench
from workbench.cli import main


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict]:
    """Return exit code and document of `workbench ARGUMENTS --json`, valid against the command's schema."""
    code = main([*arguments, "--json"])
    document = json.loads(capsys.readouterr().out)
    path = Path(workbench.__file__).parent / "schemas" / f"{arguments[0]}.json"
    schema = json.loads(path.read_text(encoding="utf-8"))
    Draft202012Validator.check_schema(schema)
    Draft202012Validator(schema).validate(document)
    assert document["exit_code"] == code
    return code, document


def run_text(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """Return exit code and text of a command, whose lines all fit 100 columns."""
    code = main(list(arguments))
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines()), default=0) <= 100
    return code, text
