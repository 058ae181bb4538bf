"""From logits to a token: temperature, top-p, top-k, log-probabilities, and a draw addressed by seed and position.

Steps of one row: divide by the temperature; keep the most likely tokens whose probability before them is at most top-p;
of those keep the first top-k; normalise what is left; draw. Equal probabilities stand in the order of their ids, and at
least one token is always kept. The thresholds are found by halving over the bits of a float, since the device has no
sort: a token is kept by what is strictly more likely than it, and among equals by its place.

Shape letters: N rows, V vocabulary.
Source: deepinfer 0.1.0 sampler, described in the runtime contracts, section 10.
"""

from typing import Protocol

import torch
from torch import Tensor

from port.kernels.fixed_point import draw_columns, fixed_point_weights, unit_threshold, word_below
from port.kernels.philox import draw_words

FRESH, RESIDUAL, ACCEPT = 0, 1, 2
"""Cases of a draw; each has its own stream of random numbers."""

GREEDY_TEMPERATURE = 1e-5
"""The smallest temperature; tokens that share the best logit share the probability."""

SMALLEST_FILTERED = 2.0**-32
"""Less likely tokens are dropped where a row is filtered at all, as on Ascend; the draw could not tell them from 0."""

LOWEST_LOGPROB = -9999.0
"""Log-probabilities are told no lower than this."""

_DRAFT_MARGIN = 5e-5
_ONE_BITS = 0x3F800000
_SEARCH_STEPS = 30


def filtered_logprobs(
    logit_NV: Tensor,
    temperature_N: Tensor,
    top_p_N: Tensor,
    top_k_N: Tensor,
    *,
    smallest: float = SMALLEST_FILTERED,
) -> Tensor:
    """Return the log-probabilities that a token is drawn from, and that are reported.

    Args:
        logit_NV: float32 (N, V); -inf for tokens that may not be drawn.
        temperature_N: float32 (N,), above 0.
        top_p_N: float32 (N,), above 0; 1 keeps all.
        top_k_N: int32 (N,); negative or 0 keeps all.
        smallest: probability under which a filtered row drops tokens; 0 drops none.

    Returns:
        float32 (N, V), -inf for removed tokens. A row without a single finite logit gives NaN.

    Numerics: float32; a sum that lies within rounding of top-p may fall on either side of it.
    """
    scaled_NV = logit_NV * (1.0 / temperature_N.unsqueeze(-1))
    probability_NV = scaled_NV.softmax(dim=-1)
    filters_p = (top_p_N < 1.0).unsqueeze(-1)
    filters_k = ((top_k_N > 0) & (top_k_N < logit_NV.shape[1])).unsqueeze(-1)
    keep_NV = ~filters_p | _within_mass(probability_NV, top_p_N.unsqueeze(-1))
    keep_NV &= ~filters_k | _within_count(probability_NV, top_k_N.unsqueeze(-1))
    best_N1 = probability_NV.amax(dim=-1, keepdim=True)
    large_NV = (probability_NV >= smallest) | (probability_NV == best_N1)
    keep_NV &= large_NV | ~(filters_p | filters_k)
    return torch.where(keep_NV, scaled_NV, -torch.inf).log_softmax(dim=-1)


def draw_tokens(logprob_NV: Tensor, seed_N: Tensor, position_N: Tensor, *, case: int = FRESH) -> Tensor:
    """Return one token per row.

    Args:
        logprob_NV: float32 (N, V), normalised.
        seed_N: uint64 or int64 (N,), or int32 (N, 2) with the low word first.
        position_N: int32 (N,), of the token that is drawn.
        case: `FRESH` or `RESIDUAL`.

    Returns:
        int32 (N,), a function of the row's log-probabilities, seed, position and case.
    """
    return _draw(logprob_NV.exp(), seed_N, position_N, case)


def sample_rows(
    logit_NV: Tensor,
    temperature_N: Tensor,
    top_p_N: Tensor,
    top_k_N: Tensor,
    seed_N: Tensor,
    position_N: Tensor,
    *,
    smallest: float = SMALLEST_FILTERED,
) -> tuple[Tensor, Tensor]:
    """Return filtered log-probabilities, float32 (N, V), and a fresh token of each row, int32 (N,).

    Arguments are those of the two functions above.
    """
    logprobs = filtered_logprobs(logit_NV, temperature_N, top_p_N, top_k_N, smallest=smallest)
    return logprobs, draw_tokens(logprobs, seed_N, position_N)


