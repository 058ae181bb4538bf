"""Pooling of a group of tokens against a loop, and numbers worked by hand."""

import math

import torch

from port.kernels.compress import pool_groups


def test_worked_by_hand():
    gate = torch.tensor([[[0.0, math.log(3.0)], [0.0, 0.0]]])
    value = torch.tensor([[[2.0, 4.0], [6.0, 8.0]]])
    # channel 0: equal gates, the mean; channel 1: weights 3/4 and 1/4
    torch.testing.assert_close(pool_groups(gate, value), torch.tensor([[4.0, 5.0]]))


def test_each_channel_has_its_own_weights():
    generator = torch.Generator().manual_seed(0)
    gate, value = (torch.randn(3, 4, 5, generator=generator) for _ in range(2))
    found = pool_groups(gate, value)
    for c in range(3):
        for d in range(5):
            weights = [math.exp(gate[c, j, d].item()) for j in range(4)]
            expected = sum(w * value[c, j, d].item() for j, w in enumerate(weights)) / sum(weights)
            torch.testing.assert_close(found[c, d].item(), expected, rtol=1e-5, atol=1e-6)


def test_one_member_is_itself():
    value = torch.tensor([[[1.5, -2.0]]])
    assert torch.equal(pool_groups(torch.full_like(value, -1000.0), value), value[:, 0])
