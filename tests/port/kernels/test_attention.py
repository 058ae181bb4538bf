"""Sparse attention against a loop over queries, heads and rows, and numbers worked by hand."""

import math

import pytest
import torch

from port.kernels import attention
from port.kernels.attention import KeySource, sparse_attention

PLAIN = {"operands": torch.float32, "probability_dtype": torch.float32}


def slow_attention(query, sources, sink, scale):
    """Every query and head by itself; rows in lists."""
    out = torch.zeros_like(query)
    for t in range(query.shape[0]):
        rows = [source.rows_SD[i].tolist() for source in sources for i in source.index_TJ[t].tolist() if i >= 0]
        for head in range(query.shape[1]):
            if not rows:
                continue
            scores = [scale * sum(q * k for q, k in zip(query[t, head].tolist(), row, strict=True)) for row in rows]
            weights = [math.exp(score) for score in scores]
            total = sum(weights) + math.exp(sink[head].item())
            for d in range(query.shape[2]):
                out[t, head, d] = sum(w * row[d] for w, row in zip(weights, rows, strict=True)) / total
    return out


def example(seed=0):
    generator = torch.Generator().manual_seed(seed)
    query, sink = torch.randn(5, 3, 4, generator=generator), torch.randn(3, generator=generator)
    window, compressed = torch.randn(6, 4, generator=generator), torch.randn(7, 4, generator=generator)
    window_index = torch.tensor([[0, -1, -1], [0, 1, -1], [0, 1, 2], [1, 2, 3], [-1, -1, -1]], dtype=torch.int32)
    compressed_index = torch.tensor([[-1, -1], [4, -1], [6, 2], [3, 3], [-1, -1]], dtype=torch.int32)
    return query, (KeySource(window, window_index), KeySource(compressed, compressed_index)), sink


def test_agrees_with_a_loop():
    query, sources, sink = example()
    found = sparse_attention(query, sources, sink, scale=0.5, **PLAIN)
    torch.testing.assert_close(found, slow_attention(query, sources, sink, 0.5), rtol=1e-5, atol=1e-6)


def test_one_key_and_a_sink_of_zero_share_equally_when_the_score_is_zero():
    source = KeySource(torch.tensor([[0.0, 8.0]]), torch.tensor([[0]], dtype=torch.int32))
    found = sparse_attention(torch.tensor([[[1.0, 0.0]]]), (source,), torch.zeros(1), scale=1.0, **PLAIN)
    assert found.tolist() == [[[0.0, 4.0]]]


def test_a_row_listed_twice_counts_twice():
    rows = torch.tensor([[0.0, 9.0]])
    once = KeySource(rows, torch.tensor([[0, -1]], dtype=torch.int32))
    twice = KeySource(rows, torch.tensor([[0, 0]], dtype=torch.int32))
    query, sink = torch.tensor([[[1.0, 0.0]]]), torch.zeros(1)
    assert sparse_attention(query, (once,), sink, scale=1.0, **PLAIN)[0, 0, 1] == 4.5
    assert sparse_attention(query, (twice,), sink, scale=1.0, **PLAIN)[0, 0, 1] == 6.0
    assert sparse_attention(query, (once, once), sink, scale=1.0, **PLAIN)[0, 0, 1] == 6.0


def test_a_query_without_any_row_gives_zeros():
    query, sources, sink = example()
    found = sparse_attention(query, sources, torch.full_like(sink, -1000.0), scale=0.5, **PLAIN)
    assert found[4].tolist() == torch.zeros(3, 4).tolist()


def test_what_a_missing_row_would_hold_does_not_matter():
    query, sources, sink = example()
    expected = sparse_attention(query, sources, sink, scale=0.5, **PLAIN)
    padded = tuple(
        KeySource(source.rows_SD, torch.nn.functional.pad(source.index_TJ, (0, 3), value=-1)) for source in sources
    )
    torch.testing.assert_close(sparse_attention(query, padded, sink, scale=0.5, **PLAIN), expected)


@pytest.mark.parametrize("factor", [1.0, 100.0, 10000.0])
def test_large_scores_stay_finite(factor):
    query, sources, sink = example()
    assert bool(sparse_attention(query * factor, sources, sink * factor, scale=1.0, **PLAIN).isfinite().all())


def test_pieces_have_the_bits_of_the_whole(monkeypatch):
    query, sources, sink = example()
    whole = sparse_attention(query, sources, sink, scale=0.5, **PLAIN)
    monkeypatch.setattr(attention, "MAX_GATHERED_ELEMENTS", 45)  # two rows of five keys of four
    assert torch.equal(sparse_attention(query, sources, sink, scale=0.5, **PLAIN), whole)


def test_weights_are_rounded_relative_to_the_largest_and_the_denominator_is_not():
    source = KeySource(torch.tensor([[0.0, 1.0], [1.0, 1.0]]), torch.tensor([[0, 1]], dtype=torch.int32))
    query, sink = torch.tensor([[[-0.3, 0.0]]]), torch.tensor([-1000.0])
    found = sparse_attention(
        query, (source,), sink, scale=1.0, operands=torch.float32, probability_dtype=torch.bfloat16
    )
    low = math.exp(-0.3)
    rounded = torch.tensor(low).to(torch.bfloat16).item()
    assert found[0, 0].tolist() == pytest.approx([rounded / (1 + low), (1 + rounded) / (1 + low)], rel=1e-6)
    assert abs(rounded - low) > 1e-4
