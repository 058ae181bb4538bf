"""The experts against a loop over tokens, in both orders of the sum, and with padding rows."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from port.kernels.linear import linear
from port.kernels.routing import route
from port.model.experts import _rows_by_expert
from port.model.taps import RecordingTap, identity_tap
from port.numerics import NumericProfile
from tests.port.tiny import BASE, tiny_model

FLOAT32 = {"operands": torch.float32, "out_dtype": torch.float32}


@pytest.fixture(scope="module")
def y():
    return torch.randn(9, BASE.hidden_size, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("moe", ["hit", "all"])
@pytest.mark.parametrize("moe_sum", ["expert_order", "shared_then_slots"])
def test_tokens_go_through_their_experts_one_by_one(moe_sum, moe, y):
    text_model = tiny_model(dataclasses.replace(NumericProfile.named("fp32q"), moe_sum=moe_sum), moe=moe)
    ffn, precision = text_model.model.layers[2].ffn, text_model.model.precision
    with torch.inference_mode():
        found = ffn(y, None, identity_tap)
        ids, weights = route(
            linear(y, ffn.gate.weight, **FLOAT32), ffn.gate.bias, topk=BASE.num_experts_per_tok, scaling=2.5
        )
        for token in range(len(y)):
            row = precision.linear_input(y[token : token + 1])
            shared = ffn.shared_experts(row).float()
            chosen = list(zip(ids[token].tolist(), weights[token].tolist(), strict=True))
            if moe_sum == "expert_order":
                total = torch.zeros_like(shared)
                for expert, weight in sorted(chosen):
                    total += ffn.experts[expert](row, torch.tensor([[weight]])).float()
                total += shared
            else:
                total = shared
                for expert, weight in chosen:
                    total = total + ffn.experts[expert](row, torch.tensor([[weight]])).float()
            assert torch.equal(found[token : token + 1], total)


def test_the_two_orders_of_the_sum_differ_in_float32(y):
    outputs = []
    for moe_sum in ("expert_order", "shared_then_slots"):
        text_model = tiny_model(dataclasses.replace(NumericProfile.named("fp32q"), moe_sum=moe_sum))
        with torch.inference_mode():
            outputs.append(text_model.model.layers[2].ffn(y, None, identity_tap))
    assert not torch.equal(*outputs)
    torch.testing.assert_close(*outputs)


@pytest.mark.parametrize("moe", ["hit", "all"])
def test_padding_rows_choose_no_expert_and_real_rows_do_not_notice(moe, y):
    ffn = tiny_model(moe=moe).model.layers[2].ffn
    valid = torch.arange(9) < 5
    tap = RecordingTap()
    with torch.inference_mode():
        found = ffn(y, valid, tap)
        assert torch.equal(found[:5], ffn(y, None, identity_tap)[:5])
        assert torch.equal(found[5:], ffn.shared_experts(y)[5:])
    assert bool((tap.tensors["layers.2.ffn.router_ids"][5:] == -1).all())
    assert tap.tensors["layers.2.ffn.router_weights"][5:].abs().sum() == 0


def test_the_bias_for_image_tokens_is_not_used(y):
    ffn = tiny_model().model.layers[2].ffn
    assert ffn.gate.bias_vl.abs().max() > 10
    with torch.inference_mode():
        found = ffn(y, None, identity_tap)
        kept, ffn.gate.bias_vl = ffn.gate.bias_vl, torch.nn.Parameter(torch.zeros(10), requires_grad=False)
        assert torch.equal(ffn(y, None, identity_tap), found)
    assert kept is not ffn.gate.bias_vl


def test_rows_are_grouped_by_expert_in_order():
    ids = torch.tensor([[3, 0], [-1, -1], [0, 3], [1, 0]])
    found = [(expert, rows.tolist(), slots.tolist()) for expert, rows, slots in _rows_by_expert(ids)]
    assert found == [(0, [0, 2, 3], [1, 0, 1]), (1, [3], [0]), (3, [0, 2], [0, 1])]
