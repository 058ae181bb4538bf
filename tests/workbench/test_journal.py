"""What the journal promises: append-only, readable after a kill, without torch, and moved with its paths."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from workbench.errors import JournalError
from workbench.journal import SCHEMA_VERSION, Journal, JournalHeader, side_path
from workbench.records import Note, StepTiming, TensorSummary, UnknownRecord
from workbench.records.base import Stamp

_CHECKOUT = Path(__file__).resolve().parents[2]

_WRITE_UNTIL_KILLED = """
import sys
from workbench.journal import Journal
from workbench.records import Note

journal = Journal(path=sys.argv[1])
number = 0
while True:
    journal.act("note", {"text": str(number)})
    journal.append(Note(text="x" * 200 + str(number)))
    journal.keep("tensor", "F32", (64,), number.to_bytes(4, "little") * 64)
    number += 1
    if number == 40:
        print("ready", flush=True)
"""

_READ_WITHOUT_TORCH = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "torch":
            raise ImportError("torch is blocked")

sys.meta_path.insert(0, Refuse())
{body}
"""


def _child(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, cwd=_CHECKOUT, timeout=120
    )


def test_entries_come_back_in_order_with_their_seq(tmp_path):
    with Journal(JournalHeader(title="first", versions={"torch": "2.13"}), path=tmp_path / "a.wbj") as journal:
        journal.act("step", {"error": "both"})
        journal.append(Note(text="one"))
        journal.append(
            StepTiming(stamp=Stamp(step=0, module="m"), side="reference", name="m", step_kind="ffn", step_s=1.0)
        )

    again = Journal.open(tmp_path / "a.wbj")

    assert [entry.to_json() for entry in again] == [entry.to_json() for entry in journal]
    assert again.actions[0].arguments == {"error": "both"}
    assert [record.stamp.seq for record in again.records] == [1, 2]
    assert again.header == journal.header
    assert again.dropped_text == ""


def test_a_journal_never_overwrites(tmp_path):
    Journal(path=tmp_path / "a.wbj").close()
    with pytest.raises(JournalError, match="exists already"):
        Journal(path=tmp_path / "a.wbj")


def test_a_journal_is_readable_after_kill_9(tmp_path):
    path = tmp_path / "killed.wbj"
    child = subprocess.Popen(
        [sys.executable, "-c", _WRITE_UNTIL_KILLED, str(path)], stdout=subprocess.PIPE, text=True, cwd=_CHECKOUT
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    os.kill(child.pid, signal.SIGKILL)
    assert child.wait(timeout=60) == -signal.SIGKILL
    child.stdout.close()

    journal = Journal.open(path)

    notes = [note.text for note in journal.of_kind(Note)]
    assert len(notes) >= 40
    assert notes == ["x" * 200 + str(number) for number in range(len(notes))]
    keys = journal.captures()
    assert len(keys) >= 39
    for number, key in enumerate(keys):
        assert journal.capture(key).data == number.to_bytes(4, "little") * 64


@pytest.mark.parametrize("cut", [1, 5, 30])
def test_a_last_line_cut_short_is_dropped_and_reported(tmp_path, cut):
    path = tmp_path / "a.wbj"
    with Journal(path=path) as journal:
        journal.append(Note(text="kept"))
        journal.append(Note(text="cut"))
    path.write_bytes(path.read_bytes()[:-cut])

    again = Journal.open(path)

    assert [note.text for note in again.of_kind(Note)] == ["kept"]
    assert again.dropped_text.startswith('{"kind": "note"')


def test_a_damaged_line_before_the_last_is_an_error_naming_it(tmp_path):
    path = tmp_path / "a.wbj"
    with Journal(path=path) as journal:
        journal.append(Note(text="one"))
        journal.append(Note(text="two"))
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], lines[1][:10], lines[2]]) + "\n")
    with pytest.raises(JournalError, match=r"a\.wbj:2: expected a JSON object"):
        Journal.open(path)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"action": "step", "seq": 0, "arguments": [1]}', "expected an object as the action's arguments"),
        ("[1, 2]", "expected a JSON object"),
        ('{"kind": "note", "stamp": {}}', "field 'text' is missing"),
        ('{"kind": "note", "stamp": {}, "text": 3}', "expected str, found 3"),
    ],
)
def test_a_line_that_is_not_an_entry_is_refused(tmp_path, line, message):
    path = tmp_path / "a.wbj"
    with Journal(path=path) as journal:
        journal.append(Note(text="one"))
    path.write_text(path.read_text() + line + "\n" + '{"kind": "note", "text": "later"}\n')
    with pytest.raises(JournalError, match=message):
        Journal.open(path)


