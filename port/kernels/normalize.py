"""Root-mean-square normalisation. Shape: any leading axes, K channels last."""

import torch
from torch import Tensor


def rms_norm(x: Tensor, weight_K: Tensor, *, eps: float) -> Tensor:
    """Return `x` divided by the root of its mean square over the last axis, times a weight per channel.

    Args:
        x: (..., K), float32 or bfloat16.
        weight_K: (K,), any float dtype.
        eps: added to the mean square. The model uses 1e-20, which float32 holds.

    Returns:
        (..., K), dtype of `x`.

    Numerics: float32 throughout, one rounding at the end.
    """
    wide = x.to(torch.float32)
    scaled = wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + eps)
    return (weight_K.to(torch.float32) * scaled).to(x.dtype)
