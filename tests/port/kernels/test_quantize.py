"""The quantisers are bit-equal to the golden vectors, and to slow obvious versions of themselves."""

import math

import pytest
import torch

from port.kernels.dequantize import FP4_VALUES, dequantize_fp4_rows, dequantize_fp8_tiles, unpack_fp4
from port.kernels.quantize import (
    quantize_fp4_e4m3_rows,
    quantize_fp4_rows,
    quantize_fp8_rows,
    quantize_fp8_tiles,
    round_to_fp4,
    round_trip_fp4,
    round_trip_fp4_e4m3,
    round_trip_fp8,
)
from tests.port import golden


@pytest.fixture(scope="module")
def units():
    return golden.units()


def sample_rows(*, rows=24, channels=64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    spread = torch.exp2(torch.randint(-20, 20, (rows, 1), generator=generator).float())
    return torch.randn(rows, channels, generator=generator) * spread


def test_fp8_rows_equal_the_golden_bits(units):
    codes, scale = quantize_fp8_rows(units["x"])
    assert torch.equal(codes.view(torch.uint8), units["fp8.codes"])
    assert torch.equal(scale.to(torch.float32), units["fp8.scale"])
    assert torch.equal(round_trip_fp8(units["x"]), units["fp8.dequant"])


def test_fp4_with_power_of_two_scales_equals_the_golden_bits(units):
    packed, scale = quantize_fp4_rows(units["x"])
    assert torch.equal(dequantize_fp4_rows(packed, scale), units["fp4_ue8m0_32.dequant"])
    assert torch.equal(round_trip_fp4(units["x"]), units["fp4_ue8m0_32.dequant"])


@pytest.mark.parametrize("scale_division", ["divide", "reciprocal"])
def test_fp4_with_e4m3_scales_equals_the_golden_bits(units, scale_division):
    packed, scale = quantize_fp4_e4m3_rows(units["x"], scale_division=scale_division)
    values = unpack_fp4(packed).unflatten(-1, (-1, 16)) * scale.to(torch.float32).unsqueeze(-1)
    assert torch.equal(values.flatten(-2), units["fp4_e4m3_16.dequant"])
    assert torch.equal(round_trip_fp4_e4m3(units["x"], scale_division=scale_division), units["fp4_e4m3_16.dequant"])


def test_nearest_fp4_agrees_with_a_search_over_all_codes():
    values = torch.cat((torch.linspace(-6, 6, 1201), torch.tensor([-0.0, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])))
    for value, rounded in zip(values.tolist(), round_to_fp4(values).tolist(), strict=True):
        codes = range(8)
        nearest = min(codes, key=lambda code: (abs(FP4_VALUES[code] - abs(value)), code % 2))
        assert rounded == math.copysign(FP4_VALUES[nearest], value)


def test_fp4_keeps_the_sign_of_zero():
    assert math.copysign(1.0, round_to_fp4(torch.tensor([-0.1])).item()) == -1.0
    packed, _ = quantize_fp4_rows(torch.full((1, 32), -0.0))
    assert packed.view(torch.uint8).unique().tolist() == [0x88]


def test_fp8_scale_is_the_smallest_power_of_two_that_fits():
    x = sample_rows()
    codes, scale = quantize_fp8_rows(x)
    amax = x.unflatten(-1, (-1, 32)).abs().amax(-1).clamp(min=1e-4)
    factor = scale.to(torch.float32)
    assert bool((amax <= 448 * factor).all())
    assert bool((amax > 448 * factor / 2).all())
    assert not codes.to(torch.float32).isnan().any()


def test_smaller_fp8_range_is_a_value():
    x = sample_rows()
    codes, scale = quantize_fp8_rows(x, fp8_max=224.0)
    assert codes.to(torch.float32).abs().max() <= 224
    full, full_scale = quantize_fp8_rows(x)
    assert not torch.equal(codes.view(torch.uint8), full.view(torch.uint8))
    assert bool((scale.to(torch.float32) >= full_scale.to(torch.float32)).all())


def test_all_zero_rows_stay_zero():
    zeros = torch.zeros(2, 32)
    for round_trip in (round_trip_fp8, round_trip_fp4, round_trip_fp4_e4m3):
        assert torch.equal(round_trip(zeros), zeros)


def test_round_trips_keep_bfloat16_and_are_exact_in_it():
    x = sample_rows().to(torch.bfloat16)
    for round_trip in (round_trip_fp8, round_trip_fp4, round_trip_fp4_e4m3):
        narrow = round_trip(x)
        assert narrow.dtype == torch.bfloat16
        assert torch.equal(narrow.to(torch.float32), round_trip(x.to(torch.float32)))


@pytest.mark.parametrize("shape", [(64, 96), (70, 50), (1, 32)])
def test_tile_codes_are_within_half_a_step_of_the_weight(shape):
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    codes, scale = quantize_fp8_tiles(weight)
    assert tuple(scale.shape) == (-(-shape[0] // 32), -(-shape[1] // 32))
    dense = dequantize_fp8_tiles(codes, scale)
    assert bool(((dense - weight).abs() <= weight.abs() * 2**-4 + 2**-10 * scale.to(torch.float32).max()).all())


def test_tiles_encode_what_was_decoded():
    weight = torch.randn(64, 64, generator=torch.Generator().manual_seed(2))
    codes, scale = quantize_fp8_tiles(weight)
    again, scale_again = quantize_fp8_tiles(dequantize_fp8_tiles(codes, scale))
    assert torch.equal(dequantize_fp8_tiles(again, scale_again), dequantize_fp8_tiles(codes, scale))


def test_channels_must_fill_whole_groups():
    with pytest.raises(ValueError, match="divisible by 32; found 40"):
        round_trip_fp8(torch.zeros(2, 40))
