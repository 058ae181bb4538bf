"""How much of an Engram lookup enters each residual stream. Shape letters: T tokens, M streams, D model width.

Source: DeepSeek-V4.1 `inference/engram.py`, revision dba1be0a.
"""

import torch
from torch import Tensor

_SMALLEST_DOT = 1e-6


def engram_gate(
    stream_TMD: Tensor, key_TMD: Tensor, query_weight_MD: Tensor, key_weight_MD: Tensor, *, eps: float
) -> Tensor:
    """Return the gate of each token and stream.

    Args:
        stream_TMD: (T, M, D), the activation dtype.
        key_TMD: (T, M, D), one key per stream.
        query_weight_MD: (M, D), norm weight of the streams.
        key_weight_MD: (M, D), norm weight of the keys.
        eps: added to each mean square; the model's `rms_norm_eps`.

    Returns:
        float32 (T, M): sigmoid of the signed square root of the normalised product of stream and key. Statistics are
        per stream, unlike those of the hyper-connections.
    """
    stream, key = stream_TMD.to(torch.float32), key_TMD.to(torch.float32)
    weight = query_weight_MD.to(torch.float32) * key_weight_MD.to(torch.float32)
    dot = (stream * weight * key).sum(dim=-1)
    dot = dot * torch.rsqrt(stream.square().mean(dim=-1) + eps) * torch.rsqrt(key.square().mean(dim=-1) + eps)
    dot = dot * stream.shape[-1] ** -0.5
    return torch.sigmoid(torch.copysign(dot.abs().clamp(min=_SMALLEST_DOT).sqrt(), dot))


def add_gated(stream_TMD: Tensor, gate_TM: Tensor, value_TD: Tensor) -> Tensor:
    """Return the streams plus the gated value, (T, M, D), dtype of the stream. Sum in float32, one rounding."""
    added = gate_TM.unsqueeze(-1) * value_TD.to(torch.float32).unsqueeze(1)
    return (stream_TMD.to(torch.float32) + added).to(stream_TMD.dtype)
