"""A model passes against its golden data, and any change to it is seen."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from port.errors import PortError
from port.numerics import NumericProfile
from port.runtime.text_model import open_text_model
from port.verify import verify
from port.verify_rules import flips, row_errors
from tests.port.golden import CHECKPOINT_A, GOLDEN_A, fresh_model_a, model_a
from tests.shared import shared_path

TRACED_PROMPT = ("window_plus1",)


def failed(results):
    return [f"{result.prompt}: {result.check}" for result in results if not result.passed]


def test_committed_golden_data_passes_every_check_in_fp32():
    results = list(verify(model_a(), GOLDEN_A))
    assert failed(results) == []
    assert {result.prompt for result in results} == set(json.loads((GOLDEN_A / "golden.json").read_text())["prompts"])
    assert {result.check for result in results} == {
        "prefill logits",
        "decode logits",
        "greedy tokens",
        "prefill router ids",
        "decode router ids",
        *(f"{pass_} selection L{layer}" for pass_ in ("prefill", "decode") for layer in (2, 4, 5)),
        "candidate blocks",
        "engram alone",
        "attn alone",
        "ffn alone",
    }


def test_committed_golden_data_passes_every_check_in_bf16():
    results = list(verify(CHECKPOINT_A, GOLDEN_A, mode="bf16"))
    assert failed(results) == []
    assert {result.prompt for result in results} == {"window_plus1"}, "the prompts golden.json lists for this mode"
    assert len(results) == 5


def test_committed_golden_data_is_what_its_script_makes(tmp_path):
    golden = shared_path("golden", "A").parent
    spec = importlib.util.spec_from_file_location("make_golden_A", GOLDEN_A.parent / "make_golden_A.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    script.make(golden, tmp_path)
    made = {path.relative_to(tmp_path): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    kept = {path.relative_to(GOLDEN_A): path.read_bytes() for path in GOLDEN_A.rglob("*") if path.is_file()}
    del kept[(GOLDEN_A / "ORIGIN.md").relative_to(GOLDEN_A)]
    assert kept == made


@pytest.mark.parametrize(
    ("config", "mode"),
    [
        ("A", "fp32"),
        ("A", "bf16"),
        ("B", "fp32"),
        ("B", "bf16"),
        pytest.param("A", "fp32kv", marks=pytest.mark.slow),
        pytest.param("A", "fp32q", marks=pytest.mark.slow),
        pytest.param("B", "fp32kv", marks=pytest.mark.slow),
        pytest.param("B", "fp32q", marks=pytest.mark.slow),
    ],
)
def test_full_golden_data_passes_every_check(config, mode):
    folder = shared_path("golden", config)
    results = list(verify(folder / "checkpoint", folder, mode=mode))
    assert failed(results) == []
    described = json.loads((folder / "golden.json").read_text())
    judged = {result.prompt for result in results}
    # In bf16 the argmax of very short prompts is not judged, and only two prompts have a trace.
    expected = {name for name, body in described["prompts"].items() if mode != "bf16" or body["length"] >= 16}
    assert judged == expected


def double(parameter):
    """Change one weight: for scales one step of the exponent, else twice the number."""
    with torch.no_grad():
        if parameter.dtype in (torch.float8_e8m0fnu, torch.int8):
            byte = parameter.view(torch.uint8)
            byte[0] = byte[0] + 1 if parameter.dtype == torch.float8_e8m0fnu else byte[0] ^ 0x77
        else:
            parameter.copy_((parameter.float() * 2).to(parameter.dtype))


@pytest.mark.parametrize(
    "name",
    [
        "layers.0.attn.wq_a.scale",
        "layers.1.engram.embed.scale",
        "layers.2.attn.compressor.wgate.weight",
        "layers.3.attn.attn_sink",
        "layers.4.ffn.gate.bias",
        "layers.5.attn.indexer.weights_proj.weight",
        "layers.5.ffn.experts.6.w2.weight",
        "head.weight",
    ],
)
def test_a_changed_weight_fails(name):
    text_model = fresh_model_a(weights="stored")
    if name.endswith("weights_proj.weight"):
        with torch.no_grad():  # doubling every weight keeps the order of all scores
            text_model.model.get_parameter(name)[0].neg_().mul_(4)
    else:
        double(text_model.model.get_parameter(name))
    results = list(verify(text_model, GOLDEN_A, prompts=TRACED_PROMPT))
    assert failed(results)


def test_one_changed_byte_in_a_file_fails(tmp_path):
    shutil.copytree(CHECKPOINT_A, tmp_path, dirs_exist_ok=True)
    shard = tmp_path / "model-00001-of-00002.safetensors"
    stored = bytearray(shard.read_bytes())
    begin = 8 + int.from_bytes(stored[:8], "little")
    header = json.loads(stored[8:begin])
    name = next(name for name in header if name.endswith("attn.wq_b.scale"))
    stored[begin + header[name]["data_offsets"][0]] += 1
    shard.write_bytes(stored)
    assert failed(verify(tmp_path, GOLDEN_A, prompts=TRACED_PROMPT))


def test_a_fault_in_bf16_fails():
    text_model = fresh_model_a("bf16", weights="stored")
    double(text_model.model.get_parameter("layers.3.ffn.shared_experts.w2.scale"))
    assert "window_plus1: ffn alone" in failed(verify(text_model, GOLDEN_A, mode="bf16"))


@pytest.mark.parametrize(
    ("change", "check"),
    [
        ({"act_quant": "fp8"}, "prefill logits"),
        ({"kv_quant": "stored"}, "prefill logits"),
        ({"activation": "bfloat16"}, "ffn alone"),
    ],
)
def test_a_model_with_other_roundings_fails_in_fp32(change, check):
    profile = dataclasses.replace(NumericProfile.named("fp32"), **change)
    text_model = open_text_model(CHECKPOINT_A, profile=profile)
    assert f"window_plus1: {check}" in failed(verify(text_model, GOLDEN_A, prompts=TRACED_PROMPT))


def test_progress_names_every_prompt_as_it_is_done():
    seen = []
    list(verify(model_a(), GOLDEN_A, prompts=("len1", "len3"), progress=lambda *done: seen.append(done)))
    assert seen == [(1, 2, "len1"), (2, 2, "len3")]


def test_wrong_requests_are_explained(tmp_path):
    with pytest.raises(PortError, match="expected a mode among fp32, fp32kv, fp32q, bf16; found 'fp64'"):
        list(verify(model_a(), GOLDEN_A, mode="fp64"))
    with pytest.raises(PortError, match=r"expected prompts among len1, .*; found len9"):
        list(verify(model_a(), GOLDEN_A, prompts=("len9",)))
    with pytest.raises(PortError, match=r"expected golden data at .*fp32q\.safetensors; there is no such file"):
        list(verify(model_a(), GOLDEN_A, mode="fp32q"))
    with pytest.raises(PortError, match=r"expected golden data in .*cannot read golden\.json"):
        list(verify(model_a(), tmp_path))
    for text in ("[]", "{", '{"prompts": {"p": {}}}', '{"prompts": {}, "modes": []}'):
        (tmp_path / "golden.json").write_text(text)
        with pytest.raises(PortError, match="expected prompts with token_ids"):
            list(verify(model_a(), tmp_path))
    shutil.copy(GOLDEN_A / "fp32.safetensors", tmp_path)
    (tmp_path / "golden.json").write_text('{"prompts": {"stranger": {"token_ids": [1]}}}')
    with pytest.raises(PortError, match=r"expected `stranger\.logits` as golden\.json says; it is missing"):
        list(verify(model_a(), tmp_path))


def test_golden_data_of_another_model_is_refused(tmp_path):
    tensors = load_file(GOLDEN_A / "fp32.safetensors")
    one = {key: tensor for key, tensor in tensors.items() if key.startswith("len1.")}
    logits, ids = one["len1.logits"], one["len1.router_ids"]
    (tmp_path / "golden.json").write_text('{"prompts": {"len1": {"token_ids": [99999]}}}')
    save_file({**one, "len1.logits": logits[:, :-3].contiguous(), "len1.router_ids": ids[:-1].contiguous()},
              tmp_path / "fp32.safetensors")  # fmt: skip
    with pytest.raises(PortError) as refused:
        list(verify(model_a(), tmp_path))
    text, vocab = str(refused.value), logits.shape[-1]
    assert f"len1: expected logits [1, {vocab}], found [1, {vocab - 3}]" in text
    assert f"token ids from 0 to {vocab - 1}, found 99999 to 99999" in text
    assert f"router ids of {len(ids)} layers, found {len(ids) - 1}" in text
    assert "Is this the golden data of this checkpoint?" in text


def test_a_row_that_is_not_finite_is_infinitely_wrong():
    expected = torch.tensor([[3.0, 4.0], [0.0, 0.0], [1.0, 0.0]])
    found = torch.tensor([[3.0, 4.5], [0.0, 0.5], [torch.nan, 0.0]])
    assert row_errors(expected, found).tolist() == pytest.approx([0.1, 0.5, torch.inf])


def test_ids_are_compared_as_sets_and_close_calls_are_counted():
    expected = torch.tensor([[1, 2, -1], [3, 4, 5]])
    assert flips("p", "ids", expected, torch.tensor([[2, -1, 1], [5, 3, 4]]), None).passed
    assert flips("p", "ids", expected, torch.tensor([[2, 1, -1, -1], [5, 3, 4, -1]]), None).passed
    wrong = torch.tensor([[1, 2, -1], [3, 4, 6]])
    assert not flips("p", "ids", expected, wrong, None).passed
    close = flips("p", "ids", expected, wrong, torch.tensor([1.0, 1e-5]))
    assert close.passed
    assert close.note == "1 rows too close to judge, 1 of them differ"
    assert not flips("p", "ids", expected, wrong, torch.tensor([1e-5, 1.0])).passed
    assert "expected ids [2, 3], found [1, 3]" in flips("p", "ids", expected, wrong[:1], None).note
