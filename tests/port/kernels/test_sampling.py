"""Filtering, drawing, verifying: against sorted references, and against the distributions they promise.

The seeds are fixed, so a distribution test passes or fails for good; its limit is the 99.9 % point of chi-square: a
right sampler would fail one set of seeds in a thousand.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from port.kernels.sampling import (
    GREEDY_TEMPERATURE,
    LOWEST_LOGPROB,
    draw_tokens,
    filtered_logprobs,
    forbid_tokens,
    sample_rows,
    sum_smaller_probs,
    token_logprobs,
    verify_rows,
)

I32 = torch.int32


def logits(rows: int, columns: int, seed: int = 0) -> Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed)) * 2.0


def per_row(value: float, rows: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.full((rows,), value, dtype=dtype)


def slow_filter(row: list[float], temperature: float, top_p: float, top_k: int) -> list[int]:
    """Return the kept ids: sort, add up, cut."""
    top = max(row)
    weight = [math.exp((value - top) / temperature) for value in row]
    total = sum(weight)
    order = sorted(range(len(row)), key=lambda token: (-row[token], token))
    kept, before = [], 0.0
    for token in order:
        if before <= top_p:
            kept.append(token)
        before += weight[token] / total
    return sorted(kept[:top_k] if top_k >= 0 else kept)


def kept(logprobs: Tensor) -> list[list[int]]:
    return [[token for token, value in enumerate(row) if value > -math.inf] for row in logprobs.tolist()]


@pytest.mark.parametrize("top_p", [0.01, 0.3, 0.9, 0.999, 1.0])
@pytest.mark.parametrize("top_k", [-1, 1, 5, 200])
@pytest.mark.parametrize("temperature", [0.5, 1.7])
def test_the_kept_tokens_are_those_of_a_sort(top_p: float, top_k: int, temperature: float) -> None:
    rows, columns = 7, 130
    x = logits(rows, columns)
    found = filtered_logprobs(
        x, per_row(temperature, rows), per_row(top_p, rows), per_row(top_k, rows, I32), smallest=0.0
    )
    assert kept(found) == [slow_filter(row, temperature, top_p, top_k) for row in x.double().tolist()]
    assert torch.allclose(found.exp().sum(dim=1), torch.ones(rows), atol=1e-5)
    only = torch.where(found > -torch.inf, x / temperature, -torch.inf).log_softmax(dim=1)
    assert torch.allclose(found, only, atol=1e-5)


def test_equal_tokens_are_kept_from_the_lowest_id() -> None:
    x = torch.zeros(3, 8)
    found = filtered_logprobs(x, per_row(1, 3), torch.tensor([0.3, 1.0, 0.25]), torch.tensor([-1, 3, -1], dtype=I32))
    # Before the fourth of eight equal tokens lies 3/8; before the third 1/4, which is not above 0.25.
    assert kept(found) == [[0, 1, 2], [0, 1, 2], [0, 1, 2]]


def test_one_token_is_always_kept() -> None:
    found = filtered_logprobs(logits(4, 50), per_row(1, 4), per_row(1e-9, 4), per_row(1, 4, I32))
    assert [len(row) for row in kept(found)] == [1] * 4
    assert found.amax(dim=1).tolist() == [0.0] * 4


def test_forbidden_tokens_take_no_part() -> None:
    x = forbid_tokens(logits(2, 40), torch.tensor([3, 7], dtype=I32))
    found = filtered_logprobs(x, per_row(1, 2), per_row(1, 2), per_row(-1, 2, I32))
    assert kept(found) == [[token for token in range(40) if token not in (3, 7)]] * 2
    some = forbid_tokens(logits(2, 40), torch.tensor([5], dtype=I32), torch.tensor([False, True]))
    assert some[0, 5] > -torch.inf
    assert some[1, 5] == -torch.inf


def test_what_is_too_unlikely_is_dropped_in_filtered_rows_only() -> None:
    x = torch.tensor([[0.0, -30.0, -1.0]]).expand(2, 3)
    found = filtered_logprobs(x, per_row(1, 2), torch.tensor([1.0, 0.9999999]), per_row(-1, 2, I32))
    assert kept(found) == [[0, 1, 2], [0, 2]]


def test_the_smallest_temperature_is_greedy_and_ties_share() -> None:
    x = torch.tensor([[1.0, 3.0, 2.0, 3.0], [5.0, 1.0, 2.0, 3.0]])
    found = filtered_logprobs(x, per_row(GREEDY_TEMPERATURE, 2), per_row(1, 2), per_row(-1, 2, I32))
    assert found.exp().tolist() == [[0.0, 0.5, 0.0, 0.5], [1.0, 0.0, 0.0, 0.0]]


@pytest.mark.parametrize("rows", [1, 3, 17])
def test_a_draw_does_not_depend_on_the_batch(rows: int) -> None:
    x = logits(1, 500, seed=4)
    alone_logprobs, alone_ids = sample_rows(
        x, per_row(0.9, 1), per_row(0.95, 1), per_row(40, 1, I32), torch.tensor([77]), torch.tensor([12], dtype=I32)
    )
    others = logits(rows, 500, seed=rows)
    others[rows // 2] = x[0]
    seeds, positions = torch.arange(rows) * 5 + 1, torch.arange(rows, dtype=I32)
    seeds[rows // 2], positions[rows // 2] = 77, 12
    logprobs, ids = sample_rows(
        others, per_row(0.9, rows), per_row(0.95, rows), per_row(40, rows, I32), seeds, positions
    )
    assert ids[rows // 2] == alone_ids[0]
    assert torch.equal(logprobs[rows // 2], alone_logprobs[0])


def chi_square(counts: Tensor, probability: Tensor) -> tuple[float, int]:
    """Return the statistic over bins of at least 5 expected draws, the rest in one bin, and the degrees of freedom."""
    expected = probability.double() * counts.sum()
    large = expected >= 5
    bins = [*zip(counts[large].tolist(), expected[large].tolist(), strict=True)]
    rest = (float(counts[~large].sum()), float(expected[~large].sum()))
    if rest[1] >= 5:
        bins.append(rest)
    return sum((seen - due) ** 2 / due for seen, due in bins), len(bins) - 1


def chi_square_limit(freedom: int) -> float:
    """Return the 99.9 % point, by Wilson and Hilferty."""
    return freedom * (1 - 2 / (9 * freedom) + 3.0902 * math.sqrt(2 / (9 * freedom))) ** 3


DRAWS = 20000


def drawn(logprob: Tensor, seed: int) -> Tensor:
    positions = torch.arange(DRAWS, dtype=I32)
    seeds = torch.full((DRAWS,), seed)
    return draw_tokens(logprob.expand(DRAWS, -1), seeds, positions)


@pytest.mark.parametrize(("top_p", "top_k"), [(1.0, -1), (0.8, -1), (1.0, 7), (0.9, 20)])
def test_draws_follow_the_filtered_distribution(top_p: float, top_k: int) -> None:
    logprob = filtered_logprobs(logits(1, 90, seed=9), per_row(1, 1), per_row(top_p, 1), per_row(top_k, 1, I32))
    counts = drawn(logprob, seed=2024).bincount(minlength=90)
    probability = logprob[0].exp()
    assert not counts[probability == 0].any()
    statistic, freedom = chi_square(counts, probability)
    assert statistic < chi_square_limit(freedom)


def test_the_distribution_test_can_fail() -> None:
    logprob = logits(1, 90, seed=9).log_softmax(dim=1)
    statistic, freedom = chi_square(drawn(logprob, seed=2024).bincount(minlength=90), (logprob[0] * 0.95).softmax(0))
    assert statistic > chi_square_limit(freedom)


def test_accepted_drafts_and_residual_draws_together_follow_the_target() -> None:
    target, draft = logits(1, 30, seed=11).log_softmax(dim=1), logits(1, 30, seed=12).log_softmax(dim=1)
    positions, seeds = torch.arange(DRAWS, dtype=I32), torch.full((DRAWS,), 5)
    # Drafts draw from a stream of their own: the contract adds a constant to the seed.
    drafted = draw_tokens(draft.expand(DRAWS, -1), seeds + 1000000007, positions, case=1)
    accepted, token, selected, share = verify_rows(
        target.expand(DRAWS, -1), draft.expand(DRAWS, -1), drafted, seeds, positions
    )
    taken = torch.where(accepted, drafted, token)
    statistic, freedom = chi_square(taken.bincount(minlength=30), target[0].exp())
    assert statistic < chi_square_limit(freedom)
    assert torch.equal(selected, target[0][drafted.long()])
    expected_share = 1 - (target.exp() - draft.exp()).clamp(min=0).sum()
    assert abs(share[0] - expected_share) < 1e-3
    assert abs(accepted.float().mean() - expected_share) < 0.02


def test_without_a_draft_nothing_is_accepted() -> None:
    x = logits(2, 10).log_softmax(dim=1)
    accepted, _, selected, _ = verify_rows(
        x, x, torch.tensor([-1, 4], dtype=I32), torch.tensor([1, 1]), per_row(3, 2, I32)
    )
    assert accepted.tolist() == [False, True]
    assert selected[0] == -torch.inf


def test_a_residual_of_nothing_takes_the_first_best_token() -> None:
    x = torch.tensor([[0.0, 2.0, 2.0, 1.0]]).log_softmax(dim=1)
    higher = x + 1.0  # as if the draft were more likely everywhere
    _, token, _, share = verify_rows(x, higher, per_row(-1, 1, I32), torch.tensor([1]), per_row(3, 1, I32))
    assert token.tolist() == [1]
    assert share.tolist() == [1.0]


def test_less_likely_tokens_add_up_with_equal_ones_before() -> None:
    probability = torch.tensor([[0.1, 0.3, 0.1, 0.4, 0.1]])
    logprob = probability.log().expand(6, 5)
    found = sum_smaller_probs(logprob, torch.tensor([0, 1, 2, 3, 4, -1], dtype=I32))
    assert torch.allclose(found, torch.tensor([0.1, 0.6, 0.2, 1.0, 0.3, 0.0]), atol=1e-6)


def test_reported_logprobs_have_a_floor() -> None:
    logprob = torch.tensor([[0.0, -torch.inf]]).expand(2, 2)
    assert token_logprobs(logprob, torch.tensor([0, 1], dtype=I32)).tolist() == [0.0, LOWEST_LOGPROB]


def test_sampling_sorts_nothing_draws_from_no_generator_and_reads_nothing_back() -> None:
    def program(x: Tensor) -> Tensor:
        return sample_rows(
            x, per_row(1, 2), per_row(0.9, 2), per_row(5, 2, I32), torch.zeros(2, 2, dtype=I32), per_row(3, 2, I32)
        )[1]

    graph = make_fx(program, tracing_mode="fake")(logits(2, 70))
    names = {str(node.target) for node in graph.graph.nodes if node.op == "call_function"}
    assert not [name for name in names if any(word in name for word in ("sort", "rand", "bernoulli", "multinomial"))]
    assert not [name for name in names if any(word in name for word in ("nonzero", "_local_scalar_dense"))]
