"""Seeded numbers for kernel tests."""

from __future__ import annotations

import torch
from torch import Tensor


def ints(values: object) -> Tensor:
    """Return int32."""
    return torch.tensor(values, dtype=torch.int32)


def empty_ints(*shape: int) -> Tensor:
    """Return int32 that no result equals, so that what a kernel leaves out shows."""
    return torch.full(shape, -99, dtype=torch.int32)


def bf16(*shape: int, seed: int = 0) -> Tensor:
    """Return seeded bfloat16."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(torch.bfloat16)


def f32(*shape: int, seed: int = 0) -> Tensor:
    """Return seeded float32."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
