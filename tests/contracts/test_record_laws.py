"""What holds for every kind of record: it survives JSON, it is frozen, and its finding is what may be compared."""

from __future__ import annotations

import dataclasses
import json
from typing import ClassVar

import pytest

from tests.contracts.samples import STAMP, sample, samples
from workbench.errors import JournalError
from workbench.journal import Journal
from workbench.records import KINDS, Record, UnknownRecord, record_from_json

_BY_KIND = {"argvalues": list(KINDS.values()), "ids": list(KINDS)}


@pytest.mark.parametrize("empty", [False, True], ids=["filled", "sparse"])
@pytest.mark.parametrize("record", **_BY_KIND)
def test_record_survives_json(record: type[Record], empty: bool) -> None:
    one = sample(record, empty=empty)
    text = json.dumps(one.to_json(), allow_nan=False)
    assert record_from_json(json.loads(text)) == one
    assert text.startswith(f'{{"kind": "{record.kind}"')


@pytest.mark.parametrize("record", **_BY_KIND)
def test_numbers_json_cannot_hold_survive(record: type[Record]) -> None:
    floats = [field.name for field in dataclasses.fields(record) if field.type in ("float", "float | None", float)]
    one = dataclasses.replace(sample(record), **dict.fromkeys(floats, float("inf")))
    assert record_from_json(json.loads(json.dumps(one.to_json(), allow_nan=False))) == one


@pytest.mark.parametrize("record", **_BY_KIND)
def test_finding_leaves_out_what_may_differ_and_nothing_else(record: type[Record]) -> None:
    names = {field.name for field in dataclasses.fields(record)}
    assert record.volatile <= names, "a field that is left out must exist"
    finding = sample(record).finding()
    assert set(finding) == (names - record.volatile - {"stamp"}) | {"kind", "module", "phase"}
    assert (finding["module"], finding["phase"]) == (STAMP.module, STAMP.phase)


@pytest.mark.parametrize("record", **_BY_KIND)
def test_a_required_field_that_is_missing_is_named(record: type[Record]) -> None:
    required = [field.name for field in dataclasses.fields(record) if field.default is dataclasses.MISSING]
    assert required, "a record says something"
    body = sample(record).to_json()
    del body[required[0]]
    with pytest.raises(JournalError, match=f"{record.__name__}: field '{required[0]}' is missing"):
        record_from_json(body)


@pytest.mark.parametrize("record", **_BY_KIND)
def test_record_is_frozen_and_its_fields_are_documented(record: type[Record]) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        sample(record).stamp = STAMP  # type: ignore[misc]
    text = record.__doc__ or ""
    own = [field.name for field in dataclasses.fields(record) if field.name != "stamp"]
    assert [name for name in own if name not in text] == []


def test_kinds_are_named_after_themselves() -> None:
    assert {kind: record.kind for kind, record in KINDS.items()} == {kind: kind for kind in KINDS}
    assert UnknownRecord.kind not in KINDS


def test_a_journal_of_every_kind_comes_back_equal(tmp_path) -> None:
    with Journal(path=tmp_path / "all.wbj") as journal:
        for record in samples():
            journal.append(record)
    again = Journal.open(tmp_path / "all.wbj")
    assert again.records == journal.records
    assert journal.same_findings(again)


def test_the_round_trip_law_can_fail() -> None:
    @dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
    class Loses(Record):
        kind: ClassVar[str] = "note"
        text: object

        def to_json(self) -> dict:
            return {"kind": "note", "text": "something else", "stamp": {}}

    one = Loses(text="said")
    assert record_from_json(one.to_json()) != one
