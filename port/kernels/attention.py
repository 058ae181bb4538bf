"""Attention of every query over a list of rows: its window, and the compressed entries selected for it.

Shape letters: T query tokens, H heads, D head width, W window columns, K selected columns, S rows of a source.

The latent row is key and value at once. A per-head sink takes part in the denominator only.
Source: DeepSeek-V4.1 `inference/kernel.py`, sparse_attn, revision dba1be0a.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from port.kernels.gather import load_rows

MAX_GATHERED_ELEMENTS = 32 * 1024 * 1024
"""Most gathered key elements held at a time (128 MiB of float32); longer inputs are walked in pieces of query rows."""


class KeySource(NamedTuple):
    """Rows to attend to.

    Attributes:
        rows_SD: (S, D), any float dtype.
        index_TJ: int32 (T, J), the rows of each query, -1 where there is none.
    """

    rows_SD: Tensor
    index_TJ: Tensor


def sparse_attention(
    query_THD: Tensor,
    sources: tuple[KeySource, ...],
    sink_H: Tensor,
    *,
    scale: float,
    operands: torch.dtype,
    probability_dtype: torch.dtype,
) -> Tensor:
    """Return softmax-weighted sums of the listed rows, one per query and head.

    Args:
        query_THD: (T, H, D), the activation dtype.
        sources: where the rows come from; all take part in one softmax. A row listed twice counts twice.
        sink_H: float32 (H,), a logit that takes its share of the softmax and contributes no value; not scaled.
        scale: factor on q . k.
        operands: dtype in which queries, keys and probabilities enter their products.
        probability_dtype: dtype the weights are rounded to before they meet the keys, relative to the row's maximum.

    Returns:
        (T, H, D), dtype of the query. A query without any row gives zeros.

    Numerics: scores, exponentials and the denominator in float32; weights rounded once; sums in float32; one rounding.
    """
    columns = sum(source.index_TJ.shape[1] for source in sources)
    step = max(MAX_GATHERED_ELEMENTS // (columns * query_THD.shape[-1]), 1)
    pieces = []
    for begin in range(0, query_THD.shape[0], step):
        rows = slice(begin, begin + step)
        picked = [source.index_TJ[rows] for source in sources]
        keys = [_gather(source.rows_SD, index) for source, index in zip(sources, picked, strict=True)]
        keys_TJD, index_TJ = torch.cat(keys, dim=1).to(operands), torch.cat(picked, dim=1)
        pieces.append(_attend(query_THD[rows], keys_TJD, index_TJ >= 0, sink_H, scale, probability_dtype))
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces)


def _gather(rows_SD: Tensor, index_TJ: Tensor) -> Tensor:
    """Return the listed rows; a missing one reads row 0, whose weight is zero (see `_attend`)."""
    return load_rows(rows_SD, index_TJ)


def _attend(
    query_THD: Tensor,
    keys_TJD: Tensor,
    valid_TJ: Tensor,
    sink_H: Tensor,
    scale: float,
    probability_dtype: torch.dtype,
) -> Tensor:
    operands = keys_TJD.dtype
    score_THJ = torch.bmm(query_THD.to(operands), keys_TJD.transpose(1, 2)).to(torch.float32) * scale
    score_THJ = torch.where(valid_TJ.unsqueeze(1), score_THJ, -torch.inf)
    top_TH1 = score_THJ.amax(dim=-1, keepdim=True)
    top_TH1 = torch.where(top_TH1 == -torch.inf, 0.0, top_TH1)
    weight_THJ = torch.exp(score_THJ - top_TH1)
    total_TH1 = weight_THJ.sum(dim=-1, keepdim=True) + torch.exp(sink_H.view(1, -1, 1) - top_TH1)
    # Any key adds at least the 1 of the largest weight; without one, a very negative sink alone would give 0 / 0.
    total_TH1 = torch.where(total_TH1 > 0, total_TH1, 1.0)
    mixed_THD = torch.bmm(weight_THJ.to(probability_dtype).to(operands), keys_TJD).to(torch.float32)
    return (mixed_THD / total_TH1).to(query_THD.dtype)
