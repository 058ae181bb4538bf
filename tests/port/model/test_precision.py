"""Every choice of a numeric profile reaches the numbers, at the place its description names."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from port.model.taps import RecordingTap
from port.numerics import NumericProfile
from tests.port.golden import prefill_logits
from tests.port.tiny import random_ids, tiny_model

R = NumericProfile.named("R")
IDS = random_ids(60)

FIRST_CHANGED = {
    "activation": ("float32", "embed.out"),
    "act_quant": ("none", "layers.0.attn.q"),
    "fp8_max": (240.0, "layers.0.engram.gate"),
    "kv_quant": ("none", "layers.0.attn.kv"),
    "attention_probabilities": ("float32", "layers.0.attn.heads"),
    "wo_a_input": ("fp8", "layers.0.attn.out"),
    "ffn_product": ("float32", "layers.0.ffn.out"),
    "index_score": ("sum_only", "layers.1.attn.index_score"),
    "index_weights": ("unscaled", "layers.1.attn.index_weights"),
    "fp4_kv_scale": ("reciprocal", "layers.1.attn.compressed"),
    "hc_mix": ("tf32", "layers.0.attn.stream"),
}
"""The first intermediate that a choice may change, by field: another value than profile R's, and where it acts."""

SAME_BITS = {"engram_rows": "stored", "lm_head": "bfloat16", "moe_sum": "shared_then_slots"}
"""Choices that leave the bits alone here: table rows are FP8 already, products of bfloat16 numbers are exact in
float32, and so is a sum of few bfloat16 numbers of a like size. `test_experts.py` sees the order of the sum."""


def run(profile: NumericProfile) -> dict[str, torch.Tensor]:
    """Return every intermediate of a prefill, in the order they were made."""
    tap = RecordingTap()
    prefill_logits(tiny_model(profile), IDS, tap)
    return tap.tensors


@pytest.fixture(scope="module")
def reference():
    return run(R)


def test_every_choice_is_covered():
    elsewhere = {"gemm_operands", "weight_fp8_max"}  # how weights are loaded: tests/port/checkpoint/test_fp8_range.py
    assert {field.name for field in dataclasses.fields(NumericProfile)} == {*FIRST_CHANGED, *SAME_BITS, *elsewhere}


@pytest.mark.parametrize("field", FIRST_CHANGED)
def test_a_choice_acts_where_it_says(field, reference):
    value, place = FIRST_CHANGED[field]
    found = run(dataclasses.replace(R, **{field: value}))
    different = [
        name
        for name, tensor in reference.items()
        if tensor.dtype != found[name].dtype or not torch.equal(tensor, found[name])
    ]
    assert different[0] == place


@pytest.mark.parametrize("field", SAME_BITS)
def test_some_choices_keep_the_bits(field, reference):
    found = run(dataclasses.replace(R, **{field: SAME_BITS[field]}))
    assert all(torch.equal(tensor, found[name]) for name, tensor in reference.items())


def test_bfloat16_operands_stay_within_a_rounding_of_float32_ones(reference):
    found = run(dataclasses.replace(R, gemm_operands="bfloat16"))
    for name in ("layers.0.attn.q", "layers.0.attn.kv"):
        torch.testing.assert_close(found[name].float(), reference[name].float(), rtol=2**-6, atol=2**-6)
