"""Stored FP8 and FP4 weights become the numbers their bytes stand for."""

import math

import pytest
import torch
from safetensors.torch import load_file

from port.kernels.dequantize import FP4_VALUES, dequantize_fp4_rows, dequantize_fp8_tiles, unpack_fp4
from port.kernels.exponents import ceil_exponents, decode_exponents
from tests.port import golden
from tests.shared import shared_path


def test_exponent_byte_is_a_power_of_two_with_the_two_special_bytes():
    values = decode_exponents(torch.arange(256, dtype=torch.uint8))
    assert values[127] == 1.0
    assert values[0].item() == 2.0**-127
    assert math.isnan(values[255].item())
    assert torch.equal(values[1:255], torch.pow(2.0, torch.arange(1, 255, dtype=torch.float64) - 127).to(torch.float32))


def test_exponents_round_up_and_keep_exact_powers():
    values = torch.tensor([1.0, 1.0000001, 1.5, 2.0, 2.0**-20, 3 * 2.0**-21])
    assert ceil_exponents(values).tolist() == [127, 128, 128, 128, 107, 108]


def test_fp8_tile_scale_belongs_to_its_32_by_32_tile():
    weight = torch.ones(40, 70).to(torch.float8_e4m3fn)
    scale = torch.tensor([[127, 128, 129], [130, 131, 132]], dtype=torch.uint8)
    dense = dequantize_fp8_tiles(weight, scale)
    assert dense[31, 31] == 1
    assert dense[31, 32] == 2
    assert dense[31, 69] == 4
    assert dense[32, 0] == 8
    assert dense[39, 69] == 32


def test_fp8_row_scale_belongs_to_one_row():
    weight = torch.ones(2, 64).to(torch.float8_e4m3fn)
    scale = torch.tensor([[127, 128], [126, 125]], dtype=torch.uint8)
    dense = dequantize_fp8_tiles(weight, scale, block=(1, 32))
    assert dense[:, ::32].tolist() == [[1.0, 2.0], [0.5, 0.25]]


def test_low_nibble_is_the_even_column():
    packed = torch.tensor([[0x21, -0x10 + 0x02]], dtype=torch.int8)  # 0x21, 0xF2
    assert unpack_fp4(packed).tolist() == [[0.5, 1.0, 1.0, -6.0]]


def test_every_fp4_code_has_its_number():
    codes = torch.arange(16, dtype=torch.uint8)
    assert unpack_fp4((codes << 4).unsqueeze(-1))[:, 1].tolist() == list(FP4_VALUES)
    assert FP4_VALUES[:8] == (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def test_bfloat16_holds_dequantized_weights_exactly():
    generator = torch.Generator().manual_seed(0)
    packed = torch.randint(-128, 128, (6, 32), dtype=torch.int8, generator=generator)
    scale = torch.randint(100, 140, (6, 2), dtype=torch.uint8, generator=generator)
    wide = dequantize_fp4_rows(packed, scale)
    assert torch.equal(wide, dequantize_fp4_rows(packed, scale, out_dtype=torch.bfloat16).to(torch.float32))


def test_scale_of_the_wrong_shape_is_refused_with_both_shapes():
    weight = torch.zeros(64, 64).to(torch.float8_e4m3fn)
    with pytest.raises(ValueError, match=r"\[2, 2\].*\[64, 64\].*found \[4, 2\]"):
        dequantize_fp8_tiles(weight, torch.zeros(4, 2, dtype=torch.uint8))
    with pytest.raises(ValueError, match=r"found \[1, 2\]"):
        dequantize_fp4_rows(torch.zeros(2, 32, dtype=torch.int8), torch.zeros(1, 2, dtype=torch.uint8))


@pytest.mark.parametrize("name", ["A", "B"])
def test_samples_equal_the_golden_numbers(name):
    units = golden.units() if name == "A" else load_file(shared_path("golden", "units.safetensors"))
    folder = golden.CHECKPOINT_A if name == "A" else shared_path("golden", name, "checkpoint")
    stored = {}
    for path in sorted(folder.glob("*.safetensors")):
        stored |= load_file(path)
    base = f"dequant.{name}.layers.1."
    linear = dequantize_fp8_tiles(stored["layers.1.attn.wq_a.weight"], stored["layers.1.attn.wq_a.scale"])
    assert torch.equal(linear, units[base + "attn.wq_a"])
    expert = dequantize_fp4_rows(stored["layers.1.ffn.experts.3.w2.weight"], stored["layers.1.ffn.experts.3.w2.scale"])
    assert torch.equal(expert, units[base + "ffn.experts.3.w2"])
    table, scale = stored["layers.1.engram.embed.weight"][:8], stored["layers.1.engram.embed.scale"][:8]
    assert torch.equal(dequantize_fp8_tiles(table, scale, block=(1, 32)), units[base + "engram.embed.rows0_8"])


def test_a_transposed_or_cut_weight_gives_the_same_numbers() -> None:
    generator = torch.Generator().manual_seed(4)
    stored = torch.randn(128, 64, generator=generator).to(torch.float8_e4m3fn)
    scale = torch.randint(118, 136, (4, 2), generator=generator).to(torch.uint8)
    expected = dequantize_fp8_tiles(stored, scale)
    transposed = stored.view(torch.uint8).t().contiguous().t().view(torch.float8_e4m3fn)
    assert torch.equal(dequantize_fp8_tiles(transposed, scale), expected)
    assert torch.equal(dequantize_fp8_tiles(stored[:96, :32], scale[:3, :1]), expected[:96, :32])
    assert torch.equal(dequantize_fp8_tiles(stored[:50], scale[:2]), expected[:50]), "tiles that are cut"
    assert torch.equal(dequantize_fp8_tiles(stored[:, :40], scale), expected[:, :40])
