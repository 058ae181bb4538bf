"""The clamped activation, worked by hand: the gate is clamped from above only, the other half on both sides."""

import math

import torch

from port.kernels.swiglu import clamped_swiglu


def silu(x):
    return x / (1 + math.exp(-x))


def test_worked_by_hand():
    gate = torch.tensor([[1.0, 5.0, -5.0, 1.0, 1.0]])
    up = torch.tensor([[1.0, 1.0, 1.0, 5.0, -5.0]])
    found = clamped_swiglu(gate, up, None, limit=2.0)
    expected = [silu(1.0), silu(2.0), silu(-5.0), silu(1.0) * 2, silu(1.0) * -2]
    torch.testing.assert_close(found, torch.tensor([expected]))


def test_the_routing_weight_is_a_factor_of_the_whole_row():
    gate, up = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0))
    weight = torch.tensor([[0.5], [2.0], [0.0]])
    assert torch.equal(
        clamped_swiglu(gate, up, weight, limit=10.0), clamped_swiglu(gate, up, None, limit=10.0) * weight
    )


def test_bfloat16_comes_in_and_float32_goes_out():
    gate = torch.tensor([[1.0]], dtype=torch.bfloat16)
    found = clamped_swiglu(gate, gate, None, limit=10.0)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.item(), silu(1.0))
