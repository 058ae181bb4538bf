"""FP8 codes within a shorter range: every code, every scale, what is exact and what is lost."""

from __future__ import annotations

import pytest
import torch

from port.kernels.dequantize import dequantize_fp8_tiles
from port.kernels.fp8_range import halve_fp8_codes, largest_code, limit_fp8_tiles

CODES = torch.arange(256, dtype=torch.uint8)
FINITE = CODES[(CODES & 0x7F) != 0x7F]


def numbers(code: torch.Tensor) -> torch.Tensor:
    return code.view(torch.float8_e4m3fn).to(torch.float64)


def test_every_code_is_halved_to_the_nearest_even_one() -> None:
    halved = halve_fp8_codes(FINITE)
    # Rounding a float32 to e4m3fn goes to nearest, ties to even.
    expected = (numbers(FINITE) / 2).to(torch.float32).to(torch.float8_e4m3fn).view(torch.uint8)
    assert torch.equal(halved, expected)


def test_halving_is_exact_from_two_to_the_minus_five_on() -> None:
    exact = numbers(halve_fp8_codes(FINITE)) * 2 == numbers(FINITE)
    large = numbers(FINITE).abs() >= 2.0**-5
    assert bool(exact[large].all())
    # Below, half of the odd steps of 2^-9 lie between two codes, on both sides of zero.
    assert int((~exact).sum()) == 2 * 8
    error = (numbers(halve_fp8_codes(FINITE)) * 2 - numbers(FINITE)).abs()
    assert error.max() == 2.0**-9


@pytest.mark.parametrize(("limit", "largest"), [(448.0, 448.0), (240.0, 240.0), (239.0, 224.0), (224.0, 224.0)])
def test_the_limit_is_the_largest_code_within_it(limit: float, largest: float) -> None:
    assert numbers(torch.tensor([largest_code(limit)], dtype=torch.uint8)).item() == largest


@pytest.mark.parametrize("limit", [0.0, 100.0, 449.0])
def test_a_limit_that_one_halving_cannot_keep_is_refused(limit: float) -> None:
    with pytest.raises(ValueError, match="expected 224 to 448"):
        largest_code(limit)


@pytest.mark.parametrize("limit", [224.0, 240.0])
def test_every_code_with_every_scale_stays_the_number_it_was(limit: float) -> None:
    # One row per scale, one tile of 32 per eight codes: each tile holds one large code, so that all of them are halved.
    code = FINITE.view(-1, 2).repeat_interleave(16, dim=1).flatten()
    code = torch.cat((code, code.new_full((-code.numel() % 32,), 0)))
    code = code.view(-1, 32).clone()
    code[:, 0] = 0x7E
    code = code.flatten().expand(254, -1).contiguous()
    scale = torch.arange(254, dtype=torch.uint8).unsqueeze(1).expand(-1, code.shape[1] // 32).contiguous()
    new_code, new_scale = limit_fp8_tiles(code, scale, block=(1, 32), limit=limit)
    assert torch.equal(new_scale, scale + 1)
    assert numbers(new_code).abs().max() <= limit
    # Numbers by doubles, where no scale can underflow.
    old = numbers(code).view(254, -1, 32) * 2.0 ** (scale.double().unsqueeze(-1) - 127)
    new = numbers(new_code).view(254, -1, 32) * 2.0 ** (new_scale.double().unsqueeze(-1) - 127)
    step = 2.0 ** (scale.double().unsqueeze(-1) - 127 - 9)
    assert bool(((new - old).abs() <= step).all())
    large = old.abs() >= 16 * step
    assert torch.equal(new[large], old[large])


def test_tiles_within_the_limit_keep_their_bytes() -> None:
    code = torch.zeros(64, 96, dtype=torch.uint8)
    code[40, 70] = 0x7E  # 448, in the tile of rows 32 to 63 and columns 64 to 95
    code[41, 71] = 0x31
    code[0, 0] = 0x77  # 240 exactly
    scale = torch.full((2, 3), 120, dtype=torch.uint8)
    new_code, new_scale = limit_fp8_tiles(code, scale, block=(32, 32), limit=240.0)
    assert new_scale.tolist() == [[120, 120, 120], [120, 120, 121]]
    assert new_code[0, 0] == 0x77
    assert (new_code[40, 70], new_code[41, 71]) == (0x76, 0x29)
    before = dequantize_fp8_tiles(code.view(torch.float8_e4m3fn), scale)
    assert torch.equal(dequantize_fp8_tiles(new_code.view(torch.float8_e4m3fn), new_scale), before)


def test_tiles_at_the_edge_are_halved_too() -> None:
    code = torch.full((33, 40), 0x7E, dtype=torch.uint8)
    scale = torch.full((2, 2), 100, dtype=torch.uint8)
    new_code, new_scale = limit_fp8_tiles(code, scale, block=(32, 32), limit=240.0)
    assert new_code.unique().tolist() == [0x76]
    assert new_scale.unique().tolist() == [101]


def test_what_cannot_be_halved_is_refused() -> None:
    code, scale = torch.full((1, 32), 0x7E, dtype=torch.uint8), torch.full((1, 1), 254, dtype=torch.uint8)
    with pytest.raises(ValueError, match=r"tile \[0, 0\]: expected an exponent byte of at most 253"):
        limit_fp8_tiles(code, scale, block=(1, 32), limit=240.0)
    kept = limit_fp8_tiles(torch.full_like(code, 0x77), scale, block=(1, 32), limit=240.0)
    assert kept[1].item() == 254
    with pytest.raises(ValueError, match="exponent byte 255"):
        limit_fp8_tiles(code, scale + 1, block=(1, 32), limit=240.0)
    for nan in (0x7F, 0xFF):
        with pytest.raises(ValueError, match="expected finite FP8 codes"):
            limit_fp8_tiles(torch.full_like(code, nan), scale, block=(1, 32), limit=240.0)
