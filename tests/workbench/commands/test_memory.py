"""`workbench memory`: a checkpoint, a configuration alone, a user's file; texts that fit, documents that validate."""

from __future__ import annotations

from pathlib import Path

import pytest

from port.checkpoint.plan import plan_weights
from port.config import ModelConfig
from tests.workbench.commands.schemas import run_json, run_text
from workbench.cli import main
from workbench.journal import Journal
from workbench.records import Allocation, MemoryPeak, StepFailure
from workbench.views.memory_runs import last_run

CHECKPOINT = Path(__file__).parents[3] / "fixtures" / "golden_A" / "checkpoint"
CONFIG = CHECKPOINT / "config.json"
PROGRAM = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 16)

    def forward(self, x, ids):
        print("a line of the program")
        h = self.fc(x) * 2
        return h, torch.zeros(64, 4, dtype=torch.int8, device=x.device).index_select(0, ids)

def build_model():
    return Model().eval()

def example_inputs():
    return torch.ones(4, 8), torch.tensor([1, 2])

calls = []

def raises(x, ids):
    calls.append(x)
    x = x * 2
    if len(calls) > 1:
        raise ValueError("no weights")
    return x

def reads(x, ids):
    return x.sum().item()
"""


@pytest.fixture
def program(tmp_path) -> str:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return str(path)


def test_a_user_s_file_is_recorded_on_the_host(program, capsys) -> None:
    code, document = run_json(capsys, "memory", program, "--allocator")
    assert code == 0
    tensors, allocator = document["peaks"]["rows"]
    assert (tensors["device"], tensors["counts"], allocator["counts"]) == ("cpu", "tensors", "allocator")
    # fc 256, its double 256, zeros 256, two rows of 4
    assert tensors["peak_bytes_above_baseline"] == 256 + 256 + 8
    assert tensors["baseline_bytes"] == 8 * 16 * 4 + 16 * 4 + 4 * 8 * 4 + 2 * 8
    assert not document["computed"]
    assert document["notes"] == document["rules"] == []


def test_the_same_file_on_shapes_names_the_rule_it_met(program, capsys) -> None:
    code, document = run_json(capsys, "memory", program, "--device", "dry")
    assert code == 0
    tensors, with_rules = document["peaks"]["rows"]
    assert tensors["device"] == "neuron:0"
    assert tensors["peak_bytes_above_baseline"] == 256 + 256 + 8
    assert with_rules["peak_bytes_above_baseline"] == tensors["peak_bytes_above_baseline"] + 64 * 4 * 4
    assert document["computed"]
    (rule,) = document["rules"]
    assert "8-bit table widened" in rule
    assert "F.embedding" in rule
    assert "documented" in rule


def test_a_checkpoint_runs_on_both_with_the_same_words(capsys) -> None:
    code, host = run_text(capsys, "memory", str(CHECKPOINT), "--layers", "0:1", "--moe", "all", "--top", "3")
    assert code == 0
    assert "Storages at the peak" in host
    assert "counting storages of tensors" in host
    code, dry = run_text(capsys, "memory", str(CHECKPOINT), "--layers", "0:1", "--device", "dry", "--timeline")
    assert code == 0
    assert "computed from shapes, not run on a device" in " ".join(dry.split())
    assert "Memory over the run on neuron:0" in dry


def test_a_checkpoint_is_recorded_in_its_decode_step_unless_told(capsys, tmp_path) -> None:
    journal = tmp_path / "run.wbj"
    arguments = ["memory", str(CHECKPOINT), "--layers", "0:1", "--module", "layers.0.attn", "--token-ids", "5,9,7"]
    assert main([*arguments, "--journal", str(journal)]) == 0
    capsys.readouterr()
    records = Journal.open(journal)
    assert {one.stamp.phase for one in records.of_kind(Allocation)} == {"decode"}
    caches = [one for one in records.of_kind(Allocation) if one.role == "cache"]
    assert caches, "what the step writes is cache"
    assert all(one.owner.startswith("layers.0") for one in last_run(records).own)
    assert [action.verb for action in records.actions] == ["memory"]


def test_a_configuration_alone_has_the_weights_the_plan_says(capsys) -> None:
    for world_size in (1, 2):
        size = str(world_size)
        code, document = run_json(
            capsys, "memory", str(CONFIG), "--layers", "0:2", "--world-size", size, "--tokens", "5", "--rank", "0"
        )
        assert code == 0
        plan = plan_weights(ModelConfig.from_file(CONFIG), rank=0, world_size=world_size)
        assert document["timeline"]["baseline"]["weight"] >= plan.weights_bytes
        # What is more are the rotation tables, which a checkpoint does not hold.
        assert document["timeline"]["baseline"]["weight"] - plan.weights_bytes < 300_000
        assert document["computed"]


def test_hit_and_all_experts_have_one_peak(capsys) -> None:
    peaks = {}
    for experts in ("hit", "all"):
        _, document = run_json(capsys, "memory", str(CONFIG), "--layers", "0:1", "--moe", experts, "--tokens", "3")
        peaks[experts] = document["peaks"]["rows"][0]
    assert peaks["hit"]["allocation_count"] < peaks["all"]["allocation_count"]
    assert peaks["hit"]["peak_bytes_above_baseline"] == peaks["all"]["peak_bytes_above_baseline"]


def test_prefill_takes_more_than_a_decode_step(capsys) -> None:
    peaks = {}
    for phase in ("prefill", "decode"):
        _, document = run_json(capsys, "memory", str(CONFIG), "--layers", "0:1", "--phase", phase, "--tokens", "64")
        peaks[phase] = document["peaks"]["rows"][0]["peak_bytes_above_baseline"]
    assert peaks["prefill"] > peaks["decode"]


def test_a_failing_target_shows_and_keeps_what_was_recorded(program, capsys, tmp_path) -> None:
    journal = tmp_path / "run.wbj"
    code, document = run_json(capsys, "memory", f"{program}:raises", "--journal", str(journal))
    assert code == 5
    assert "ValueError: no weights" in document["error"]["message"]
    assert document["peaks"]["rows"][0]["peak_bytes_above_baseline"] == 128
    kept = Journal.open(journal)
    assert kept.of_kind(MemoryPeak)
    assert kept.of_kind(StepFailure)


def test_a_refused_dry_run_names_the_line(program, capsys) -> None:
    code, document = run_json(capsys, "memory", f"{program}:reads", "--device", "dry")
    assert code in (2, 5)
    assert "return x.sum().item()" in document["error"]["message"]


def test_pictures_are_written(program, capsys, tmp_path) -> None:
    picture = tmp_path / "memory.png"
    assert main(["memory", program, "--plot", str(picture)]) == 0
    assert f"plots: {picture}, " in capsys.readouterr().out
    assert picture.stat().st_size > 1000
    assert (tmp_path / "memory-owners.png").exists()
    code, document = run_json(capsys, "memory", program, "--plot", str(tmp_path / "no" / "where.png"))
    assert code == 2
    assert "--plot: cannot draw" in document["error"]["message"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["FILE", "--layers", "0:1"], "--layers go with a checkpoint; found the Python file"),
        (["FILE", "--tokens", "4"], "--tokens go with a config.json"),
        ([str(CONFIG), "--prompt", "x"], "--prompt do not go with a configuration alone"),
        ([str(CONFIG), "--device", "host"], "has no weights to run on 'host'"),
        (
            [str(CONFIG), "--tokens", "0", "--world-size", "2", "--rank", "2"],
            "tokens: expected at least 1, found 0; rank",
        ),
        ([str(CONFIG), "--layers", "0:99"], "layers: expected a range within 0:"),
        (["FILE", "--top", "0"], "--top: expected at least 1, found 0"),
        (["FILE", "--device", "gpu"], "placement: expected"),
        (["/nowhere/model.py"], "expected a Python file, found nothing"),
    ],
)
def test_wrong_use_is_one_clear_error(program, capsys, arguments, said) -> None:
    code, document = run_json(capsys, "memory", *[program if one == "FILE" else one for one in arguments])
    assert code == 2
    assert said in document["error"]["message"]


def test_a_later_placement_is_an_environment_that_cannot(program, capsys) -> None:
    code, document = run_json(capsys, "memory", program, "--device", "virtual")
    assert code == 3
    assert document["error"]["type"] == "DeviceError"