def verify_rows(
    logprob_NV: Tensor, draft_logprob_NV: Tensor, draft_N: Tensor, seed_N: Tensor, position_N: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return whether each drafted token is accepted, and the token to take where it is not.

    Args:
        logprob_NV: float32 (N, V), of the target.
        draft_logprob_NV: float32 (N, V), that the draft was drawn from.
        draft_N: int32 (N,); negative for no draft, which is rejected.
        seed_N: as for `draw_tokens`.
        position_N: as for `draw_tokens`.

    Returns:
        accepted bool (N,); token int32 (N,) from what the target has over the draft; the draft's log-probability under
        the target, float32 (N,), -inf without a draft; the probability that a draft is accepted, float32 (N,).
    """
    last = logprob_NV.shape[1] - 1
    column = draft_N.clamp(0, last).to(torch.int64).unsqueeze(-1)
    present = (draft_N >= 0) & (draft_N <= last)
    target = torch.where(present, logprob_NV.gather(1, column).squeeze(-1), -torch.inf)
    draft = torch.where(present, draft_logprob_NV.gather(1, column).squeeze(-1), 0.0)
    share = (target - draft).clamp(max=0.0).exp()
    threshold, everything = unit_threshold(torch.where(present, share, 0.0))
    # ((u << 1) | 1) < floor(share * 2^33) says the same as u < floor(share * 2^32), which fits a word.
    accepted = everything | word_below(draw_words(seed_N, position_N, case=ACCEPT)[:, 0], threshold)
    residual_NV = (logprob_NV.exp() - (draft_logprob_NV - _DRAFT_MARGIN).exp()).clamp(min=0.0)
    left_N = residual_NV.sum(dim=-1)
    drawn = _draw(residual_NV, seed_N, position_N, RESIDUAL)
    nothing = (fixed_point_weights(residual_NV) == 0).all(dim=-1)
    token = torch.where(nothing, _first_largest(logprob_NV), drawn)
    return accepted, token, target, (1.0 - left_N).clamp(min=0.0)


def sum_smaller_probs(logprob_NV: Tensor, token_N: Tensor) -> Tensor:
    """Return the probability of all tokens less likely than the chosen one, and of equal ones up to it.

    Args:
        logprob_NV: float32 (N, V).
        token_N: int32 (N,); negative gives 0.

    Returns:
        float32 (N,), the cumulative distribution in ascending order, the token itself included.
    """
    probability_NV = logprob_NV.exp()
    column = token_N.clamp(min=0).unsqueeze(-1)
    chosen = probability_NV.gather(1, column.to(torch.int64))
    number = torch.arange(logprob_NV.shape[1], dtype=torch.int32, device=logprob_NV.device)
    counted = (probability_NV < chosen) | ((probability_NV == chosen) & (number <= column))
    return torch.where(token_N >= 0, torch.where(counted, probability_NV, 0.0).sum(dim=-1), 0.0)


def token_logprobs(logprob_NV: Tensor, token_N: Tensor) -> Tensor:
    """Return the log-probability of one token per row as it is reported, at least `LOWEST_LOGPROB`; float32 (N,)."""
    column = token_N.clamp(min=0).to(torch.int64).unsqueeze(-1)
    return logprob_NV.gather(1, column).squeeze(-1).clamp(min=LOWEST_LOGPROB)


def forbid_tokens(logit_NV: Tensor, token_ids: Tensor, rows: Tensor | None = None) -> Tensor:
    """Return logits with some tokens at -inf: black-listed ids everywhere, or the end of text in some rows.

    Args:
        logit_NV: float32 (N, V).
        token_ids: int32 (K,), from 0 to V - 1.
        rows: bool (N,), the rows it holds for; all of them when None.
    """
    number = torch.arange(logit_NV.shape[1], dtype=torch.int32, device=logit_NV.device)
    listed_V = (number.unsqueeze(-1) == token_ids).any(dim=-1)
    hit_NV = listed_V if rows is None else listed_V & rows.unsqueeze(-1)
    return torch.where(hit_NV, -torch.inf, logit_NV)


def _draw(probability_NV: Tensor, seed_N: Tensor, position_N: Tensor, case: int) -> Tensor:
    weight_NV = fixed_point_weights(probability_NV.clamp(max=1.0))
    return draw_columns(weight_NV, draw_words(seed_N, position_N, case=case)[:, :2])


def _within_mass(probability_NV: Tensor, limit_N1: Tensor) -> Tensor:
    """Return the tokens before which, in descending order, at most `limit` of the probability lies."""

    def over(value_N1: Tensor) -> Tensor:
        return torch.where(probability_NV > value_N1, probability_NV, 0.0).sum(dim=-1, keepdim=True)

    lowest_N1 = _search(lambda value: over(value) <= limit_N1, probability_NV)
    equal_NV = probability_NV == lowest_N1
    before_NV = over(lowest_N1) + (equal_NV.cumsum(dim=-1, dtype=torch.int32) - 1) * lowest_N1
    return (probability_NV > lowest_N1) | (equal_NV & (before_NV <= limit_N1))


def _within_count(probability_NV: Tensor, limit_N1: Tensor) -> Tensor:
    """Return the first `limit` tokens in descending order."""

    def over(value_N1: Tensor) -> Tensor:
        return (probability_NV > value_N1).sum(dim=-1, keepdim=True, dtype=torch.int32)

    lowest_N1 = _search(lambda value: over(value) < limit_N1, probability_NV)
    equal_NV = probability_NV == lowest_N1
    room = limit_N1 - over(lowest_N1)
    return (probability_NV > lowest_N1) | (equal_NV & (equal_NV.cumsum(dim=-1, dtype=torch.int32) <= room))


class _Test(Protocol):
    def __call__(self, value_N1: Tensor, /) -> Tensor: ...


def _search(holds: _Test, probability_NV: Tensor) -> Tensor:
    """Return the smallest probability for which `holds`; it holds for the largest one, and from some value on.

    Positive floats are ordered as their bits are, so halving an interval of bits takes 30 steps from 0 to 1.
    """
    shape = (probability_NV.shape[0], 1)
    low = torch.full(shape, -1, dtype=torch.int32, device=probability_NV.device)  # does not hold, or is below 0
    high = torch.full(shape, _ONE_BITS, dtype=torch.int32, device=probability_NV.device)
    for _ in range(_SEARCH_STEPS + 1):
        middle = (low + high) >> 1
        yes = holds(middle.clamp(min=0).view(torch.float32))
        high = torch.where(yes, middle.clamp(min=0), high)
        low = torch.where(yes, low, middle)
    return high.view(torch.float32)


def _first_largest(value_NV: Tensor) -> Tensor:
    """Return the first column of the largest value of each row, int32 (N,)."""
    number = torch.arange(value_NV.shape[1], dtype=torch.int32, device=value_NV.device)
    best = value_NV == value_NV.amax(dim=-1, keepdim=True)
    return torch.where(best, number, value_NV.shape[1]).amin(dim=-1)
