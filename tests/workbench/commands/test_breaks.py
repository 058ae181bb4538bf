"""`workbench breaks`: a user's file and a checkpoint, exit codes, and a document that fits its schema."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

import workbench
from workbench.cli import main
from workbench.journal import Journal
from workbench.records.graphs import GraphBreak

_SCHEMA = json.loads((Path(workbench.__file__).parent / "schemas" / "breaks.json").read_text())
_CHECKPOINT = Path(__file__).parents[3] / "fixtures" / "golden_A" / "checkpoint"
_PROGRAM = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x):
        h = self.fc(x)
        print("a line of the program")
        return h

def build_model():
    return Model().eval()

def plain(x):
    return x * 2

def raises(x):
    x = x * 2
    torch._dynamo.graph_break()
    raise ValueError("no weights")

def example_inputs():
    return (torch.ones(2, 8),)
"""


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(_PROGRAM)
    return path


def _document(arguments, capsys):
    code = main(["breaks", *arguments, "--json"])
    document = json.loads(capsys.readouterr().out)
    jsonschema.validate(document, _SCHEMA)
    assert document["exit_code"] == code
    return document


def test_breaks_of_a_file_are_listed_and_give_1(program, capsys):
    assert main(["breaks", str(program), "--map", "--recompiles"]) == 1
    text, other = capsys.readouterr()
    assert "program.py:12 in forward: unsupported_builtin (GB0059)" in text
    assert '    > print("a line of the program")' in text
    assert "Modules by graph: 1 graph, 1 operation" in text
    assert "Recompiles" in text
    assert "a line of the program" in other, "what the program prints stays out of the answer"


def test_a_callable_of_the_file_can_be_named_and_no_break_gives_0(program, capsys):
    assert main(["breaks", f"{program}:plain"]) == 0
    assert "0 breaks, 1 graph" in capsys.readouterr().out


def test_the_document_fits_its_schema(program, capsys):
    document = _document([str(program)], capsys)
    (one,) = document["breaks"]["breaks"]
    assert (one["line"], one["calls"], one["modules"]) == (12, 1, [""])
    assert document["map"]["graphs"] == [{"index": 0, "node_count": 1}]
    assert document["complete"] is True
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**document, "breaks": {"breaks": [{"line": 1}]}}, _SCHEMA)


def test_a_program_that_raises_gives_5_and_says_what_it_raised(program, capsys):
    document = _document([f"{program}:raises"], capsys)
    assert document["exit_code"] == 5
    assert document["error"]["type"] == "TargetCrash"
    assert "ValueError: no weights" in document["error"]["message"]


def test_the_journal_and_the_picture_are_written(program, tmp_path, capsys):
    journal, plot = tmp_path / "run.wbj", tmp_path / "map.png"
    assert main(["breaks", str(program), "--journal", str(journal), "--plot", str(plot)]) == 1
    assert str(journal) in capsys.readouterr().out
    kept = Journal.open(journal)
    assert [action.verb for action in kept.actions] == ["trace_graphs"]
    assert [one.line for one in kept.of_kind(GraphBreak)] == [12]
    assert plot.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["{}", "--layers", "0:2", "--moe", "all"], "--layers, --moe go with a checkpoint"),
        (["{}:nothing"], "expected a callable or module called 'nothing', found no such name"),
        (["{}.py"], "expected a Python file, found nothing"),
        (["{}", "--depth", "0"], "--depth: expected at least 1, found 0"),
        (["{}", "--plot", "/dev/null/map.png"], "--plot: cannot draw to /dev/null/map.png"),
        (["nowhere"], "nowhere"),
    ],
)
def test_wrong_use_gives_2_and_says_what_to_do(program, arguments, told, capsys):
    assert main(["breaks", *(one.format(program) for one in arguments)]) == 2
    assert told in capsys.readouterr().err


def test_a_decode_step_that_walks_the_experts_hit_breaks_where_it_reads_ids(capsys):
    document = _document([str(_CHECKPOINT), "--module", "layers.0.ffn", "--token-ids", "5,6,7"], capsys)
    found = document["breaks"]["breaks"]
    assert document["exit_code"] == 1
    assert {(Path(one["file"]).name, one["function"]) for one in found} == {("experts.py", "_rows_by_expert")}
    assert {one["reason_class"] for one in found} == {"dynamic_shape_op", "data_dependent_op"}
    assert all(one["modules"] == ["layers.0.ffn"] for one in found)
    assert [one["calls"] for one in found] == [1, 1]


def test_a_decode_step_that_walks_all_experts_is_one_graph(capsys):
    document = _document([str(_CHECKPOINT), "--layers", "0:1", "--moe", "all", "--token-ids", "5,6,7"], capsys)
    assert document["exit_code"] == 0
    assert document["breaks"]["breaks"] == []
    assert document["summary"]["graph_count"] == 1
    assert {"embed", "layers.0.attn"} <= {row["module"] for row in document["map"]["rows"]}
