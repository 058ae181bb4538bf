"""The bookkeeping of a sampler's rows: which request a row belongs to, what it looks up, which tokens it may take.

Shape letters: N requests, Q query rows, J columns, V vocabulary, M masks. Static shapes, int32 throughout: all of it
may run inside a compiled decode step.
Source: deepinfer 0.1.0 sampler kernels, described in the runtime contracts, sections 10.5 and 15.2.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

STEP_STRIDE = 10000019
"""Positions of random streams between two draft steps of one request."""

_WORD_BITS = 32


def request_of_rows(first_N: Tensor, count_N: Tensor, *, rows: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return which request each row belongs to, its place there, and whether rows of the same request follow.

    Args:
        first_N: int32 (N,), first row of each request; negative for a request that is padding.
        count_N: int32 (N,), rows of each request.
        rows: Q.

    Returns:
        request int32 (Q,), -1 for a row of none; step int32 (Q,), 0 there; followed bool (Q,), False there.
    """
    row = torch.arange(rows, dtype=torch.int32, device=first_N.device).unsqueeze(-1)
    inside = (row >= first_N) & (row < first_N + count_N) & (first_N >= 0)
    number = torch.arange(first_N.shape[0], dtype=torch.int32, device=first_N.device)
    request = torch.where(inside, number, -1).amax(dim=-1)
    step = torch.where(inside, row - first_N, 0).amax(dim=-1)
    followed = (inside & (row < first_N + count_N - 1)).any(dim=-1)
    return request, step, followed


def spread_to_rows(values_N: Tensor, request_Q: Tensor) -> Tensor:
    """Return the value of each row's request, (Q,), dtype kept; a row of no request takes that of request 0.

    64-bit integers move as two words of 32 bits: a device has no others.
    """
    table = values_N.view(torch.int32).view(-1, 2) if values_N.element_size() == 8 else values_N.unsqueeze(-1)
    picked = F.embedding(request_Q.clamp(min=0), table)
    return picked.view(values_N.dtype).squeeze(-1)


def look_up_key(key_QJ: Tensor, value_QJ: Tensor, query_Q: Tensor) -> Tensor:
    """Return the value whose key equals the query in each row, -inf (or -1 for integers) where none does; (Q,)."""
    found = torch.where(key_QJ == query_Q.unsqueeze(-1), value_QJ, _missing(value_QJ))
    return found.amax(dim=-1)


def look_up_column(value_QJ: Tensor, query_Q: Tensor) -> Tensor:
    """Return the value in column `query` of each row, -inf (or -1 for integers) outside the columns; (Q,)."""
    last = value_QJ.shape[1] - 1
    inside = (query_Q >= 0) & (query_Q <= last)
    column = query_Q.clamp(0, last).to(torch.int64).unsqueeze(-1)
    return torch.where(inside, value_QJ.gather(1, column).squeeze(-1), _missing(value_QJ))


def mask_tokens(logit_QV: Tensor, bits_MW: Tensor, mask_M: Tensor, row_M: Tensor) -> Tensor:
    """Return logits with the tokens that a bit mask forbids at -inf.

    Args:
        logit_QV: float32 (Q, V).
        bits_MW: int32 (masks, ceil(V / 32)); bit v % 32 of word v // 32 allows token v.
        mask_M: int32 (M,), which mask each entry applies.
        row_M: int32 (M,), to which row; -1 for none. No row twice.

    Returns:
        float32 (Q, V).
    """
    rows, columns = logit_QV.shape
    row = torch.arange(rows, dtype=torch.int32, device=logit_QV.device).unsqueeze(-1)
    hit = row == row_M
    mask_Q = torch.where(hit, mask_M, -1).amax(dim=-1)
    words = F.embedding(mask_Q.clamp(min=0), bits_MW)
    bit = torch.arange(_WORD_BITS, dtype=torch.int32, device=logit_QV.device)
    allowed = ((words.unsqueeze(-1) >> bit) & 1).flatten(1)[:, :columns] == 1
    return torch.where(allowed | (mask_Q < 0).unsqueeze(-1), logit_QV, -torch.inf)


def _missing(value: Tensor) -> float | int:
    return -torch.inf if value.dtype.is_floating_point else -1
