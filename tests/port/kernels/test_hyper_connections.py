"""Hyper-connections: golden vectors, loops, and numbers worked by hand."""

import math

import pytest
import torch

from port.kernels.hyper_connections import collapse_streams, combine_streams, mixing_values, sinkhorn, split_mixing
from tests.port.golden import units


def test_golden_mixes_are_split_alike():
    given = units()
    pre, post, comb = split_mixing(
        given["hc.mixes"], given["hc.scale"], given["hc.base"], streams=4, eps=1e-6, iterations=20
    )
    for name, found in (("pre", pre), ("post", post), ("comb", comb)):
        torch.testing.assert_close(found, given[f"hc.{name}"], rtol=1e-6, atol=1e-7)


def slow_sinkhorn(logits, eps, iterations):
    """One matrix, as nested lists: softmax over k, then columns, then rows and columns in turn."""
    size = range(len(logits))
    matrix = []
    for row in logits:
        weights = [math.exp(value - max(row)) for value in row]
        matrix.append([weight / sum(weights) + eps for weight in weights])
    for iteration in range(iterations):
        if iteration > 0:
            matrix = [[value / (sum(row) + eps) for value in row] for row in matrix]
        columns = [sum(matrix[j][k] for j in size) + eps for k in size]
        matrix = [[matrix[j][k] / columns[k] for k in size] for j in size]
    return matrix


@pytest.mark.parametrize("iterations", [1, 2, 20])
def test_sinkhorn_agrees_with_nested_loops(iterations):
    logits = torch.randn(6, 4, 4, generator=torch.Generator().manual_seed(0)) * 3
    found = sinkhorn(logits, eps=1e-3, iterations=iterations)
    for t in range(6):
        expected = torch.tensor(slow_sinkhorn(logits[t].tolist(), 1e-3, iterations))
        torch.testing.assert_close(found[t], expected, rtol=1e-5, atol=1e-6)


def test_sinkhorn_worked_by_hand():
    # softmax rows (3/4, 1/4) and (1/2, 1/2); columns sum to 5/4 and 3/4
    logits = torch.tensor([[[math.log(3.0), 0.0], [0.0, 0.0]]])
    found = sinkhorn(logits, eps=0.0, iterations=1)
    torch.testing.assert_close(found, torch.tensor([[[3 / 5, 1 / 3], [2 / 5, 2 / 3]]]))


def test_sinkhorn_ends_on_columns():
    matrix = sinkhorn(torch.randn(8, 4, 4, generator=torch.Generator().manual_seed(1)) * 4, eps=0.0, iterations=2)
    torch.testing.assert_close(matrix.sum(dim=1), torch.ones(8, 4))
    assert (matrix.sum(dim=2) - 1).abs().max() > 1e-3, "rows are not there yet after two passes"


def test_mixing_values_share_one_statistic():
    generator = torch.Generator().manual_seed(2)
    stream, weight = torch.randn(3, 2, 4, generator=generator), torch.randn(8, 8, generator=generator)
    found = mixing_values(stream, weight, eps=0.25)
    for t in range(3):
        flat = stream[t].flatten().tolist()
        root = math.sqrt(sum(value * value for value in flat) / 8 + 0.25)
        for x in range(8):
            expected = sum(w * value for w, value in zip(weight[x].tolist(), flat, strict=True)) / root
            assert found[t, x].item() == pytest.approx(expected, rel=1e-5, abs=1e-6)


def test_tf32_drops_thirteen_bits_of_the_matrix_and_rounds_halves_to_even():
    one_ulp = 2.0**-10
    weight = torch.tensor([[1 + one_ulp / 2, 1 + 3 * one_ulp / 2, 1 + one_ulp * 0.51, 1 + one_ulp]])
    stream = torch.eye(4).unsqueeze(2)  # row t picks element t; its root mean square is 1/2
    found = mixing_values(stream, weight, eps=0.0, tf32=True)[:, 0] / 2
    torch.testing.assert_close(found, torch.tensor([1.0, 1 + 2 * one_ulp, 1 + one_ulp, 1 + one_ulp]), rtol=1e-7, atol=0)
    exact = mixing_values(stream, weight, eps=0.0)[:, 0] / 2
    torch.testing.assert_close(exact, weight[0], rtol=1e-7, atol=0)


def test_split_worked_by_hand():
    mix = torch.tensor([[0.0, 1.0, 2.0, 3.0, 0.0, 0.0, 0.0, 0.0]])
    base = torch.tensor([0.0, -1.0, -4.0, 0.0, math.log(3.0), 0.0, 0.0, 0.0])
    pre, post, comb = split_mixing(mix, torch.tensor([1.0, 2.0, 5.0]), base, streams=2, eps=0.25, iterations=1)
    torch.testing.assert_close(pre, torch.tensor([[0.75, 0.75]]))
    torch.testing.assert_close(post, 2 * torch.sigmoid(torch.tensor([[0.0, 6.0]])))
    torch.testing.assert_close(
        comb, sinkhorn(torch.tensor([[[math.log(3.0), 0.0], [0.0, 0.0]]]), eps=0.25, iterations=1)
    )


def test_collapse_worked_by_hand():
    stream = torch.tensor([[[1.0, 2.0], [10.0, 20.0]]])
    assert collapse_streams(stream, torch.tensor([[2.0, 0.5]])).tolist() == [[7.0, 14.0]]


def test_combine_worked_by_hand():
    stream = torch.tensor([[[1.0], [10.0]]])
    comb = torch.tensor([[[1.0, 2.0], [3.0, 4.0]]])  # comb[j][k]: from j to k
    found = combine_streams(torch.tensor([[100.0]]), stream, torch.tensor([[0.5, 2.0]]), comb)
    # stream 0: 0.5 * 100 + 1 * 1 + 3 * 10; stream 1: 2 * 100 + 2 * 1 + 4 * 10
    assert found.tolist() == [[[81.0], [242.0]]]


def test_combine_agrees_with_a_loop():
    generator = torch.Generator().manual_seed(3)
    stream, output = torch.randn(3, 4, 5, generator=generator), torch.randn(3, 5, generator=generator)
    post, comb = torch.rand(3, 4, generator=generator), torch.rand(3, 4, 4, generator=generator)
    found = combine_streams(output, stream, post, comb)
    for t in range(3):
        for k in range(4):
            for d in range(5):
                kept = sum(comb[t, j, k].item() * stream[t, j, d].item() for j in range(4))
                expected = post[t, k].item() * output[t, d].item() + kept
                assert found[t, k, d].item() == pytest.approx(expected, rel=1e-5, abs=1e-6)
