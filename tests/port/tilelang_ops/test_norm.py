"""RMSNorm with residual and cast, against loops and the quantiser of linears."""

from __future__ import annotations

import math

import pytest
import torch

from port import tilelang_ops as ops
from port.kernels.exponents import decode_exponents
from port.kernels.quantize import quantize_fp8_rows, round_trip_fp8
from tests.port.tilelang_ops.numbers import bf16

BF16, F32 = torch.bfloat16, torch.float32


def test_rows_are_divided_by_their_root_mean_square() -> None:
    x, weight, y = bf16(2, 8), bf16(8, seed=1), torch.empty(2, 8, dtype=BF16)
    assert ops.norm_tl(8, BF16, BF16, eps=1e-6)(x, weight, None, y) == (y,)
    for row in range(2):
        values = x[row].float().tolist()
        root = math.sqrt(sum(v * v for v in values) / 8 + 1e-6)
        wanted = torch.tensor([w * v / root for v, w in zip(values, weight.float().tolist(), strict=True)])
        assert torch.allclose(y[row].float(), wanted, rtol=2**-8)


def test_the_residual_is_added_in_the_dtype_of_the_input() -> None:
    x, residual, weight = bf16(3, 8), bf16(3, 8, seed=2), bf16(8, seed=1)
    y, summed = torch.empty_like(x), torch.empty_like(x)
    assert ops.norm_tl(8, "bfloat16", "bfloat16", has_residual=True)(x, weight, residual, y, summed) == (y, summed)
    assert torch.equal(summed, (x.float() + residual.float()).to(BF16))
    plain = torch.empty_like(x)
    ops.norm_tl(8, BF16, BF16)(summed, weight, None, plain)
    assert torch.equal(y, plain)


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("col_major", [True, False])
def test_the_cast_is_what_a_linear_reads(packed: bool, col_major: bool) -> None:
    x, weight = bf16(3, 128), bf16(128, seed=1)
    normed = torch.empty_like(x)
    y = torch.empty(3, 128, dtype=torch.float8_e4m3fn)
    columns, dtype = (2, torch.int16) if packed else (4, F32)
    sf = torch.zeros(columns, 3, dtype=dtype).t() if col_major else torch.zeros(3, columns, dtype=dtype)
    kernel = ops.norm_tl(128, BF16, BF16, F32, False, 1e-20, 1.0, True, 32, col_major, True, packed, True)
    assert kernel(x, weight, None, y, None, sf, None, normed) == (y, sf, normed)
    codes, exponents = quantize_fp8_rows(normed)
    assert torch.equal(y.view(torch.uint8), codes.view(torch.uint8))
    scale = decode_exponents(sf.contiguous().view(torch.uint8)) if packed else sf
    assert torch.equal(scale, decode_exponents(exponents))
    values = (y.float().unflatten(1, (4, 32)) * scale.unsqueeze(-1)).flatten(1)
    assert torch.equal(values.to(BF16), round_trip_fp8(normed))


def test_a_factor_is_applied_before_the_one_rounding() -> None:
    x, weight = bf16(2, 8), bf16(8, seed=1)
    wide, y = torch.empty(2, 8, dtype=F32), torch.empty(2, 8, dtype=BF16)
    ops.norm_tl(8, BF16, F32)(x, weight, None, wide)
    ops.norm_tl(8, BF16, BF16, out_scale=0.3)(x, weight, None, y)
    assert torch.equal(y, (wide * 0.3).to(BF16))


def test_three_axes_and_rows_that_lie_apart() -> None:
    wide, weight = bf16(2, 3, 12), bf16(8, seed=1)
    x, y, plain = wide[..., :8], torch.empty(2, 3, 8, dtype=BF16), torch.empty(6, 8, dtype=BF16)
    ops.norm_tl(8, BF16, BF16, xdim=3, x_stride=12)(x, weight, None, y)
    ops.norm_tl(8, BF16, BF16)(x.contiguous().view(6, 8), weight, None, plain)
    assert torch.equal(y.flatten(0, 1), plain)
    with pytest.raises(
        ValueError, match=r"x: expected bfloat16 \[b, s, 8\], contiguous; found .* strides \(36, 12, 1\)"
    ):
        ops.norm_tl(8, BF16, BF16, xdim=3)(x, weight, None, y)


def test_layouts_of_other_platforms_are_refused() -> None:
    with pytest.raises(NotImplementedError, match=r"fused MoE, and PLATFORM\.moe_path is unfused\. Use 0"):
        ops.norm_tl(8, BF16, BF16, shared_sf_block_m=128)
    with pytest.raises(NotImplementedError, match="round_sf=True"):
        ops.norm_tl(32, BF16, BF16, do_fp8_cast=True, round_sf=False)
    with pytest.raises(ValueError, match="sf: expected a tensor, because do_fp8_cast is True; found None"):
        ops.norm_tl(32, BF16, BF16, do_fp8_cast=True)(bf16(1, 32), bf16(32), None, bf16(1, 32).to(torch.float8_e4m3fn))
