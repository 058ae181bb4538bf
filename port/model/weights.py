"""Modules that hold one checkpoint tensor each, or a weight and its scale.

A parameter is made on the `meta` device, with the shape and dtype the checkpoint stores; loading replaces it. A linear
may also keep a dense copy of itself, made once when it is loaded. The copy is no part of the state dict.
"""

from typing import Literal

import torch
from torch import Tensor, nn

from port.kernels.linear import dense_weight, linear, stored_linear
from port.kernels.normalize import rms_norm

WeightForm = Literal["stored", "dequantized"]


def meta_parameter(*shape: int, dtype: torch.dtype) -> nn.Parameter:
    """Return a parameter without memory, to be replaced when it is loaded."""
    return nn.Parameter(torch.empty(*shape, dtype=dtype, device="meta"), requires_grad=False)


class Linear(nn.Module):
    """A product `x @ weight.T`, whatever the weight is stored as.

    Args:
        out_features: N.
        in_features: K.
        stored: "bf16" (weight only), "fp8" (weight and tile scales) or "fp4" (packed weight and row scales).
    """

    def __init__(self, out_features: int, in_features: int, *, stored: Literal["bf16", "fp8", "fp4"]) -> None:
        super().__init__()
        groups = -(-in_features // 32)
        if stored == "bf16":
            self.weight = meta_parameter(out_features, in_features, dtype=torch.bfloat16)
        elif stored == "fp8":
            self.weight = meta_parameter(out_features, in_features, dtype=torch.float8_e4m3fn)
            self.scale = meta_parameter(-(-out_features // 32), groups, dtype=torch.float8_e8m0fnu)
        else:
            self.weight = meta_parameter(out_features, in_features // 2, dtype=torch.int8)
            self.scale = meta_parameter(out_features, groups, dtype=torch.float8_e8m0fnu)
        self.stored = stored
        self.dense: Tensor | None = None

    def make_dense(self, dtype: torch.dtype) -> None:
        """Keep a dense copy in `dtype`, which holds every stored value exactly."""
        self.dense = self.densified(dtype)

    def densified(self, dtype: torch.dtype) -> Tensor:
        """Return the weight as numbers, (N, K) in `dtype`."""
        if self.stored == "bf16":
            return self.weight.detach().to(dtype)
        return dense_weight(self.weight.detach(), self.scale.detach(), out_dtype=dtype)

    def drop_dense(self) -> None:
        """Forget the dense copy."""
        self.dense = None

    def forward(self, x: Tensor, *, operands: torch.dtype, out_dtype: torch.dtype) -> Tensor:
        """Return (T, N) in `out_dtype`; sums in float32."""
        if self.dense is not None:
            return linear(x, self.dense, operands=operands, out_dtype=out_dtype)
        if self.stored == "bf16":
            return linear(x, self.weight, operands=operands, out_dtype=out_dtype)
        return stored_linear(x, self.weight, self.scale, operands=operands, out_dtype=out_dtype)


class RMSNorm(nn.Module):
    """A normalisation weight, bf16 (K,)."""

    def __init__(self, width: int, *, eps: float) -> None:
        super().__init__()
        self.weight = meta_parameter(width, dtype=torch.bfloat16)
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Return `x` normalised over its last axis, in its own dtype."""
        return rms_norm(x, self.weight, eps=self.eps)


class Embedding(nn.Module):
    """Token rows, bf16 (V, D)."""

    def __init__(self, rows: int, width: int) -> None:
        super().__init__()
        self.weight = meta_parameter(rows, width, dtype=torch.bfloat16)

    def forward(self, token_ids: Tensor) -> Tensor:
        """Return (T, D) in bfloat16."""
        return nn.functional.embedding(token_ids, self.weight)
