"""Which compressed entries a query attends to: scores, candidate blocks, and the best K in order of position.

Shape letters: T query tokens, H index heads, I index head width, C compressed entries, B candidate blocks, K entries
kept.

Equal scores go to the lower position. Every function keeps static shapes and reads nothing back to the host.
Source: DeepSeek-V4.1 `inference/model.py`, Indexer.forward, revision dba1be0a; deepinfer 0.1.0 for the candidate
blocks.
"""

import torch
from torch import Tensor

from port.kernels.topk import left_packed, top_mask

MAX_SCORE_ELEMENTS = 64 * 1024 * 1024
"""Most per-head scores held at a time (256 MiB of float32)."""

_LARGEST_SCORE = torch.finfo(torch.bfloat16).max
"""Cap of a block's score, below the +inf of the newest block."""


def index_scores(
    query_THI: Tensor,
    weight_TH: Tensor,
    key_CI: Tensor,
    *,
    operands: torch.dtype,
    round_per_head: bool,
) -> Tensor:
    """Return how much each query wants each entry: the weighted sum over heads of the positive part of q . k.

    Args:
        query_THI: (T, H, I), any float dtype.
        weight_TH: (T, H), the activation dtype.
        key_CI: (C, I) for keys all queries share, or (T, C, I) for keys of each query's own.
        operands: dtype in which queries and keys enter the product.
        round_per_head: round each product and each weighted product to the dtype of `weight_TH`, or only the sum.

    Returns:
        (T, C), dtype of `weight_TH`. Not masked: entries after the query have scores too.

    Numerics: products and sums in float32.
    """
    tokens, heads, _ = query_THI.shape
    entries = key_CI.shape[-2]
    step = max(MAX_SCORE_ELEMENTS // max(heads * entries, 1), 1)
    pieces = []
    for begin in range(0, tokens, step):
        rows = slice(begin, begin + step)
        keys = key_CI if key_CI.ndim == 2 else key_CI[rows]
        pieces.append(_score_rows(query_THI[rows], weight_TH[rows], keys, operands, round_per_head))
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces)


def candidate_blocks(score_TC: Tensor, length_T: Tensor, *, block_size: int, topk_blocks: int) -> Tensor:
    """Return which blocks of entries later layers may select from, per query.

    Args:
        score_TC: (T, C), -inf where an entry is not visible.
        length_T: int32 (T,), visible entries of each query: the first `length` ones.
        block_size: entries per block.
        topk_blocks: blocks kept, fewer when there are fewer.

    Returns:
        bool (T, B) with B = ceil(C / block_size). A block scores as its best visible entry; the block that holds the
        newest visible entry is always kept; blocks without a visible entry never are.
    """
    best = block_scores(score_TC, length_T, block_size=block_size)
    block = torch.arange(best.shape[1], dtype=torch.int32, device=score_TC.device)
    visible = block * block_size < length_T.unsqueeze(-1)
    return _best(best, visible, topk_blocks)


def block_scores(score_TC: Tensor, length_T: Tensor, *, block_size: int) -> Tensor:
    """Return the score of each block of entries: its best visible entry.

    Args:
        score_TC: (T, C), -inf where an entry is not visible.
        length_T: int32 (T,), visible entries of each query.
        block_size: entries per block.

    Returns:
        float32 (T, B), B = ceil(C / block_size), at most the largest finite bfloat16; +inf for the block that holds
        the newest visible entry, -inf for one without a visible entry.
    """
    tokens, entries = score_TC.shape
    blocks = -(-entries // block_size)
    padded = torch.full((tokens, blocks * block_size), -torch.inf, dtype=torch.float32, device=score_TC.device)
    padded[:, :entries] = score_TC.to(torch.float32)
    best = padded.unflatten(-1, (blocks, block_size)).amax(dim=-1).clamp(max=_LARGEST_SCORE)
    newest = torch.div(length_T - 1, block_size, rounding_mode="floor")
    block = torch.arange(blocks, dtype=torch.int32, device=score_TC.device)
    return torch.where(block == newest.unsqueeze(-1), torch.inf, best)


def restrict_to_blocks(score_TC: Tensor, blocks_TB: Tensor, *, block_size: int) -> Tensor:
    """Return the scores with -inf outside the candidate blocks. Shapes as in `candidate_blocks`."""
    allowed = blocks_TB.repeat_interleave(block_size, dim=-1)[:, : score_TC.shape[1]]
    return torch.where(allowed, score_TC, -torch.inf)


def select_entries(score_TC: Tensor, *, topk: int) -> Tensor:
    """Return the positions of the best entries of each query, ascending.

    Args:
        score_TC: (T, C), -inf where an entry may not be selected.
        topk: columns of the result.

    Returns:
        int32 (T, topk): positions in ascending order, then -1 for what is missing.
    """
    wide = score_TC.to(torch.float32)
    chosen = _best(wide, wide > -torch.inf, topk)
    return left_packed(chosen, topk)


def _score_rows(query_THI: Tensor, weight_TH: Tensor, keys: Tensor, operands: torch.dtype, per_head: bool) -> Tensor:
    rounded = weight_TH.dtype
    product_THC = torch.matmul(query_THI.to(operands), keys.to(operands).transpose(-1, -2))
    if per_head:
        weighted = (product_THC.to(rounded).relu() * weight_TH.unsqueeze(-1)).to(torch.float32)
    else:
        weighted = product_THC.to(torch.float32).relu() * weight_TH.to(torch.float32).unsqueeze(-1)
    return weighted.sum(dim=1).to(rounded)


def _best(value_TC: Tensor, allowed_TC: Tensor, count: int) -> Tensor:
    """Return a mask of the `count` largest allowed values of each row; equal values go to the lower column."""
    columns = value_TC.shape[-1]
    if columns <= count:
        return allowed_TC
    return top_mask(torch.where(allowed_TC, value_TC, -torch.inf), count) & allowed_TC