def test_a_newer_schema_is_refused_in_words(tmp_path):
    path = tmp_path / "a.wbj"
    path.write_text(json.dumps({"journal": {"schema": SCHEMA_VERSION + 1}}) + "\n")
    with pytest.raises(JournalError, match="newer workbench"):
        Journal.open(path)


@pytest.mark.parametrize("text", ["", "not a journal\n", '{"kind": "note"}\n'])
def test_a_file_that_is_no_journal_is_refused(tmp_path, text):
    path = tmp_path / "a.wbj"
    path.write_text(text)
    with pytest.raises(JournalError):
        Journal.open(path)


def test_an_unknown_kind_is_kept_word_for_word(tmp_path):
    path = tmp_path / "a.wbj"
    Journal(path=path).close()
    line = {"kind": "from_the_future", "stamp": {"module": "m", "elapsed_s": 3.0}, "colour": [1, 2]}
    path.write_text(path.read_text() + json.dumps(line) + "\n")

    (record,) = Journal.open(path).records

    assert isinstance(record, UnknownRecord)
    assert record.to_json() == line
    assert "stamp" not in record.finding()
    Journal.open(path).save(tmp_path / "b.wbj")
    assert Journal.open(tmp_path / "b.wbj").records[0].to_json() == line


def test_saving_moves_the_plans_paths_along(tmp_path):
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "runs").mkdir()
    header = JournalHeader(plan={"model": "deepseek_v41", "checkpoint": "checkpoint", "golden": None})
    with Journal(header, path=tmp_path / "a.wbj") as journal:
        journal.append(Note(text="one"))

    journal.save(tmp_path / "runs" / "b.wbj")

    moved = Journal.open(tmp_path / "runs" / "b.wbj")
    assert moved.header.plan is not None
    assert moved.header.plan["checkpoint"] == "../checkpoint"
    assert moved.same_findings(journal)


def test_captures_survive_saving(tmp_path):
    journal = Journal()
    assert journal.keep("k", "BF16", (2,), b"\x01\x02\x03\x04") == "k"
    assert journal.keep("k", "BF16", (2,), b"\x05\x06\x07\x08") == "k#2"
    journal.save(tmp_path / "a.wbj")
    again = Journal.open(tmp_path / "a.wbj")
    assert again.captures() == ["k", "k#2"]
    assert again.capture("k#2").data == b"\x05\x06\x07\x08"
    assert side_path(tmp_path / "a.wbj").exists()


def test_non_finite_figures_survive_the_file(tmp_path):
    with Journal(path=tmp_path / "a.wbj") as journal:
        journal.append(
            TensorSummary(
                name="x",
                side="reference",
                shape=(2,),
                dtype="float32",
                device="cpu",
                max=float("inf"),
                min=float("-inf"),
            )
        )
    (summary,) = Journal.open(tmp_path / "a.wbj").of_kind(TensorSummary)
    assert summary.max == float("inf")
    assert summary.min == float("-inf")
    assert journal.same_findings(Journal.open(tmp_path / "a.wbj"))


def test_a_journal_is_readable_where_torch_is_blocked(tmp_path):
    path = tmp_path / "a.wbj"
    with Journal(path=path) as journal:
        journal.append(Note(text="one"))
        journal.keep("k", "F32", (1,), b"\0\0\0\0")
    body = """
import workbench
from workbench.journal import Journal
import workbench.views
journal = Journal.open(sys.argv[1])
print(len(journal), journal.captures(), "torch" in sys.modules)
"""
    child = _child(_READ_WITHOUT_TORCH.format(body=body), str(path))
    assert child.returncode == 0, child.stderr
    assert child.stdout.split("\n")[0] == "1 ['k'] False"


def test_the_block_bites():
    child = _child(_READ_WITHOUT_TORCH.format(body="import torch"))
    assert child.returncode != 0
    assert "torch is blocked" in child.stderr


def test_a_side_file_left_by_another_journal_is_not_taken_over(tmp_path):
    path = tmp_path / "run.wbj"
    with Journal(path=path) as journal:
        journal.keep("x", "U8", (1,), b"1")
    path.unlink()
    with pytest.raises(JournalError, match="exists already, of a journal that is gone"):
        Journal(path=path)
    assert not path.exists()


def test_a_line_nested_without_end_is_damage_and_no_crash(tmp_path):
    path = tmp_path / "run.wbj"
    path.write_text("[" * 200_000 + "\n\n", encoding="utf-8")
    with pytest.raises(JournalError, match=r"run\.wbj:1: expected a JSON object"):
        Journal.open(path)
