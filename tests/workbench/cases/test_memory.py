"""Memory cases: the handed ones pass, other programs of the kind pass when told right, and each wrong answer fails."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.shared import shared_path
from workbench.cases.memory import run_case
from workbench.cases.memory_names import dtype_named, operations_in, same_operation
from workbench.errors import PlanError

CACHE = """
import torch
from torch import nn

class Cache(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(16)
    def forward(self, past, x):
        x = self.norm(x)
        past = torch.cat([past, x.reshape(1, 16)])
        x += 1
        return past, x

def build_model():
    return Cache().eval()

def example_inputs():
    return torch.ones(7, 16), torch.ones(1, 16)
"""

TRAINING = """
import torch
from torch import nn

def build_model():
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh())

def example_inputs():
    return (torch.ones(4, 8),)
"""


def write_case(folder: Path, program: str, expected: dict, **other) -> Path:
    case = {"id": "MEM-99", "class": "memory", "report": "R0", "files": ["model.py"], "note": "", "expected": expected}
    (folder / "expected.json").write_text(json.dumps({**case, **other}))
    (folder / "model.py").write_text(program)
    return folder


def differences(folder: Path, program: str, expected: dict, **other) -> str:
    result = run_case(write_case(folder, program, expected, **other))
    assert result.status == ("failed" if result.differences else "passed")
    return "\n".join(result.differences)


@pytest.mark.parametrize("name", ["MEM-01", "MEM-03", "MEM-05", "MEM-07"])
def test_the_handed_cases_pass(name) -> None:
    result = run_case(shared_path("cases", name))
    assert (result.status, result.differences) == ("passed", ())


RIGHT = {
    "allocations_in_order": [
        {"op": "aten::layer_norm (norm)", "bytes": 64},
        {"op": "aten::native_layer_norm mean", "bytes": 4},
        {"op": "aten::native_layer_norm rstd", "bytes": 4},
        {"op": "aten::cat", "bytes": 512, "shape": [8, 16], "dtype": "fp32", "alive_at_end": True},
    ],
    "peak_bytes_above_baseline": 576,
    "peak_at": "aten::cat",
    "live_bytes_at_end": 576,
    "top_owners": [{"owner": "", "bytes": 512}, {"owner": "norm", "bytes": 64}],
    "dry": {"peak_bytes_above_baseline": 576, "live_bytes_at_end": 576},
    "hand_count": "in words",
}


def test_another_program_of_the_kind_passes_when_told_right(tmp_path) -> None:
    told = {"parameter_and_buffer_bytes": 128, "input_bytes": 7 * 64 + 64}
    assert differences(tmp_path, CACHE, RIGHT, baseline=told) == ""


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"peak_bytes_above_baseline": 577}, "peak_bytes_above_baseline: expected 577, reported 576"),
        ({"peak_at": "aten::add"}, "peak_at: op: expected aten::add, reported aten::cat"),
        ({"live_bytes_at_end": 0}, "live_bytes_at_end: expected 0, reported 576"),
        ({"peak_bytes_allocator_level": 1}, "peak_bytes_allocator_level: expected 1, reported"),
        ({"allocations_in_order": []}, "expected 0 allocations, reported 4: also aten::native_layer_norm 64"),
        ({"top_owner": "norm"}, r"top_owner: [0] expected norm, reported the root"),
        ({"dry": {"peak_bytes_above_baseline": 3}}, "dry.peak_bytes_above_baseline: expected 3, reported 576"),
        ({"allocator_extras": [{"what": "", "bytes": 123}]}, "allocator_extras: expected [123] bytes, reported"),
        ({"colour": 1}, "colour: a key this version does not know"),
    ],
)
def test_a_wrong_answer_or_an_unknown_key_fails(tmp_path, changed, said) -> None:
    assert said in differences(tmp_path, CACHE, changed)


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ({"op": "aten::cat (norm)"}, "reported it in the root"),
        ({"op": "aten::cat (bf16)"}, "reported it as float32"),
        ({"bytes": 511}, "bytes: expected 511, reported 512"),
        ({"shape": [1]}, "shape: expected [1], reported [8, 16]"),
        ({"dtype": "int64"}, "dtype: expected int64, reported float32"),
        ({"alive_at_end": False}, "alive_at_end: expected False, reported True"),
        ({"smell": 1}, "smell: a key this version does not know"),
    ],
)
def test_each_fact_of_an_allocation_is_compared(tmp_path, place, said) -> None:
    entries = [dict(one) for one in RIGHT["allocations_in_order"]]
    entries[3] |= place
    assert said in differences(tmp_path, CACHE, {"allocations_in_order": entries})


def test_a_backward_is_a_call_of_its_own_kind(tmp_path) -> None:
    entry = {"build": "build_model()", "inputs": "example_inputs()", "grad": True}
    call = "model(*example_inputs()).sum().backward()"
    # addmm 256, tanh 256, sum 4, its gradient 4; then what the backward makes, the weight's gradient last.
    right = {"live_bytes_at_end": 16 * 8 * 4 + 16 * 4}
    assert differences(tmp_path, TRAINING, right, entry={**entry, "call": call}) == ""


def test_a_call_of_another_form_is_refused(tmp_path) -> None:
    with pytest.raises(PlanError, match="entry: expected `build_model"):
        differences(tmp_path, CACHE, RIGHT, entry={"call": "__import__('os').system('x')"})


def test_baseline_verified_and_forbidden_answers_are_held_against_us(tmp_path) -> None:
    assert "baseline.input_bytes: expected 1, reported 512" in differences(
        tmp_path, CACHE, RIGHT, baseline={"input_bytes": 1}
    )
    import torch

    verified = {"torch": torch.__version__, "events": [1], "peak_bytes": 2}
    said = differences(tmp_path, CACHE, RIGHT, verified=verified)
    assert "verified.events: expected [1], reported [" in said
    assert "verified.peak_bytes: expected 2" in said
    assert differences(tmp_path, CACHE, RIGHT, verified={**verified, "torch": "1.0"}) == "", "another torch saw others"
    assert "must_not" in differences(tmp_path, CACHE, RIGHT, must_not=["cat allocates 512 bytes"])
    assert "must_not: 576" in differences(tmp_path, CACHE, RIGHT, must_not=[576])
    assert differences(tmp_path, CACHE, RIGHT, must_not=["reshape allocates 64 bytes", 0]) == ""


def test_nothing_to_compare_with_is_a_failure(tmp_path) -> None:
    assert "found nothing to compare with" in differences(tmp_path, CACHE, {})
    assert "extra: a key this version does not know" in differences(tmp_path, CACHE, RIGHT, extra=1)


def test_names_are_brought_together_in_substance() -> None:
    assert operations_in("aten::addmm (up)") == (["addmm"], ["up"])
    assert operations_in("cat") == (["cat"], [])
    assert operations_in("aten::sort values") == (["sort"], [])
    assert same_operation("to", "aten::_to_copy")
    assert same_operation("softmax", "aten::_softmax")
    assert same_operation("relu", "aten::relu_")
    assert not same_operation("mul", "aten::mm")
    assert dtype_named("bf16") == "bfloat16"
    assert dtype_named("torch.float8_e4m3fn") == "float8_e4m3fn"
    assert dtype_named("scores") is None


def test_the_allocator_sees_a_backward_that_starts_without_gradients_like_the_first(tmp_path) -> None:
    (tmp_path / "model.py").write_text(
        "import torch\nfrom torch import nn\n\n\nclass M(nn.Module):\n    def __init__(self):\n"
        "        super().__init__()\n        self.fc = nn.Linear(64, 64)\n\n"
        "    def forward(self, x):\n        return self.fc(x).relu().sum()\n\n\n"
        "def build_model():\n    return M()\n\n\ndef example_inputs():\n    return (torch.ones(64, 64),)\n"
    )
    entry = {"build": "build_model()", "inputs": "example_inputs()", "call": "model(*example_inputs()).backward()"}
    body = {"id": "MEM-91", "class": "memory", "entry": {**entry, "grad": True}}
    # Kept are the gradients of the weight and the bias.
    body["expected"] = {"live_bytes_at_end": 16640, "live_bytes_at_end_allocator_level": 16640}
    (tmp_path / "expected.json").write_text(json.dumps(body))
    assert run_case(tmp_path).differences == ()
