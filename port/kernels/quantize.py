"""Floating-point rows and weights as FP8 or FP4 with their scales, and the round trips the model computes with.

Shape letters: N rows, K columns; a leading `...` means any number of leading axes. Suffix `p`: two FP4 codes per byte.

| quantiser | element | scale | smallest amax | scale rounding |
|---|---|---|---|---|
| `quantize_fp8_rows` | e4m3 | E8M0 per row and 32 | 1e-4 | up to a power of two |
| `quantize_fp4_rows` | e2m1 | E8M0 per row and 32 | 6 * 2^-126 | up to a power of two |
| `quantize_fp4_e4m3_rows` | e2m1 | E4M3 per row and 16 | 6 * 2^-9 | to nearest even |
| `quantize_fp8_tiles` | e4m3 | E8M0 per 32 x 32 tile | 1e-4 | up to a power of two |

Elements round to nearest, ties to the even code. The first three are the model's activation and cache roundings; the
last one and `quantize_fp4_rows` also encode weights for small test checkpoints.
Source: DeepSeek-V4.1 `inference/kernel.py`, revision dba1be0a; deepinfer 0.1.0 cache kernels for the E4M3 scale.
"""

from typing import Literal

import torch
from torch import Tensor

from port.kernels.exponents import ceil_exponents, decode_exponents

FP8_MAX = 448.0
FP4_MAX = 6.0
FP8_AMAX_FLOOR = 1e-4
FP4_AMAX_FLOOR = 6.0 * 2.0**-126
FP4_E4M3_AMAX_FLOOR = 6.0 * 2.0**-9

ScaleDivision = Literal["divide", "reciprocal"]


def quantize_fp8_rows(x: Tensor, *, group: int = 32, fp8_max: float = FP8_MAX) -> tuple[Tensor, Tensor]:
    """Return rows as FP8 codes and one power-of-two scale per `group` channels.

    Args:
        x: (..., K), any float dtype, K divisible by `group`.
        group: channels that share a scale.
        fp8_max: largest magnitude a code may stand for; 448 is all of e4m3, devices with a smaller e4m3 take less.

    Returns:
        float8_e4m3fn (..., K) and float8_e8m0fnu (..., K / group).
    """
    x_grouped = _group_channels(x, group)
    amax = x_grouped.abs().amax(dim=-1).clamp(min=FP8_AMAX_FLOOR)
    exponent = ceil_exponents(amax / fp8_max)
    scaled = x_grouped / decode_exponents(exponent).unsqueeze(-1)
    codes = scaled.clamp(-fp8_max, fp8_max).to(torch.float8_e4m3fn)
    return codes.flatten(-2), exponent.view(torch.float8_e8m0fnu)


def round_trip_fp8(x: Tensor, *, group: int = 32, fp8_max: float = FP8_MAX) -> Tensor:
    """Return `x` after `quantize_fp8_rows` and back: the numbers an FP8 product or an FP8 cache row works with.

    Args:
        x: (..., K), float32 or bfloat16.
        group: channels that share a scale.
        fp8_max: as for `quantize_fp8_rows`.

    Returns:
        (..., K), dtype of `x`, which holds every value exactly.
    """
    codes, scale = quantize_fp8_rows(x, group=group, fp8_max=fp8_max)
    values = _group_channels(codes, group) * decode_exponents(scale).unsqueeze(-1)
    return values.flatten(-2).to(x.dtype)


def round_to_fp4(x: Tensor) -> Tensor:
    """Return the nearest e2m1 number of each element; halves go to the even code, the sign is kept even for zero.

    Args:
        x: float32, magnitudes up to 6.

    Returns:
        float32, same shape. The grid step is 0.5 below 2, 1 from 2 to 4, and 2 above.
    """
    magnitude = x.abs()
    fine = torch.round(magnitude * 2.0) * 0.5
    middle = torch.round(magnitude)
    coarse = torch.round(magnitude * 0.5) * 2.0
    rounded = torch.where(magnitude < 2.0, fine, torch.where(magnitude < 4.0, middle, coarse))
    return torch.copysign(rounded, x)


def quantize_fp4_rows(x: Tensor, *, group: int = 32) -> tuple[Tensor, Tensor]:
    """Return rows as packed FP4 codes and one power-of-two scale per `group` channels.

    Args:
        x: (..., K), any float dtype, K divisible by `group` and even.
        group: channels that share a scale.

    Returns:
        int8 (..., K / 2), low nibble = even channel, and float8_e8m0fnu (..., K / group).
    """
    values, exponent = _fp4_values(x, group)
    return _pack_fp4(values.flatten(-2)), exponent.view(torch.float8_e8m0fnu)


def round_trip_fp4(x: Tensor, *, group: int = 32) -> Tensor:
    """Return `x` after `quantize_fp4_rows` and back: the numbers the index scores work with.

    Args:
        x: (..., K), float32 or bfloat16.
        group: channels that share a scale.

    Returns:
        (..., K), dtype of `x`.
    """
    values, exponent = _fp4_values(x, group)
    return (values * decode_exponents(exponent).unsqueeze(-1)).flatten(-2).to(x.dtype)


