"""Stored FP8 and FP4 weights as floating-point numbers. Exact: every result is a small integer times a power of two.

Shape letters: N rows (output features), K columns (input features), and suffix `p` for two FP4 codes packed in a byte.

| stored as | element | scale | used by |
|---|---|---|---|
| `dequantize_fp8_tiles`, block (32, 32) | e4m3 | one E8M0 byte per 32 x 32 tile | dense linears |
| `dequantize_fp8_tiles`, block (1, 32) | e4m3 | one E8M0 byte per row and 32 columns | Engram table rows |
| `dequantize_fp4_rows` | e2m1, low nibble = even column | one E8M0 byte per row and 32 columns | routed experts |

Not here: choosing how many rows to dequantise at a time; that belongs to the caller (`port/kernels/linear.py`).
"""

import torch
from torch import Tensor

from port.kernels.exponents import decode_exponents

_FP4_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
FP4_VALUES = (*_FP4_MAGNITUDES, *(-magnitude for magnitude in _FP4_MAGNITUDES))
"""The number each 4-bit code stands for: bit 3 is the sign, bits 0-2 index the magnitude."""


def dequantize_fp8_tiles(
    weight_NK: Tensor, scale: Tensor, *, block: tuple[int, int] = (32, 32), out_dtype: torch.dtype = torch.float32
) -> Tensor:
    """Return an FP8 matrix as numbers: element (r, c) times the scale of tile (r // block[0], c // block[1]).

    Args:
        weight_NK: float8_e4m3fn (N, K).
        scale: float8_e8m0fnu or uint8 exponents, or the numbers in a wider float type, of shape
            (ceil(N / block[0]), ceil(K / block[1])).
        block: rows and columns that share a scale; (1, 32) for Engram table rows.
        out_dtype: dtype of the result; float32 and bfloat16 hold every value exactly.

    Returns:
        (N, K) in `out_dtype`.

    Memory: one float32 copy of the weight where the tiles divide it evenly, and three otherwise.

    Raises:
        ValueError: a scale whose shape does not cover the weight.
    """
    rows, columns = weight_NK.shape
    expected = (-(-rows // block[0]), -(-columns // block[1]))
    _check_scale_shape(scale, expected, tuple(weight_NK.shape), block)
    factor = _scale_factor(scale)
    if rows % block[0] == 0 and columns % block[1] == 0 and weight_NK.numel():
        # In place over a view of tiles: a scale written out per element would take as much memory as the result.
        dense_NK = weight_NK.to(torch.float32, memory_format=torch.contiguous_format)
        dense_NK.view(expected[0], block[0], expected[1], block[1]).mul_(factor[:, None, :, None])
        return dense_NK.to(out_dtype)
    if block[0] > 1:
        factor = factor.repeat_interleave(block[0], dim=0)[:rows]
    factor = factor.repeat_interleave(block[1], dim=1)[:, :columns]
    return (weight_NK.to(torch.float32) * factor).to(out_dtype)


def unpack_fp4(packed_NKp: Tensor) -> Tensor:
    """Return the numbers of packed FP4 codes, before any scale.

    Args:
        packed_NKp: int8 or uint8 (..., K / 2), two codes per byte, low nibble = even column.

    Returns:
        float32 (..., K).
    """
    byte = packed_NKp.view(torch.uint8).to(torch.int32)
    codes = torch.stack((byte & 0xF, byte >> 4), dim=-1).flatten(-2)
    table = torch.tensor(FP4_VALUES, dtype=torch.float32, device=packed_NKp.device)
    return torch.nn.functional.embedding(codes, table.unsqueeze(1)).squeeze(-1)


def dequantize_fp4_rows(
    packed_NKp: Tensor, scale: Tensor, *, group: int = 32, out_dtype: torch.dtype = torch.float32
) -> Tensor:
    """Return a packed FP4 matrix as numbers: each code times the scale of its row and group of columns.

    Args:
        packed_NKp: int8 or uint8 (N, K / 2), low nibble = even column.
        scale: float8_e8m0fnu or uint8 exponents, or the numbers in a wider float type, of shape (N, ceil(K / group)).
        group: consecutive columns that share a scale.
        out_dtype: dtype of the result; float32 and bfloat16 hold every value exactly.

    Returns:
        (N, K) in `out_dtype`.

    Raises:
        ValueError: a scale whose shape does not cover the weight.
    """
    rows, columns = packed_NKp.shape[0], packed_NKp.shape[1] * 2
    _check_scale_shape(scale, (rows, -(-columns // group)), (rows, columns), (1, group))
    factor = _scale_factor(scale).repeat_interleave(group, dim=1)[:, :columns]
    return (unpack_fp4(packed_NKp) * factor).to(out_dtype)


def _scale_factor(scale: Tensor) -> Tensor:
    is_exponent = scale.dtype in (torch.float8_e8m0fnu, torch.uint8)
    return decode_exponents(scale) if is_exponent else scale.to(torch.float32)


def _check_scale_shape(
    scale: Tensor, expected: tuple[int, int], weight_shape: tuple[int, ...], block: tuple[int, int]
) -> None:
    if tuple(scale.shape) != expected:
        raise ValueError(
            f"scale: expected shape {list(expected)}, one per {block[0]} x {block[1]} elements of a weight "
            f"{list(weight_shape)}; found {list(scale.shape)}. A weight and its scale must be sliced together."
        )
