"""Rows stored into caches and loaded back, row by row against the quantisers of the model."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from port import tilelang_ops as ops
from port.kernels.cache_records import FP4_INDEX, FP4_MAIN, FP8_INDEX, FP8_MAIN, RecordFormat, decode_rows
from port.kernels.exponents import decode_exponents
from port.kernels.normalize import rms_norm
from port.kernels.quantize import round_trip_fp4, round_trip_fp4_e4m3, round_trip_fp8
from port.kernels.rotary import rotate_tail
from tests.port.tilelang_ops.numbers import bf16, f32, ints

ROUND_TRIPS: dict[str, tuple[RecordFormat, Callable[[Tensor], Tensor]]] = {
    "fp4_main": (FP4_MAIN, round_trip_fp4_e4m3),
    "fp8_main": (FP8_MAIN, round_trip_fp8),
    "fp4_index": (FP4_INDEX, round_trip_fp4),
    "fp8_index": (FP8_INDEX, round_trip_fp8),
}
BLOCKS, ENTRIES, WIDTH = 5, 4, 64
by_layout = pytest.mark.parametrize("layout", ROUND_TRIPS)
fused = ops.fused_norm_rope_hadamard_cast_store_kvcache_tl


def new_cache(layout: str) -> Tensor:
    record = ROUND_TRIPS[layout][0].record_bytes(WIDTH)
    return torch.zeros(BLOCKS, ENTRIES, 1, record, dtype=torch.uint8)


def record_of(cache: Tensor, slot: int, form: RecordFormat) -> Tensor:
    """The numbers at a slot, from the bytes where the contract puts them."""
    flat, entry = cache[slot // ENTRIES].flatten(), slot % ENTRIES
    data, scale = form.data_bytes(WIDTH), form.scale_bytes(WIDTH)
    if form.planar:
        begin = ENTRIES * data + entry * scale
        return decode_rows(flat[entry * data : (entry + 1) * data], flat[begin : begin + scale], form)
    begin = entry * (data + scale)
    return decode_rows(flat[begin : begin + data], flat[begin + data : begin + data + scale], form)


@by_layout
def test_rows_are_stored_at_their_slots_and_minus_one_is_skipped(layout: str) -> None:
    form, round_trip = ROUND_TRIPS[layout]
    kv, cache, slots = bf16(4, WIDTH), new_cache(layout), [7, -1, 4, 19]
    assert ops.store_kv_cache_tl(layout, ENTRIES, 8, 1)(kv, cache, ints(slots)) is cache
    for slot in range(4, BLOCKS * ENTRIES):
        found = record_of(cache, slot, form)
        wanted = round_trip(kv[slots.index(slot)]) if slot in slots else torch.zeros(WIDTH, dtype=torch.bfloat16)
        assert torch.equal(found, wanted)


@by_layout
def test_segments_are_copied_in_any_order(layout: str) -> None:
    form, round_trip = ROUND_TRIPS[layout]
    kv, cache = bf16(16, WIDTH), new_cache(layout)
    ops.store_kv_cache_tl(layout, ENTRIES)(kv, cache, ints(list(range(4, 20))))
    # (block, begin, end, first row); rows 3 and 9 are covered by nothing.
    segments = [(4, 1, 4, 6), (2, 0, 2, 1), (-1, 0, 2, 4), (3, 2, 2, 9), (1, 3, 4, 0)]
    wanted = {}
    for block, begin, end, first in segments:
        for i in range(end - begin):
            zero = torch.zeros(WIDTH, dtype=torch.bfloat16)
            wanted[first + i] = zero if block < 0 else round_trip(kv[(block - 1) * ENTRIES + begin + i])
    kernel = ops.load_paged_kv_cache_tl(layout, ENTRIES, None, 64)
    if form.planar:
        values = torch.full((10, form.data_bytes(WIDTH)), 3, dtype=torch.uint8)
        scales = torch.full((10, form.scale_bytes(WIDTH) // 2), 3, dtype=torch.int16)
        kernel(ints(segments), cache, values, scales)
        found = decode_rows(values, scales.view(torch.uint8), form)
        untouched = [(values[row] == 3).all() and (scales[row] == 3).all() for row in (3, 9)]
    else:
        found = torch.full((10, WIDTH), 3.0, dtype=torch.bfloat16)
        kernel(ints(segments), cache, found)
        untouched = [(found[row] == 3).all() for row in (3, 9)]
    assert all(untouched)
    assert sorted(wanted) == [0, 1, 2, 4, 5, 6, 7, 8]
    assert all(torch.equal(found[row], row_wanted) for row, row_wanted in wanted.items())


def rotation(positions: list[int], width: int) -> tuple[Tensor, Tensor, Tensor]:
    table = f32(40, width, seed=4)
    return table, table[positions, : width // 2], table[positions, width // 2 :]


@pytest.mark.parametrize("layout", [None, "fp8_main", "fp4_main", "fp4_index"])
@pytest.mark.parametrize("conjugate", [False, True])
def test_the_stages_round_one_after_the_other(layout: str | None, conjugate: bool) -> None:
    x, weight, positions = bf16(3, 2, WIDTH), bf16(WIDTH, seed=1), [5, 0, 31]
    table, cosine, sine = rotation(positions, 16)
    out, tapped = torch.empty_like(x), torch.empty_like(x)
    options = {"has_norm": True, "eps": 1e-6, "has_rope": True, "rope_dim": 16, "conjugate": conjugate}
    kernel = fused(2, WIDTH, cast=layout, tap="norm", **options)
    assert kernel(x, weight, ints(positions), table, out, None, tapped) == (out, tapped)
    for row in range(3):
        for head in range(2):
            normed = rms_norm(x[row, head], weight, eps=1e-6)
            turned = rotate_tail(normed[None], cosine[row][None], sine[row][None], inverse=conjugate)[0]
            assert torch.equal(tapped[row, head], normed)
            assert torch.equal(out[row, head], turned if layout is None else ROUND_TRIPS[layout][1](turned))


def test_rotated_channels_may_lie_anywhere() -> None:
    x, table = bf16(2, 8), f32(4, 4)
    out = fused(1, 8, has_rope=True, rope_dim=4, rope_offset=2)(x, None, ints([3, 1]), table, torch.empty_like(x))
    for row, position in enumerate((3, 1)):
        wanted = x[row].float().tolist()
        for pair in range(2):
            c, s = float(table[position, pair]), float(table[position, 2 + pair])
            re, im = wanted[2 + 2 * pair], wanted[3 + 2 * pair]
            wanted[2 + 2 * pair], wanted[3 + 2 * pair] = re * c - im * s, re * s + im * c
        assert torch.allclose(out[row].float(), torch.tensor(wanted), rtol=2**-8)
        assert torch.equal(out[row, [0, 1, 6, 7]], x[row, [0, 1, 6, 7]])


@pytest.mark.parametrize("layout", ["fp8_main", "fp4_index", "fp4_main"])
def test_codes_and_scales_stand_for_the_round_trip(layout: str) -> None:
    form, round_trip = ROUND_TRIPS[layout]
    x = bf16(3, 2, WIDTH)
    codes = torch.empty(3, 2, form.data_bytes(WIDTH), dtype=torch.int8)
    columns = form.scale_bytes(WIDTH)
    scales = torch.empty(3, 2, columns, dtype=torch.uint8)
    if form.scale == "e8m0":
        scales = torch.empty(3, 2, columns // 2, dtype=torch.int16)
    fused(2, WIDTH, cast=layout, output="quant")(x, None, None, None, codes, scales)
    assert torch.equal(decode_rows(codes.view(torch.uint8), scales.view(torch.uint8), form), round_trip(x))


def test_packed_scales_are_two_exponent_bytes_little_endian() -> None:
    x = torch.ones(1, 64, dtype=torch.bfloat16)
    x[0, 32:] = 96.0  # 1 / 6 lies under 2^-2, and 96 / 6 = 2^4
    codes, scales = torch.empty(1, 32, dtype=torch.uint8), torch.empty(1, 1, dtype=torch.int16)
    fused(1, 64, cast="fp4_index", output="quant")(x, None, None, None, codes, scales)
    low, high = int(scales) & 0xFF, int(scales) >> 8 & 0xFF
    assert (low, high) == (127 - 2, 127 + 4)
    assert decode_exponents(scales.view(torch.uint8)).tolist() == [[0.25, 16.0]]


@by_layout
def test_the_store_writes_what_the_plain_store_writes(layout: str) -> None:
    x, slots, cache, plain = bf16(3, WIDTH), ints([9, -1, 14]), new_cache(layout), new_cache(layout)
    tapped = torch.empty_like(x)
    fused(1, WIDTH, cast=layout, output="store", tap="round_trip")(x, None, None, None, cache, slots, tapped)
    assert torch.equal(cache, ops.store_kv_cache_tl(layout, ENTRIES)(x, plain, slots))
    assert torch.equal(tapped, ROUND_TRIPS[layout][1](x))


def test_cached_fp8_stays_within_the_limit_of_the_platform(host_platform: dict[str, str]) -> None:
    host_platform["DEEPINFER_NEURON_FP8_MAX"] = "224"
    x = torch.full((1, 32), 384.0, dtype=torch.bfloat16)
    cache = torch.zeros(2, 1, 1, 33, dtype=torch.uint8)
    ops.store_kv_cache_tl("fp8_main", 1)(x, cache, ints([1]))
    codes, scales = cache[1, 0, 0, :32].view(torch.float8_e4m3fn).float(), cache[1, 0, 0, 32:]
    assert codes.tolist() == [192.0] * 32
    assert decode_exponents(scales).tolist() == [2.0]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"output": "store"}, "output 'store' with tap None needs a cast; found cast=None"),
        ({"tap": "round_trip"}, "output 'bf16' with tap 'round_trip' needs a cast"),
        ({"output": "fp8"}, "output is bf16, quant or store; found 'fp8'"),
        ({"cast": "fp8"}, "cast: expected one of fp4_main, fp8_main, fp4_index, fp8_index; found 'fp8'"),
        ({"has_rope": True}, "found has_rope=True, rope_dim=0"),
        ({"has_rope": True, "rope_dim": 16, "rope_offset": 60}, "lies inside 64 channels; found .* rope_offset=60"),
    ],
)
def test_options_that_do_not_go_together_are_refused(options: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        fused(1, WIDTH, **options)


def test_there_is_no_hadamard_stage() -> None:
    with pytest.raises(NotImplementedError, match="use has_hadamard=False"):
        fused(1, WIDTH, has_hadamard=True)


def test_a_cache_of_another_width_is_refused() -> None:
    with pytest.raises(ValueError, match=r"cache: expected uint8 \[blocks, 4, 1, 66\].*found uint8 \[5, 4, 1, 36\]"):
        ops.store_kv_cache_tl("fp8_main", ENTRIES)(bf16(1, WIDTH), new_cache("fp4_main"), ints([1]))
