"""What the docs say in tables is what the code says: names, figures, reasons, fields."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
from pathlib import Path
from typing import cast, get_args

import torch

import workbench as wb
from port import verify
from port.numerics import PRESETS, NumericProfile
from port.verify_rules import SAFE_MARGIN
from tests.test_readme import ROOT, blocks
from workbench.commands import COMMANDS
from workbench.compare.tolerances import EXACT, ErrorKind, default_tolerance
from workbench.doctor_report import Basis
from workbench.exit_codes import MEANING
from workbench.journal import SCHEMA_VERSION, Journal, JournalHeader
from workbench.plan import DeviceName
from workbench.records import KINDS
from workbench.session import VERBS
from workbench.views.steps import step_rows

DOCS = ROOT / "docs"
_BOTH: tuple[ErrorKind, ...] = ("isolated", "accumulated")


def table(page: str, header: str) -> list[list[str]]:
    """Return the cells of the table whose header line begins with `header`."""
    lines = (DOCS / page).read_text(encoding="utf-8").splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith(header))
    rows: list[list[str]] = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


def test_exit_codes_agree() -> None:
    rows = {int(row[0]): row[1] for row in table("exit_codes.md", "| code |")}
    assert rows == {int(code): meaning for code, meaning in MEANING.items()}


def test_tolerances_agree() -> None:
    named = {"8-bit floats": torch.float8_e4m3fn, "integers, booleans": torch.int64}
    seen: set[tuple[torch.dtype, str]] = set()
    for format_name, error, rel_l2, steps, reason in table("numerics.md", "| format |"):
        dtype = named.get(format_name) or getattr(torch, format_name)
        for kind in _BOTH if error == "both" else (cast("ErrorKind", error),):
            found = default_tolerance(dtype, kind)
            seen.add((dtype, kind))
            assert reason == found.reason, (format_name, kind)
            if found is not EXACT:
                assert rel_l2 == f"{found.rel_l2:g}", (format_name, kind)
                assert steps == ("-" if found.steps is None else f"{found.steps:g}"), (format_name, kind)
    formats = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.int64)
    assert seen == {(dtype, kind) for dtype in formats for kind in _BOTH}


def test_limits_of_verify_agree() -> None:
    rules = {mode: rule for mode, rule in table("numerics.md", "| mode |")}
    assert f"within {verify.ROW_LIMIT:g};" in rules["fp32"]
    for mode in ("fp32kv", "fp32q", "bf16"):
        assert rules[mode].endswith(f"at least {verify.ARGMAX_SHARE[mode]:g}")
    for mode in ("fp32kv", "fp32q"):
        assert f"within {verify.QUIET_MEDIAN:g}" in rules[mode]
        assert f"below {verify.QUIET_NOISE:g};" in rules[mode]
    assert f"scores are within {SAFE_MARGIN:g} is" in (DOCS / "numerics.md").read_text(encoding="utf-8")


def test_profiles_agree() -> None:
    text = (DOCS / "numerics.md").read_text(encoding="utf-8")
    names = next(line for line in text.splitlines() if line.startswith("| choice |")).strip("|").split("|")[1:]
    names = [name.strip() for name in names]
    assert set(names) | {"R"} == set(PRESETS)
    rows = {row[0].strip("`"): row[1:] for row in table("numerics.md", "| choice |")}
    assert list(rows) == [field.name for field in dataclasses.fields(NumericProfile)]
    for choice, values in rows.items():
        expected = [getattr(PRESETS[name], choice) for name in names]
        assert values == [f"{value:g}" if isinstance(value, float) else value for value in expected], choice


def test_documents_of_every_command_are_listed_with_their_fields() -> None:
    text = (DOCS / "json.md").read_text(encoding="utf-8")
    sections = dict(re.findall(r"^## `workbench (\w+)`\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL))
    assert tuple(sections) == COMMANDS
    for command, body in sections.items():
        schema = json.loads((ROOT / "workbench" / "schemas" / f"{command}.json").read_text(encoding="utf-8"))
        answer = schema.get("$defs", {}).get("answer", schema)
        fields = set(answer["properties"]) - {"command", "schema", "exit_code", "error"}
        assert set(re.findall(r"^\| `(\w+)` \|", body, re.MULTILINE)) == fields, command


def test_kinds_of_records_agree() -> None:
    rows = {row[0].strip("`"): row[1:] for row in table("journal.md", "| kind |")}
    assert list(rows) == sorted(KINDS)
    for kind, (what, not_compared) in rows.items():
        record = KINDS[kind]
        assert what == (inspect.getdoc(record) or "").splitlines()[0], kind
        assert not_compared == (", ".join(sorted(record.volatile)) or "-"), kind


def test_the_header_of_a_journal_is_described_whole() -> None:
    rows = [row[0].strip("`") for row in table("journal.md", "| field of `journal` |")]
    assert rows == [field.name for field in dataclasses.fields(JournalHeader)]
    assert f"version of the format: {SCHEMA_VERSION};" in (DOCS / "journal.md").read_text(encoding="utf-8")


def test_the_example_journal_can_be_read(tmp_path: Path) -> None:
    (text,) = blocks(DOCS / "journal.md", "json")
    (tmp_path / "example.wbj").write_text(text, encoding="utf-8")
    journal = Journal.open(tmp_path / "example.wbj")
    assert (len(journal.actions), len(journal.records), journal.dropped_text) == (1, 1, "")
    assert [entry.to_json() for entry in journal] == [json.loads(line) for line in text.splitlines()[1:]]
    assert all(action.verb in VERBS for action in journal.actions)


def test_placements_and_words_of_their_basis_agree() -> None:
    assert [row[0].strip("`") for row in table("placements.md", "| placement |")] == list(get_args(DeviceName))
    words = re.findall(r"^- \*\*(\w+)\*\*", (DOCS / "placements.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert set(words) == set(get_args(Basis))
    for claim, basis in table("placements.md", "| claim |"):
        assert re.match(r"measured|documented|inferred|computed", basis), claim


def test_the_cost_of_a_shorter_fp8_is_what_a_run_measures() -> None:
    plan = wb.Plan(
        checkpoint=str(ROOT / "fixtures" / "golden_A" / "checkpoint"),
        inputs=wb.Inputs(token_ids=(tuple(range(3, 103)),)),
        reference=wb.Placement(profile="bf16"),
        candidate=wb.Placement(profile="bf16@224"),
    )
    with wb.Session(plan) as session:
        session.run(stop_at="never")
    found = {row.module: row for row in step_rows(session.journal.records)}
    rows = table("numerics.md", "| step | isolated | accumulated |")
    assert [row[0].strip("`") for row in rows] == [name for name in found if name.startswith("layers.")]
    for name, isolated, accumulated in rows:
        row = found[name.strip("`")]
        # Another machine rounds otherwise: the size counts, not the figures.
        for told, measured in ((float(isolated), row.isolated or 0.0), (float(accumulated), row.accumulated or 0.0)):
            assert (told < 1e-5 and measured < 1e-5) or told / 10 < measured < told * 10, name
