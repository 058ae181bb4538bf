"""The Engram gate against a loop, and what its statistics run over."""

import math

import pytest
import torch

from port.kernels.engram_gate import add_gated, engram_gate


def slow_gate(stream, key, query_weight, key_weight, eps):
    """One gate, from lists of one stream's numbers."""
    width = len(stream)
    dot = sum(x * qw * kw * k for x, k, qw, kw in zip(stream, key, query_weight, key_weight, strict=True))
    for row in (stream, key):
        dot /= math.sqrt(sum(value * value for value in row) / width + eps)
    dot /= math.sqrt(width)
    return 1 / (1 + math.exp(-math.copysign(math.sqrt(max(abs(dot), 1e-6)), dot)))


def test_agrees_with_a_loop_over_tokens_and_streams():
    generator = torch.Generator().manual_seed(0)
    stream, key = (torch.randn(5, 3, 8, generator=generator) for _ in range(2))
    query_weight, key_weight = (torch.randn(3, 8, generator=generator) for _ in range(2))
    found = engram_gate(stream, key, query_weight, key_weight, eps=0.01)
    for t in range(5):
        for m in range(3):
            rows = [tensor.tolist() for tensor in (stream[t, m], key[t, m], query_weight[m], key_weight[m])]
            assert found[t, m].item() == pytest.approx(slow_gate(*rows, 0.01), rel=1e-5)


def test_worked_by_hand():
    # equal rows with unit weights: dot = sqrt(D) after normalisation, D ** 0.25 after the root
    stream = torch.tensor([[[2.0, -2.0, 2.0, 2.0]]])
    ones = torch.ones(1, 4)
    expected = torch.sigmoid(torch.tensor(4.0**0.25))
    torch.testing.assert_close(engram_gate(stream, stream, ones, ones, eps=0.0)[0, 0], expected)
    torch.testing.assert_close(engram_gate(stream, -stream, ones, ones, eps=0.0)[0, 0], 1 - expected)


def test_a_product_of_zero_opens_the_gate_by_the_floor():
    stream, key = torch.tensor([[[1.0, 1.0]]]), torch.tensor([[[1.0, -1.0]]])
    gate = engram_gate(stream, key, torch.ones(1, 2), torch.ones(1, 2), eps=0.0)
    torch.testing.assert_close(gate[0, 0], torch.sigmoid(torch.tensor(1e-3)))


def test_the_gated_value_goes_to_every_stream():
    stream = torch.tensor([[[1.0, 2.0], [3.0, 4.0]]])
    found = add_gated(stream, torch.tensor([[0.5, 2.0]]), torch.tensor([[10.0, 20.0]]))
    assert found.tolist() == [[[6.0, 12.0], [23.0, 44.0]]]
