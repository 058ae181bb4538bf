"""Filtering and draws against loops over sorted probabilities and whole numbers."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from port import tilelang_ops as ops
from port.kernels.philox import draw_words
from tests.port.tilelang_ops.numbers import empty_ints, f32, ints

V = 70


def survivors(logits: list[float], temperature: float, top_p: float, top_k: int) -> dict[int, float]:
    """Log-probabilities by id, from sorted probabilities in float64."""
    scaled = [x / temperature for x in logits]
    top = max(scaled)
    mass = [math.exp(x - top) for x in scaled]
    total = sum(mass)
    order = sorted(range(len(logits)), key=lambda c: (-mass[c], c))
    kept, before = [], 0.0
    for column in order:
        if before <= top_p:
            kept.append(column)
        before += mass[column] / total
    if top_k >= 0:
        kept = kept[:top_k]
    left = sum(mass[c] for c in kept)
    return {c: scaled[c] - top - math.log(left) for c in kept}


def drawn(probabilities: Tensor, seed: int, position: int) -> int:
    """The two-level draw in Python's integers, the random number scaled to the total."""
    weights = [int(float(p) * 2**31) for p in probabilities]
    slots = min(max(64, 1 << (len(weights) - 1).bit_length()), 2048) if len(weights) < 8192 else 4096
    low, high = (
        int(w) % 2**32 for w in draw_words(torch.tensor([seed], dtype=torch.uint64), ints([position]), case=0)[0, :2]
    )
    target = (high << 32 | low) * sum(weights) >> 64
    for slot in range(slots):
        share = sum(weights[slot::slots])
        if target < share:
            for column in range(slot, len(weights), slots):
                if target < weights[column]:
                    return column
                target -= weights[column]
        target -= share
    raise AssertionError("a target below the total lies in a slot")


ROWS = [(1.0, 1.0, -1), (0.7, 0.8, -1), (1.3, 1.0, 5), (0.5, 0.6, 3), (1e-5, 1.0, -1), (2.0, 0.95, 1)]


def test_rows_are_filtered_and_drawn_as_the_contract_says() -> None:
    n = len(ROWS)
    logits = f32(n, V, seed=6) * 2
    before = logits.clone()
    temperature, top_p = (torch.tensor([row[i] for row in ROWS]) for i in range(2))
    positions, seeds = ints(range(100, 100 + n)), torch.tensor([2**64 - 1 - i for i in range(n)], dtype=torch.uint64)
    logprobs, candidate = torch.zeros(n, V), empty_ints(n)
    found = ops.fused_sample_tl(V, True, False)(
        logits, temperature, top_p, ints([row[2] for row in ROWS]), positions, seeds, None, logprobs, candidate
    )
    assert found == (logprobs, candidate)
    assert torch.equal(logits, before)
    for row in range(n):
        wanted = survivors(logits[row].tolist(), *ROWS[row])
        kept = {c for c in range(V) if logprobs[row, c] > -math.inf}
        assert {c for c in wanted if wanted[c] > -20} <= kept <= set(wanted)
        assert all(abs(float(logprobs[row, c]) - wanted[c]) < 1e-4 * (1 + abs(wanted[c])) for c in kept)
        assert candidate[row] == drawn(logprobs[row].exp(), seeds.tolist()[row], 100 + row)


def test_a_greedy_row_takes_its_best_token() -> None:
    logits, logprobs, candidate = f32(1, V), torch.zeros(1, V), empty_ints(1)
    one = torch.ones(1)
    seeds = torch.zeros(1, dtype=torch.uint64)
    ops.fused_sample_tl(V, True, False)(
        logits, one * 1e-5, one, ints([-1]), ints([3]), seeds, None, logprobs, candidate
    )
    assert candidate.item() == logits.argmax().item()


def test_without_a_draw_only_the_log_probabilities_are_written() -> None:
    logits, logprobs, one = f32(1, V), torch.zeros(1, V), torch.ones(1)
    seeds = torch.zeros(1, dtype=torch.uint64)
    kernel = ops.fused_sample_tl(V, False, False)
    assert kernel(logits, one, one, ints([-1]), ints([3]), seeds, None, logprobs) == (logprobs,)
    assert torch.allclose(logprobs, logits.log_softmax(-1), atol=1e-6)


def test_draws_from_probabilities_are_the_two_level_draw() -> None:
    probabilities = f32(30, V).softmax(-1)
    seeds = torch.arange(30, dtype=torch.int64) + 2**40
    ids = ops.random_sampling_tl(V, False)(probabilities, seeds, ints(range(30)), empty_ints(30))
    assert ids.tolist() == [drawn(probabilities[row], 2**40 + row, row) for row in range(30)]


def test_less_likely_tokens_are_summed_with_equal_ones_up_to_the_column() -> None:
    probabilities = [0.1, 0.25, 0.1, 0.3, 0.25]
    logprobs = torch.tensor([probabilities] * 6).log()
    ids = [0, 1, 2, 3, 4, -1]
    out = ops.sum_smaller_probs_tl(5)(logprobs, ints(ids), torch.empty(6))
    for row, token in enumerate(ids):
        chosen = probabilities[token]
        wanted = sum(p for c, p in enumerate(probabilities) if p < chosen or (p == chosen and c <= token))
        assert out[row] == pytest.approx(wanted if token >= 0 else 0.0, abs=1e-6)


def test_streams_of_drafts_are_refused() -> None:
    with pytest.raises(NotImplementedError, match=r"do_reject: expected False.*DEEPINFER_USE_NEXTN_DECODE=0"):
        ops.fused_sample_tl(V, True, True)
    with pytest.raises(NotImplementedError, match=r"is_nextn: expected False.*DEEPINFER_USE_NEXTN_DECODE=0"):
        ops.random_sampling_tl(V, True)
