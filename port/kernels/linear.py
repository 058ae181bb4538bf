"""Matrix products with float32 sums, over dense weights and over weights still in their stored form.

Shape letters: T tokens, N output features, K input features, G output groups, O features per group.

Both forms walk the output features in the same pieces, so that a product over stored weights has the same bits as
one over their dense copy, and no piece makes more than `MAX_DENSE_ELEMENTS` temporary numbers.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from port.kernels.dequantize import dequantize_fp4_rows, dequantize_fp8_tiles

MAX_DENSE_ELEMENTS = 32 * 1024 * 1024
"""Most weights dequantised at a time: 128 MiB of float32, the workspace a 24 GB core can spare."""

MIN_GEMM_ROWS = 8
"""CPU libraries sum in another order for one to three rows; padding keeps a row's bits independent of the batch."""

_SCALE_ROWS = 32


def linear(
    x_TK: Tensor,
    weight_NK: Tensor,
    *,
    operands: torch.dtype,
    out_dtype: torch.dtype,
    max_elements: int = MAX_DENSE_ELEMENTS,
) -> Tensor:
    """Return `x @ weight.T` for a dense weight.

    Args:
        x_TK: (T, K), any float dtype.
        weight_NK: (N, K), any float dtype.
        operands: dtype in which both sides enter the product, float32 or bfloat16.
        out_dtype: dtype of the result.
        max_elements: weights used at a time.

    Returns:
        (T, N) in `out_dtype`.

    Numerics: sums in float32, one rounding at the end.
    """
    rows = x_TK.shape[0]
    x_TK = _pad_rows(x_TK).to(operands)
    pieces = [
        _product(x_TK, weight_NK[begin:end], operands, out_dtype)
        for begin, end in _pieces(weight_NK.shape[0], weight_NK.shape[1], max_elements)
    ]
    return _join(pieces)[:rows]


def stored_linear(
    x_TK: Tensor,
    weight: Tensor,
    scale: Tensor,
    *,
    operands: torch.dtype,
    out_dtype: torch.dtype,
    max_elements: int = MAX_DENSE_ELEMENTS,
) -> Tensor:
    """Return `x @ weight.T` for a weight in stored form, dequantised piece by piece along N.

    Args:
        x_TK: (T, K), any float dtype.
        weight: float8_e4m3fn (N, K), or int8 (N, K / 2) of packed FP4 codes.
        scale: float8_e8m0fnu (ceil(N / 32), ceil(K / 32)) for FP8, (N, K / 32) for FP4.
        operands: dtype in which both sides enter the product; both dtypes hold the weights exactly.
        out_dtype: dtype of the result.
        max_elements: weights dequantised at a time.

    Returns:
        (T, N) in `out_dtype`, bit-identical to `linear` over `dense_weight(weight, scale)`.
    """
    rows = x_TK.shape[0]
    columns = weight.shape[1] * (2 if weight.dtype == torch.int8 else 1)
    x_TK = _pad_rows(x_TK).to(operands)
    pieces = []
    for begin, end in _pieces(weight.shape[0], columns, max_elements):
        dense = _dense_rows(weight, scale, begin, end, operands)
        pieces.append(_product(x_TK, dense, operands, out_dtype))
        # Gone before the next one is made: two pieces at a time would double the peak.
        del dense
    return _join(pieces)[:rows]


def dense_weight(weight: Tensor, scale: Tensor, *, out_dtype: torch.dtype) -> Tensor:
    """Return a stored FP8 or FP4 weight as numbers.

    Args:
        weight: float8_e4m3fn (N, K), or int8 (N, K / 2) of packed FP4 codes.
        scale: as for `stored_linear`.
        out_dtype: float32 or bfloat16; both are exact.

    Returns:
        (N, K) in `out_dtype`.
    """
    return _dense_rows(weight, scale, 0, weight.shape[0], out_dtype)


def grouped_linear(x_TGK: Tensor, weight_GOK: Tensor, *, operands: torch.dtype, out_dtype: torch.dtype) -> Tensor:
    """Return one product per group: group g of the input meets its own O x K matrix.

    Args:
        x_TGK: (T, G, K), any float dtype.
        weight_GOK: (G, O, K), any float dtype.
        operands: dtype in which both sides enter the product.
        out_dtype: dtype of the result.

    Returns:
        (T, G, O) in `out_dtype`.

    Numerics: sums in float32, one rounding at the end.
    """
    rows = x_TGK.shape[0]
    x_GTK = _pad_rows(x_TGK).to(operands).transpose(0, 1)
    out_GTO = torch.bmm(x_GTK, weight_GOK.to(operands).transpose(1, 2))
    return out_GTO.transpose(0, 1)[:rows].to(out_dtype)


def _product(x_TK: Tensor, weight_NK: Tensor, operands: torch.dtype, out_dtype: torch.dtype) -> Tensor:
    if operands == torch.bfloat16 and out_dtype == torch.float32:
        # A bfloat16 product would round its result; the same products summed in float32 keep it.
        return F.linear(x_TK.to(torch.float32), weight_NK.to(operands).to(torch.float32))
    return F.linear(x_TK, weight_NK.to(operands)).to(out_dtype)


def _pieces(rows: int, columns: int, max_elements: int) -> list[tuple[int, int]]:
    step = max(max_elements // columns // _SCALE_ROWS * _SCALE_ROWS, _SCALE_ROWS)
    return [(begin, min(begin + step, rows)) for begin in range(0, rows, step)]


def _dense_rows(weight: Tensor, scale: Tensor, begin: int, end: int, out_dtype: torch.dtype) -> Tensor:
    if weight.dtype == torch.int8:
        return dequantize_fp4_rows(weight[begin:end], scale[begin:end], out_dtype=out_dtype)
    tiles = scale[begin // _SCALE_ROWS : -(-end // _SCALE_ROWS)]
    return dequantize_fp8_tiles(weight[begin:end], tiles, out_dtype=out_dtype)


def _pad_rows(x: Tensor) -> Tensor:
    missing = MIN_GEMM_ROWS - x.shape[0]
    return x if missing <= 0 else torch.cat((x, x.new_zeros(missing, *x.shape[1:])))


def _join(pieces: list[Tensor]) -> Tensor:
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=-1)
