"""The factory of RMSNorm outside the hyper-connections: residual, norm, and the FP8 cast of what a linear reads."""

from collections.abc import Callable

import torch
from torch import Tensor

from port.kernels.normalize import rms_norm
from port.kernels.quantize import quantize_fp8_rows
from port.tilelang_ops.neuron.arguments import CODES, Arguments, Dtype, as_dtype, at_least
from port.tilelang_ops.neuron.scales import scale_dtype, write_codes, write_exponents

_FLOAT32 = torch.float32


def norm_tl(
    hidden: int,
    dtype: Dtype,
    return_dtype: Dtype,
    reduce_dtype: Dtype = _FLOAT32,
    has_residual: bool = False,
    eps: float = 1e-20,
    out_scale: float = 1.0,
    do_fp8_cast: bool = False,
    num_per_channels: int = 32,
    col_major_sf: bool = False,
    round_sf: bool = True,
    packed_ue8m0: bool = True,
    return_origin_out: bool = False,
    xdim: int = 2,
    shared_sf_block_m: int = 0,
    x_stride: int = 0,
    residual_stride: int = 0,
    y_stride: int = 0,
    residual_out_stride: int = 0,
    sf_stride: int = 0,
    origin_out_stride: int = 0,
) -> Callable[..., tuple[Tensor, ...]]:
    """Return the norm kernel: `(x, weight, residual) → y, residual_out, sf, extra_sf, origin_out`.

    Args:
        hidden: channels of a row.
        dtype: of `x`, `residual` and `residual_out`.
        return_dtype: what the norm rounds to; dtype of `y` without the cast, and of `origin_out`.
        reduce_dtype: float32, the only one.
        has_residual: add `residual` to `x` first, in `dtype`; the sum goes to `residual_out` where that is given.
        eps: added to the mean square.
        out_scale: factor on the result, before it is rounded.
        do_fp8_cast: `y` holds FP8 codes of the rounded norm, and `sf` their scales.
        num_per_channels: channels that share a scale.
        col_major_sf: `sf` lies column by column.
        round_sf: scales are powers of two; True is the only value.
        packed_ue8m0: scales are exponent bytes packed as `PLATFORM.fp8_sf_type`; float32 numbers otherwise.
        return_origin_out: also return the norm without the cast.
        xdim: axes of `x`, 2 or 3.
        shared_sf_block_m: 0; the second scale layout belongs to the fused MoE, which the platform does not use.
        x_stride: elements from one row of `x` to the next; 0 for a contiguous tensor, here and below.
        residual_stride: of `residual`.
        y_stride: of `y`.
        residual_out_stride: of `residual_out`.
        sf_stride: of `sf`; from one column to the next where it lies column by column.
        origin_out_stride: of `origin_out`.

    Returns:
        The kernel. `sf` is [rows, hidden / num_per_channels], or half as many columns where packed.

    Raises:
        NotImplementedError: a layout or rounding that no path of this platform uses.
    """
    name = "norm_tl"
    at_least(name, 1, hidden=hidden, num_per_channels=num_per_channels)
    at_least(name, 2, xdim=xdim)
    row_dtype, out_dtype = as_dtype(name, "dtype", dtype), as_dtype(name, "return_dtype", return_dtype)
    if shared_sf_block_m:
        raise NotImplementedError(
            f"{name}: shared_sf_block_m: the extra layout is for the fused MoE, and PLATFORM.moe_path is unfused. "
            "Use 0."
        )
    if (do_fp8_cast and not round_sf) or as_dtype(name, "reduce_dtype", reduce_dtype) != _FLOAT32:
        raise NotImplementedError(f"{name}: only power-of-two scales and sums in float32; use round_sf=True, float32.")
    groups = hidden // num_per_channels
    from port.platform import PLATFORM

    fp8_max, packed = PLATFORM.fp8_max, scale_dtype()

    def kernel(
        x: Tensor,
        weight: Tensor,
        residual: Tensor | None,
        y: Tensor,
        residual_out: Tensor | None = None,
        sf: Tensor | None = None,
        extra_sf: Tensor | None = None,
        origin_out: Tensor | None = None,
    ) -> tuple[Tensor, ...]:
        given = Arguments(name)
        lead = ("b", "s", "t")[: xdim - 1]
        shape = (*lead, hidden)
        given.check("x", x, row_dtype, shape, row_stride=x_stride)
        given.check("weight", weight, (torch.bfloat16, _FLOAT32), (hidden,))
        given.check("y", y, CODES if do_fp8_cast else out_dtype, shape, row_stride=y_stride)
        given.present("residual", residual, has_residual, f"has_residual is {has_residual}")
        given.present("sf", sf, do_fp8_cast, f"do_fp8_cast is {do_fp8_cast}")
        given.present("extra_sf", extra_sf, False, "shared_sf_block_m is 0")
        given.present("origin_out", origin_out, return_origin_out, f"return_origin_out is {return_origin_out}")
        if residual is not None:
            given.check("residual", residual, row_dtype, shape, row_stride=residual_stride)
            x = x + residual
        elif residual_out is not None:
            given.present("residual_out", residual_out, False, "has_residual is False")
        if residual_out is not None:
            given.check("residual_out", residual_out, row_dtype, shape, row_stride=residual_out_stride)
            residual_out.copy_(x)
        normed = (rms_norm(x.to(_FLOAT32), weight, eps=eps) * out_scale).to(out_dtype)
        if origin_out is not None:
            given.check("origin_out", origin_out, out_dtype, shape, row_stride=origin_out_stride)
            origin_out.copy_(normed)
        if sf is None:
            y.copy_(normed)
        else:
            codes, scale = quantize_fp8_rows(normed, group=num_per_channels, fp8_max=fp8_max)
            columns = groups // packed.itemsize if packed_ue8m0 else groups
            laid = sf.transpose(-1, -2) if col_major_sf else sf
            laid_shape = (*lead[:-1], columns, lead[-1]) if col_major_sf else (*lead, columns)
            given.check("sf", laid, packed if packed_ue8m0 else _FLOAT32, laid_shape, row_stride=sf_stride)
            write_codes(y, codes)
            write_exponents(sf, scale)
        return tuple(tensor for tensor in (y, residual_out, sf, extra_sf, origin_out) if tensor is not None)

    return kernel
