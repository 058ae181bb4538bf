"""The gated activation between an expert's two products. Shape letters: T tokens, F expert width."""

import torch
import torch.nn.functional as F
from torch import Tensor


def clamped_swiglu(gate_TF: Tensor, up_TF: Tensor, weight_T1: Tensor | None, *, limit: float) -> Tensor:
    """Return silu(gate) * up, times the routing weight, in float32.

    Args:
        gate_TF: (T, F), product with `w1`; clamped from above only.
        up_TF: (T, F), product with `w3`; clamped on both sides.
        weight_T1: float32 (T, 1) routing weight, or None for a shared expert.
        limit: where to clamp.

    Returns:
        float32 (T, F). The caller rounds, before the product with `w2`.

    Source: DeepSeek-V4.1 `inference/model.py`, Expert.forward, revision dba1be0a.
    """
    gate = gate_TF.to(torch.float32).clamp(max=limit)
    up = up_TF.to(torch.float32).clamp(min=-limit, max=limit)
    product = F.silu(gate) * up
    return product if weight_T1 is None else weight_T1 * product