def quantize_fp4_e4m3_rows(
    x: Tensor, *, group: int = 16, scale_division: ScaleDivision = "divide", scale_max: float = FP8_MAX
) -> tuple[Tensor, Tensor]:
    """Return rows as packed FP4 codes and one E4M3 scale per `group` channels.

    Args:
        x: (..., K), any float dtype, K divisible by `group` and even.
        group: channels that share a scale.
        scale_division: "divide" by the scale, or multiply by its float32 "reciprocal".
        scale_max: largest scale; 448 is all of e4m3, devices with a smaller e4m3 take less, and larger rows saturate.

    Returns:
        int8 (..., K / 2) and float8_e4m3fn (..., K / group). The scale rounds to nearest, so a quotient
        may pass 6; it is clamped.
    """
    values, scale = _fp4_e4m3_values(x, group, scale_division, scale_max)
    return _pack_fp4(values.flatten(-2)), scale


def round_trip_fp4_e4m3(
    x: Tensor, *, group: int = 16, scale_division: ScaleDivision = "divide", scale_max: float = FP8_MAX
) -> Tensor:
    """Return `x` after `quantize_fp4_e4m3_rows` and back: the numbers of a compressed cache row.

    Args:
        x: (..., K), float32 or bfloat16.
        group: channels that share a scale.
        scale_division: as for `quantize_fp4_e4m3_rows`.
        scale_max: as for `quantize_fp4_e4m3_rows`.

    Returns:
        (..., K), dtype of `x`, which holds every value exactly.
    """
    values, scale = _fp4_e4m3_values(x, group, scale_division, scale_max)
    return (values * scale.to(torch.float32).unsqueeze(-1)).flatten(-2).to(x.dtype)


def quantize_fp8_tiles(
    weight_NK: Tensor, *, block: tuple[int, int] = (32, 32), fp8_max: float = FP8_MAX
) -> tuple[Tensor, Tensor]:
    """Return a matrix as FP8 codes and one power-of-two scale per tile, as checkpoints store dense linears.

    Args:
        weight_NK: (N, K), any float dtype; the last tile of an axis may be smaller.
        block: rows and columns that share a scale; (1, 32) for Engram table rows.
        fp8_max: largest magnitude a code may stand for.

    Returns:
        float8_e4m3fn (N, K) and float8_e8m0fnu (ceil(N / block[0]), ceil(K / block[1])).
    """
    rows, columns = weight_NK.shape
    tile_rows, tile_columns = -(-rows // block[0]), -(-columns // block[1])
    padded = torch.zeros(tile_rows * block[0], tile_columns * block[1], dtype=torch.float32, device=weight_NK.device)
    padded[:rows, :columns] = weight_NK
    tiles = padded.view(tile_rows, block[0], tile_columns, block[1])
    amax = tiles.abs().amax(dim=(1, 3)).clamp(min=FP8_AMAX_FLOOR)
    exponent = ceil_exponents(amax / fp8_max)
    scaled = tiles / decode_exponents(exponent)[:, None, :, None]
    codes = scaled.clamp(-fp8_max, fp8_max).view(padded.shape)[:rows, :columns]
    return codes.to(torch.float8_e4m3fn).contiguous(), exponent.view(torch.float8_e8m0fnu)


def _group_channels(x: Tensor, group: int) -> Tensor:
    channels = x.shape[-1]
    if channels % group:
        raise ValueError(f"expected a number of channels divisible by {group}; found {channels} in {list(x.shape)}.")
    return x.to(torch.float32).unflatten(-1, (channels // group, group))


def _fp4_values(x: Tensor, group: int) -> tuple[Tensor, Tensor]:
    x_grouped = _group_channels(x, group)
    amax = x_grouped.abs().amax(dim=-1).clamp(min=FP4_AMAX_FLOOR)
    exponent = ceil_exponents(amax / FP4_MAX)
    scaled = x_grouped / decode_exponents(exponent).unsqueeze(-1)
    return round_to_fp4(scaled.clamp(-FP4_MAX, FP4_MAX)), exponent


def _fp4_e4m3_values(x: Tensor, group: int, scale_division: ScaleDivision, scale_max: float) -> tuple[Tensor, Tensor]:
    x_grouped = _group_channels(x, group)
    amax = x_grouped.abs().amax(dim=-1).clamp(min=FP4_E4M3_AMAX_FLOOR)
    scale = (amax / FP4_MAX).clamp(max=scale_max).to(torch.float8_e4m3fn)
    divisor = scale.to(torch.float32).unsqueeze(-1)
    scaled = x_grouped / divisor if scale_division == "divide" else x_grouped * divisor.reciprocal()
    return round_to_fp4(scaled.clamp(-FP4_MAX, FP4_MAX)), scale


def _pack_fp4(values: Tensor) -> Tensor:
    magnitude = values.abs()
    # Below 2 the codes count halves; 2, 3, 4 and 6 are codes 4 to 7.
    code = torch.where(magnitude < 2.0, magnitude * 2.0, torch.where(magnitude < 6.0, magnitude + 2.0, magnitude + 1.0))
    code = code.to(torch.int32) + (torch.signbit(values).to(torch.int32) << 3)
    return (code[..., 0::2] | (code[..., 1::2] << 4)).to(torch.uint8).view(torch.int8)
