"""`workbench bisect`: graph files, Python files, by hand, exit codes, JSON against its schema."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.workbench.commands.schemas import run_json, run_text
from workbench.cli import main
from workbench.journal import Journal
from workbench.records.compiling import BisectionResult

_LINES = "parameter\nadd\nsort\nmultiply\ndot\ndynamic-slice\ntanh\nreduce\n"
_PAIR = "planted:sort+dynamic-slice"


@pytest.fixture
def graph(tmp_path: Path) -> str:
    (tmp_path / "graph.txt").write_text(_LINES)
    return str(tmp_path / "graph.txt")


def test_a_failing_part_is_found_and_told(graph: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = run_text(capsys, "bisect", graph, "--compiler", _PAIR, "--trials")
    assert code == 1
    assert "SIMULATED" in text
    assert "    sort\n    dynamic-slice\n" in text
    assert "failure: compile error NCC_ITIN902 in TensorInitialization" in text
    assert "trial  phase" in text


def test_the_document_holds_results_and_trials(graph: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = {name: str(tmp_path / name) for name in ("run.wbj", "out", "plot.png", "trials")}
    code, document = run_json(
        capsys, "bisect", graph, "--compiler", _PAIR, "--journal", files["run.wbj"], "--repro", files["out"],
        "--plot", files["plot.png"], "--resume", files["trials"],
    )  # fmt: skip
    (result,) = document["result"]["results"]
    assert (code, result["culprit"], result["minimal"], result["simulated"]) == (
        1,
        ["sort", "dynamic-slice"],
        True,
        True,
    )
    assert result["repro"] == f"{files['out']}/repro.py"
    assert all(row["simulated"] for row in document["trials"]["rows"])
    assert document["next"] is None
    assert Path(files["plot.png"]).stat().st_size > 1000
    assert Journal.open(files["run.wbj"]).of_kind(BisectionResult)[0].culprit == ("sort", "dynamic-slice")
    code, document = run_json(capsys, "bisect", graph, "--compiler", _PAIR, "--resume", files["trials"])
    assert document["result"]["results"][0]["trials"] == 0


@pytest.mark.parametrize(
    ("compiler", "limit", "expected"),
    [
        ("planted:fft", "60", 0),
        ("planted:fails=dot", "60", 1),
        ("planted:hangs=dot", "0.2", 4),
        ("planted:crashes=dot", "60", 5),
        ("planted:exhausts=dot", "60", 5),
        (f"{sys.executable} -c pass --x {{file}} --y {{file}}", "60", 0),
        (f"{sys.executable} --no-such-option", "60", 2),
        ("neuron", "60", 3),
        ("no-such-compiler", "60", 2),
    ],
)
def test_exit_codes_say_what_was_found(
    compiler: str, limit: str, expected: int, graph: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, document = run_json(capsys, "bisect", graph, "--compiler", compiler, "--time-limit", limit)
    assert code == expected, document


_MODEL = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(3))

    def forward(self, x):
        for index, layer in enumerate(self.layers):
            x = layer(x)
            x = torch.topk(x, 4).values if index == 1 else x.relu()
        return x

def build_model():
    torch.manual_seed(0)
    return Net()

def example_inputs():
    return torch.ones(2, 4)
"""


def test_a_module_of_a_file_is_narrowed_by_layer_and_node(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "net.py").write_text(_MODEL)
    code, document = run_json(capsys, "bisect", str(tmp_path / "net.py"), "--compiler", "planted:topk")
    layers, nodes = document["result"]["results"]
    assert (code, layers["culprit"]) == (1, ["layers.1"])
    assert [name.split(" = ")[1] for name in nodes["culprit"]] == ["topk"]
    code, document = run_json(
        capsys, "bisect", str(tmp_path / "net.py"), "--compiler", "planted:relu", "--module", "layers.0"
    )
    assert (code, document["result"]["results"][-1]["verdict"]) == (0, "not_reproduced")


def test_neuron_without_its_packages_exits_with_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "net.py").write_text(_MODEL)
    code, document = run_json(capsys, "bisect", str(tmp_path / "net.py"), "--compiler", "neuron")
    assert code == 3
    assert "expected torch-neuronx and neuronx-cc" in document["error"]["message"]


def test_a_search_by_hand_goes_step_by_step(graph: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = ("bisect", graph, "--compiler", _PAIR, "--resume", str(tmp_path / "trials"))
    code, document = run_json(capsys, *base, "--step")
    assert (code, document["next"]["phase"], len(document["next"]["kept"])) == (0, "prefix", 4)
    first = document["next"]
    code, document = run_json(capsys, *base, "--step")
    assert len(document["next"]["kept"]) == 6
    code, text = run_text(capsys, *base, "--undo", "1")
    assert (code, "forgot 1 trials; 2 are left" in text) == (0, True)
    assert f"next (prefix): {len(first['kept'])} kept" in text
    code, document = run_json(capsys, *base, "--mark", "skip")
    assert document["trials"]["rows"][-1]["phase"] == "user"
    for _ in range(40):
        code, document = run_json(capsys, *base, "--step")
        if document["next"] is None:
            break
    assert code == 1
    assert document["result"]["results"][0]["culprit"] == ["sort", "dynamic-slice"]
    assert run_json(capsys, *base)[1]["result"]["results"][0]["trials"] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--step",), "expected --resume FILE too"),
        (("--step", "--resume", "t", "--journal", "j"), "the file of --resume is the record; found --journal too"),
        (("--undo", "3", "--resume", "t"), "expected 1 to 0 trials to take back, found 3"),
        (("--level", "nodes"), "expected 'lines' for a graph file, found 'nodes'"),
    ],
)
def test_wrong_use_is_told(
    arguments: tuple[str, ...],
    message: str,
    graph: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["bisect", graph, "--compiler", _PAIR, *arguments]) == 2
    assert message in capsys.readouterr().err
    assert main(["bisect", str(tmp_path / "net.py"), "--compiler", _PAIR, "--phase", "decode"]) == 2
    assert "--phase go with a checkpoint" in capsys.readouterr().err
