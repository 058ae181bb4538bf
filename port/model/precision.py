"""A numeric profile applied: which dtypes and round trips each of its choices stands for.

Modules ask this object at every rounding point, so that no module reads a profile field itself.
"""

import torch
from torch import Tensor

from port.kernels.dequantize import dequantize_fp8_tiles
from port.kernels.quantize import quantize_fp8_rows, round_trip_fp4, round_trip_fp4_e4m3, round_trip_fp8
from port.numerics import NumericProfile

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class Precision:
    """The dtypes and roundings of one profile.

    Attributes:
        profile: the choices.
        activation: dtype between operations.
        operands: dtype in which operands enter a matrix product.
        probabilities: dtype of attention weights in the product with the keys.
        head_operands: dtype of the operands of the last product.
    """

    def __init__(self, profile: NumericProfile, *, fp4_compressed_kv: bool) -> None:
        self.profile = profile
        self.activation = _DTYPES[profile.activation]
        self.operands = _DTYPES[profile.gemm_operands]
        self.probabilities = self.activation if profile.attention_probabilities == "activation" else torch.float32
        self.head_operands = _DTYPES[profile.lm_head]
        self._fp4_compressed_kv = fp4_compressed_kv

    def linear_input(self, x: Tensor) -> Tensor:
        """Return `x` as an FP8 or FP4 linear sees it."""
        return round_trip_fp8(x, fp8_max=self.profile.fp8_max) if self.profile.act_quant == "fp8" else x

    def packed_linear_input(self, x: Tensor) -> tuple[Tensor, ...]:
        """Return `linear_input(x)` as it travels between ranks: FP8 codes and their scales, or the numbers."""
        return quantize_fp8_rows(x, fp8_max=self.profile.fp8_max) if self.profile.act_quant == "fp8" else (x,)

    def unpacked_linear_input(self, parts: tuple[Tensor, ...]) -> Tensor:
        """Return what `packed_linear_input` packed, in the activation dtype; the same bits as `linear_input`."""
        if len(parts) == 1:
            return parts[0]
        return dequantize_fp8_tiles(parts[0], parts[1], block=(1, 32), out_dtype=self.activation)

    def grouped_linear_input(self, x: Tensor) -> Tensor:
        """Return `x` as the grouped output projection sees it."""
        return round_trip_fp8(x, fp8_max=self.profile.fp8_max) if self.profile.wo_a_input == "fp8" else x

    def engram_rows(self, x: Tensor) -> Tensor:
        """Return table rows as the Engram projection sees them."""
        return x if self.profile.engram_rows == "stored" else self.linear_input(x)

    def ffn_product(self, x: Tensor) -> Tensor:
        """Return silu(gate) * up * weight (float32) as the quantiser before `w2` sees it."""
        return x if self.profile.ffn_product == "float32" else x.to(self.activation)

    def window_row(self, x: Tensor) -> Tensor:
        """Return window keys as the cache keeps them: FP8 over the whole row, rotated channels included."""
        return x if self.profile.kv_quant == "none" else round_trip_fp8(x, fp8_max=self.profile.fp8_max)

    def compressed_row(self, x: Tensor) -> Tensor:
        """Return compressed entries as the cache keeps them: FP4 with an E4M3 scale per 16, or FP8."""
        if self.profile.kv_quant == "none":
            return x
        if self._fp4_compressed_kv:
            return round_trip_fp4_e4m3(x, scale_division=self.profile.fp4_kv_scale, scale_max=self.profile.fp8_max)
        return round_trip_fp8(x, fp8_max=self.profile.fp8_max)

    def index_row(self, x: Tensor) -> Tensor:
        """Return index queries or keys as they are scored: FP4 with a power-of-two scale per 32."""
        return x if self.profile.kv_quant == "none" else round_trip_fp4(x)
