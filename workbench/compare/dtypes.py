"""How fine a floating-point format is: its steps, and the coarsest format a tensor's values fit in.

A step (ULP) is the distance to the next value of the format. Results that were rounded to bfloat16 and widened again
are still bfloat16 results; judging them in float32 steps would call every correct one wrong.
"""

from __future__ import annotations

import torch
from torch import Tensor

COARSE: tuple[torch.dtype, ...] = (torch.bfloat16, torch.float16)
"""Formats a wider tensor is examined for, coarsest first."""

_ENOUGH_FRACTIONS = 16


def step_size(magnitude: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the step of `dtype` at each magnitude, float64.

    Args:
        magnitude: float64, at least 0 and finite.
        dtype: a floating dtype.
    """
    info = torch.finfo(dtype)
    floor = torch.tensor(info.smallest_normal, dtype=torch.float64)
    _, exponent = torch.frexp(torch.maximum(magnitude, floor))
    return torch.ldexp(torch.full_like(magnitude, info.eps), exponent - 1)


def value_dtype(tensor: Tensor) -> torch.dtype:
    """Return the coarsest of bfloat16, float16 and the tensor's own dtype that holds every value exactly.

    A narrower answer than the tensor's own dtype needs at least 16 values with a fraction: whole numbers fit in any
    format and prove nothing.
    """
    if tensor.dtype not in (torch.float32, torch.float64) or tensor.numel() == 0:
        return tensor.dtype
    values = (tensor if tensor.layout is torch.strided else tensor.to_dense()).detach().reshape(-1)
    fractions = (values.isfinite() & (values != values.trunc())).sum().item()
    if fractions < _ENOUGH_FRACTIONS:
        return tensor.dtype
    for dtype in (*COARSE, torch.float32):
        if dtype == tensor.dtype:
            break
        if torch.equal(values.to(dtype).to(values.dtype).nan_to_num(), values.nan_to_num()):
            return dtype
    return tensor.dtype


def coarser(one: torch.dtype, two: torch.dtype) -> torch.dtype:
    """Return the dtype with the larger relative step; a floating dtype against any other wins."""
    if not one.is_floating_point or not two.is_floating_point:
        return one if one.is_floating_point else two
    return one if torch.finfo(one).eps >= torch.finfo(two).eps else two
