"""A weight and its scale are one object: encoded, sliced together, dequantised to the numbers the golden data has."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from port.checkpoint import encode_fp4, encode_fp8, open_checkpoint
from port.checkpoint.codecs import QuantizedTensor
from port.checkpoint.shard_writer import shard_bytes
from port.errors import CheckpointError
from tests.port.checkpoint.test_writer import FIXTURE
from tests.shared import shared_path

PIECES = [slice(None), slice(0, 32), slice(6, 50), slice(64, None), slice(40, 40)]


def _numbers(rows: int, columns: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    numbers = torch.randn(rows, columns, generator=generator)
    return numbers * torch.exp2(torch.randint(-6, 7, (rows, 1), generator=generator).float())


def _encodings() -> dict[str, QuantizedTensor]:
    numbers = _numbers(100, 96)
    return {
        "fp8 tiles": encode_fp8(numbers, name="x"),
        "fp8 rows": encode_fp8(numbers, name="x", block=(1, 32)),
        "fp8 large tiles": encode_fp8(numbers, name="x", block=(64, 48)),
        "fp4": encode_fp4(numbers, name="x"),
    }


@pytest.mark.parametrize("folder", ["A", "B"])
def test_golden_weights_dequantise_to_the_golden_numbers(folder: str) -> None:
    units = load_file(shared_path("golden", "units.safetensors"))
    checkpoint = open_checkpoint(shared_path("golden", folder, "checkpoint"))
    wanted = {
        name.removeprefix(f"dequant.{folder}."): numbers
        for name, numbers in units.items()
        if name.startswith(f"dequant.{folder}.")
    }
    assert len(wanted) == 3
    for name, numbers in wanted.items():
        stem, _, rows = name.partition(".rows0_")
        found = checkpoint.read_quantized(f"{stem}.weight", slice(0, int(rows) if rows else None)).dequantize()
        assert torch.equal(found, numbers), name


def test_encoding_rows_gives_the_golden_codes_and_scales() -> None:
    units = load_file(shared_path("golden", "units.safetensors"))
    fp8 = encode_fp8(units["x"], block=(1, 32))
    assert torch.equal(fp8.weight.view(torch.uint8), units["fp8.codes"])
    assert torch.equal(fp8.scale.to(torch.float32), units["fp8.scale"])
    assert torch.equal(fp8.dequantize(), units["fp8.dequant"])
    assert torch.equal(encode_fp4(units["x"]).dequantize(), units["fp4_ue8m0_32.dequant"])


@pytest.mark.parametrize("kind", _encodings())
def test_a_slice_dequantises_to_a_slice_of_the_whole(kind: str) -> None:
    whole = _encodings()[kind]
    numbers = whole.dequantize()
    for rows, columns in product(PIECES, PIECES):
        piece = whole.slice(rows, columns)
        assert torch.equal(piece.dequantize(), numbers[rows, columns]), (rows, columns)
        again = piece.slice(slice(2, 20), slice(2, 30))
        assert torch.equal(again.dequantize(), numbers[rows, columns][2:20, 2:30])


@pytest.mark.parametrize("kind", _encodings())
def test_a_slice_read_from_disk_brings_exactly_its_scales(kind: str, tmp_path: Path) -> None:
    whole = _encodings()[kind]
    weight = whole.weight.view(torch.int8) if whole.packed else whole.weight
    shard = shard_bytes({"l.experts.0.x.weight": weight, "l.experts.0.x.scale": whole.scale})
    (tmp_path / "model.safetensors").write_bytes(shard)
    tile = {"quantization_config": {"weight_block_size": list(whole.block)}}  # shapes alone do not tell 48 from 64
    (tmp_path / "config.json").write_text(json.dumps(tile), encoding="utf-8")
    checkpoint = open_checkpoint(tmp_path)
    numbers = whole.dequantize()
    for rows, columns in product(PIECES, PIECES):
        piece = checkpoint.read_quantized("l.experts.0.x.weight", rows, columns)
        assert torch.equal(piece.dequantize(), numbers[rows, columns]), (rows, columns)
    pair = checkpoint.quantized_entry("l.experts.0.x.weight")
    assert (pair.packed, pair.shape) == (whole.packed, (100, 96))
    piece = checkpoint.read_quantized("l.experts.0.x.weight", slice(0, 1))
    assert piece.scale.shape == (1, -(-96 // whole.block[1]))


def test_encoding_what_was_dequantised_changes_nothing() -> None:
    checkpoint = open_checkpoint(FIXTURE)
    for name in ("layers.0.attn.wq_b.weight", "layers.4.engram.embed.weight", "layers.2.ffn.experts.3.w2.weight"):
        stored = checkpoint.read_quantized(name)
        numbers = stored.dequantize()
        again = encode_fp4(numbers) if stored.packed else encode_fp8(numbers, block=stored.block)
        assert torch.equal(again.dequantize(), numbers), name


def test_bfloat16_holds_the_numbers_exactly() -> None:
    for encoded in _encodings().values():
        assert torch.equal(encoded.dequantize(torch.bfloat16).float(), encoded.dequantize())


def test_every_element_meets_its_own_scale() -> None:
    numbers = torch.ones(64, 64)
    numbers[32:, :32] = 8.0
    numbers[5, 40] = 2.0**10
    encoded = encode_fp8(numbers)
    exponents = encoded.scale.view(torch.uint8).int() - 127
    assert (exponents[1, 0] - exponents[0, 0]).item() == 3
    assert torch.equal(encoded.dequantize()[32:, :32], numbers[32:, :32])


@pytest.mark.parametrize("columns", [slice(1, 4), slice(0, 3)])
def test_half_a_byte_cannot_be_sliced(columns: slice) -> None:
    with pytest.raises(CheckpointError, match=r"x: expected even column borders, because two FP4 codes share a byte"):
        _encodings()["fp4"].slice(slice(None), columns)


def test_a_step_is_refused() -> None:
    with pytest.raises(CheckpointError, match=r"x: expected slices with step 1; found step 2 on axis 0"):
        _encodings()["fp8 tiles"].slice(slice(0, 10, 2))


def test_nan_scales_and_codes_become_nan_not_numbers(tmp_path: Path) -> None:
    weight = torch.full((64, 64), 0x38, dtype=torch.uint8)
    weight[40, 3] = 0x7F
    scale = torch.tensor([[127, 255], [0, 254]], dtype=torch.uint8)
    tensors = {"x.weight": weight.view(torch.float8_e4m3fn), "x.scale": scale.view(torch.float8_e8m0fnu)}
    (tmp_path / "model.safetensors").write_bytes(shard_bytes(tensors))
    numbers = open_checkpoint(tmp_path).read_quantized("x.weight").dequantize()
    assert int(numbers.isnan().sum()) == 32 * 32 + 1
    assert numbers[63, 0] == 2.0**-127
    assert numbers[63, 63] == 2.0**127
