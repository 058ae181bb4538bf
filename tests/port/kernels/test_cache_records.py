"""The bytes of cache rows: sizes, arrangement, slots, round trips."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from port.kernels.cache_records import (
    FP4_INDEX,
    FP4_MAIN,
    FP8_INDEX,
    FP8_MAIN,
    RecordFormat,
    decode_rows,
    encode_rows,
    format_of,
    read_slots,
    write_slots,
)
from port.kernels.quantize import round_trip_fp4, round_trip_fp4_e4m3, round_trip_fp8

FORMS = pytest.mark.parametrize("form", [FP4_MAIN, FP8_MAIN, FP4_INDEX, FP8_INDEX], ids=lambda form: form.name)


def rows(count: int, width: int, seed: int = 0) -> Tensor:
    return torch.randn(count, width, generator=torch.Generator().manual_seed(seed)).to(torch.bfloat16)


@pytest.mark.parametrize(
    ("form", "width", "nbytes"),
    [(FP4_MAIN, 512, 288), (FP8_MAIN, 512, 528), (FP4_INDEX, 128, 68), (FP8_INDEX, 128, 132)],
)
def test_released_rows_take_the_bytes_of_the_contract(form: RecordFormat, width: int, nbytes: int) -> None:
    assert form.record_bytes(width) == nbytes
    assert form.width_of(nbytes) == width
    assert format_of(nbytes) is form


@FORMS
def test_every_width_is_found_again_from_its_bytes(form: RecordFormat) -> None:
    for groups in range(1, 40):
        width = groups * 32
        assert form.width_of(form.record_bytes(width)) == width


@FORMS
def test_stored_rows_are_the_round_trip_of_the_model(form: RecordFormat) -> None:
    x = rows(7, 64)
    expected = {
        "fp4_main": round_trip_fp4_e4m3,
        "fp8_main": round_trip_fp8,
        "fp4_index": round_trip_fp4,
        "fp8_index": round_trip_fp8,
    }[form.name](x)
    data, scale = encode_rows(x, form)
    assert data.shape[1] == form.data_bytes(64)
    assert scale.shape[1] == form.scale_bytes(64)
    assert torch.equal(decode_rows(data, scale, form), expected)


def pool(form: RecordFormat, *, blocks: int, entries: int, width: int, apart: int) -> Tensor:
    """Return a cache whose blocks lie `apart` bytes further from each other than they need to."""
    record = form.record_bytes(width)
    root = torch.full((blocks, entries * record + apart), 7, dtype=torch.uint8)
    return root[:, : entries * record].view(blocks, entries, 1, record)


@FORMS
@pytest.mark.parametrize("apart", ["none", "one record", "uneven"])
def test_rows_written_by_slot_are_read_back_from_it(form: RecordFormat, apart: str) -> None:
    width, entries = 64, 4
    between = {"none": 0, "one record": 16 * form.record_bytes(width), "uneven": 3}[apart]
    cache = pool(form, blocks=5, entries=entries, width=width, apart=between)
    data, scale = encode_rows(rows(3, width), form)
    slots = torch.tensor([2 * entries + 3, -1, 4 * entries], dtype=torch.int32)
    before = cache.clone()
    write_slots(cache, slots, data, scale, form)
    found_data, found_scale = read_slots(cache, torch.tensor([19 - 3, 11, -1], dtype=torch.int32), form)
    assert torch.equal(found_data[:2], data[[2, 0]])
    assert torch.equal(found_scale[:2], scale[[2, 0]])
    assert not found_data[2].any()
    assert not found_scale[2].any()
    untouched = torch.tensor([block for block in range(5) if block not in (2, 4)])
    assert torch.equal(cache[untouched], before[untouched])


def test_an_interleaved_block_has_each_entrys_scales_behind_its_data() -> None:
    cache = pool(FP8_MAIN, blocks=2, entries=2, width=64, apart=0)
    data, scale = encode_rows(rows(1, 64), FP8_MAIN)
    write_slots(cache, torch.tensor([3], dtype=torch.int32), data, scale, FP8_MAIN)
    block = cache[1].flatten()
    assert torch.equal(block[66:130], data[0])
    assert torch.equal(block[130:132], scale[0])


def test_a_planar_block_has_all_scales_behind_all_data() -> None:
    cache = pool(FP4_INDEX, blocks=2, entries=4, width=64, apart=0)
    data, scale = encode_rows(rows(1, 64), FP4_INDEX)
    write_slots(cache, torch.tensor([4 + 2], dtype=torch.int32), data, scale, FP4_INDEX)
    block = cache[1].flatten()
    assert torch.equal(block[64:96], data[0])
    assert torch.equal(block[128 + 4 : 128 + 6], scale[0])


def test_fp8_rows_keep_within_the_range_asked_for() -> None:
    data, _ = encode_rows(rows(9, 64) * 100, FP8_MAIN, fp8_max=224.0)
    assert data.view(torch.float8_e4m3fn).float().abs().max() <= 224.0


@pytest.mark.parametrize("nbytes", [0, 1, 34, 289])
def test_a_record_that_no_row_fills_is_refused(nbytes: int) -> None:
    with pytest.raises(ValueError, match=rf"fp8_main: expected .* found records of {nbytes} bytes"):
        FP8_MAIN.width_of(nbytes)


def test_an_unknown_size_lists_the_released_ones() -> None:
    with pytest.raises(ValueError, match=r"288 \(fp4_main\), 528 \(fp8_main\), 68 .* found 100"):
        format_of(100)


def test_a_planar_cache_in_pieces_is_refused() -> None:
    cache = pool(FP4_INDEX, blocks=2, entries=8, width=64, apart=0)[:, ::2]
    with pytest.raises(ValueError, match="side by side for the planar format fp4_index"):
        read_slots(cache, torch.tensor([0], dtype=torch.int32), FP4_INDEX)


def test_another_dtype_is_refused() -> None:
    with pytest.raises(ValueError, match=r"expected uint8 \[blocks, entries, 1, record\]; found torch.float32"):
        read_slots(torch.zeros(2, 2, 1, 66), torch.tensor([0], dtype=torch.int32), FP8_MAIN)
