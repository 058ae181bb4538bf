"""Hyper-connections: M residual streams, mixed before and after every sub-layer.

Shape letters: T tokens, M streams, D model width, X = (2 + M) * M mixing values per token.

Order within one sub-layer (see `port/model/block.py`): `mixing_values` of the streams that enter it; its input is the
collapse with the *previous* sub-layer's weights; its output is combined back with this sub-layer's weights.
Source: DeepSeek-V4.1 `inference/model.py`, Block.hc_pre and hc_post, and `kernel.py`, hc_split_sinkhorn, revision
dba1be0a.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

_TF32_DROPPED_BITS = 13


def mixing_values(stream_TMD: Tensor, weight_XMD: Tensor, *, eps: float, tf32: bool = False) -> Tensor:
    """Return the raw mixing values of each token: a product over all streams, divided by their common root mean square.

    Args:
        stream_TMD: (T, M, D), float32 or bfloat16.
        weight_XMD: float32 (X, M * D); the norm's weight is already folded in.
        eps: added to the mean square; the model's `rms_norm_eps`.
        tf32: round the matrix to 10 fraction bits first, as a TF32 product does.

    Returns:
        float32 (T, X).

    Numerics: float32 throughout. One statistic over all M * D values.
    """
    flat = stream_TMD.flatten(1).to(torch.float32)
    weight = _round_to_tf32(weight_XMD) if tf32 else weight_XMD
    return F.linear(flat, weight) * torch.rsqrt(flat.square().mean(dim=-1, keepdim=True) + eps)


def split_mixing(
    mix_TX: Tensor, scale_3: Tensor, base_X: Tensor, *, streams: int, eps: float, iterations: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the three mixes of a sub-layer: collapse weights, write-back weights, and the stream-to-stream matrix.

    Args:
        mix_TX: float32 (T, X), from `mixing_values`.
        scale_3: float32 (3,), one factor per mix.
        base_X: float32 (X,), added per value.
        streams: M.
        eps: added to the collapse weights and used in `sinkhorn`.
        iterations: column passes of `sinkhorn`.

    Returns:
        pre float32 (T, M), post float32 (T, M), comb float32 (T, M, M) with comb[j, k] the share of stream j in new
        stream k.
    """
    pre, post, comb = mix_TX.split((streams, streams, streams * streams), dim=-1)
    base_pre, base_post, base_comb = base_X.split((streams, streams, streams * streams))
    pre = torch.sigmoid(pre * scale_3[0] + base_pre) + eps
    post = 2.0 * torch.sigmoid(post * scale_3[1] + base_post)
    comb = (comb * scale_3[2] + base_comb).unflatten(-1, (streams, streams))
    return pre, post, sinkhorn(comb, eps=eps, iterations=iterations)


def sinkhorn(logits_TMM: Tensor, *, eps: float, iterations: int) -> Tensor:
    """Return a nearly doubly stochastic matrix per token.

    Args:
        logits_TMM: float32 (T, M, M).
        eps: added after the softmax and to every denominator.
        iterations: column passes; the softmax and `iterations - 1` row passes come between them, a column pass ends it.

    Returns:
        float32 (T, M, M); columns (over the first M) sum to nearly 1.
    """
    matrix = torch.softmax(logits_TMM, dim=-1) + eps
    matrix = matrix / (matrix.sum(dim=-2, keepdim=True) + eps)
    for _ in range(iterations - 1):
        matrix = matrix / (matrix.sum(dim=-1, keepdim=True) + eps)
        matrix = matrix / (matrix.sum(dim=-2, keepdim=True) + eps)
    return matrix


def collapse_streams(stream_TMD: Tensor, pre_TM: Tensor) -> Tensor:
    """Return the weighted sum of the streams, (T, D), dtype of the stream. Sum in float32, one rounding."""
    return (pre_TM.unsqueeze(-1) * stream_TMD.to(torch.float32)).sum(dim=1).to(stream_TMD.dtype)


def combine_streams(output_TD: Tensor, stream_TMD: Tensor, post_TM: Tensor, comb_TMM: Tensor) -> Tensor:
    """Return the streams after a sub-layer: its output written back, plus the old streams mixed.

    Args:
        output_TD: (T, D), the sub-layer's output.
        stream_TMD: (T, M, D), the streams that entered the sub-layer.
        post_TM: float32 (T, M).
        comb_TMM: float32 (T, M, M); new stream k takes comb[j, k] of old stream j.

    Returns:
        (T, M, D), dtype of the stream. Sum in float32, one rounding.
    """
    written = post_TM.unsqueeze(-1) * output_TD.to(torch.float32).unsqueeze(1)
    kept = (comb_TMM.unsqueeze(-1) * stream_TMD.to(torch.float32).unsqueeze(2)).sum(dim=1)
    return (written + kept).to(stream_TMD.dtype)


def _round_to_tf32(x: Tensor) -> Tensor:
    bits = x.contiguous().view(torch.int32)
    half = (1 << (_TF32_DROPPED_BITS - 1)) - 1
    odd = (bits >> _TF32_DROPPED_BITS) & 1
    return ((bits + half + odd) & ~((1 << _TF32_DROPPED_BITS) - 1)).view(torch.float32)
