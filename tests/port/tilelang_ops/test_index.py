"""Rows by number and lists of rows and slots, against loops."""

from __future__ import annotations

import pytest
import torch

from port import tilelang_ops as ops
from port.runtime.cache_layout import CacheLayout
from port.runtime.decode_inputs import build_decode
from port.runtime.prefill_inputs import build_prefill
from port.runtime.sequence import Sequence
from tests.port.tilelang_ops.numbers import bf16, empty_ints, ints


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.uint8, torch.int8, torch.float32])
def test_gather_picks_rows_and_gives_zeros_outside(dtype: torch.dtype) -> None:
    x = (bf16(5, 8) * 100).to(torch.int8).view(torch.uint8).to(dtype) if dtype != torch.bfloat16 else bf16(5, 8)
    numbers = [4, -1, 0, 5, 2, 2, -7, 1000]
    y = torch.ones(8, 8, dtype=dtype)
    out = ops.gather_tl(8, dtype, "int32", 8)(x, ints(numbers), y)
    assert out is y
    for row, number in zip(y, numbers, strict=True):
        assert torch.equal(row, x[number] if 0 <= number < 5 else torch.zeros(8, dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.uint8])
def test_gather_reads_rows_that_lie_apart(dtype: torch.dtype) -> None:
    wide = bf16(4, 12).to(dtype)
    out = ops.gather_tl(8, dtype, torch.int64, 12)(wide[:, :8], torch.tensor([3, 1]), torch.empty(2, 8, dtype=dtype))
    assert torch.equal(out, wide[[3, 1], :8])


def test_gather_from_nothing_gives_zeros() -> None:
    x, y = torch.empty(0, 4), torch.ones(2, 4)
    assert torch.equal(ops.gather_tl(4, "float32", "int32", 4)(x, ints([0, 1]), y), torch.zeros(2, 4))


def test_a_range_is_spelled_out_then_minus_one() -> None:
    index = ops.load_kv_index_tl(4, 0, False)(ints([[7, 2], [3, 9], [5, 0]]), None, empty_ints(3, 4))
    assert index.tolist() == [[7, 8, -1, -1], [3, 4, 5, 6], [-1, -1, -1, -1]]


def test_a_range_wraps_inside_the_ring_of_its_start() -> None:
    starts, ring = [(0, 5), (4, 3), (7, 5), (13, 4), (14, 5)], 5
    index = ops.load_kv_index_tl(6, ring, False)(ints(starts), None, empty_ints(5, 6))
    for row, (start, count) in zip(index.tolist(), starts, strict=True):
        base = start // ring * ring
        assert row == [base + (start - base + c) % ring if c < count else -1 for c in range(6)]


def test_a_range_of_entries_goes_through_the_tables() -> None:
    table, entries = [9, 4, 7, 2], 3
    rows = [(0, 4), (5, 5), (11, 1), (2, 0)]
    index = ops.load_kv_index_tl(5, entries, True)(ints(rows), ints(table), empty_ints(4, 5))
    for row, (offset, count) in zip(index.tolist(), rows, strict=True):
        wanted = [table[e // entries] * entries + e % entries for e in range(offset, offset + count)]
        assert row == wanted + [-1] * (5 - count)


def test_the_decode_window_is_the_one_of_the_runtime() -> None:
    layout = CacheLayout(window=6, backtracking=2, ratios=(1, 2), tokens_per_block=8)
    sequences = [
        Sequence(token_ids=tuple(range(length)), block_table=(1, 2, 3, 4), state_id=state, cached=length - 1)
        for state, length in ((3, 1), (1, 5), (2, 9), (4, 30))
    ]
    wanted = build_decode(layout, sequences).kv_swa_index
    offset_len = []
    for sequence in sequences:
        position = sequence.cached
        first = max(position - 5, 0)
        offset_len.append([sequence.state_id * layout.ring + first % layout.ring, position - first + 1])
    index = ops.load_kv_index_tl(6, layout.ring, False)(ints(offset_len), None, empty_ints(4, 6))
    assert torch.equal(index, wanted)


@pytest.mark.parametrize(
    "pivots", [(0, 3, 10, 2), (4, 9, 1, 5), (0, 0, 6, 9), (8, 2, 0, 0), (1, 0, 2, 0), (5, -1, 3, 2)]
)
def test_two_ranges_follow_each_other(pivots: tuple[int, ...]) -> None:
    start, length, second, second_length = pivots
    wanted = [*range(start, start + length), *range(second, second + second_length)][:6]
    index = ops.expand_swa_index_tl(6)(ints([pivots]), empty_ints(1, 6))
    assert index.tolist() == [wanted + [-1] * (6 - len(wanted))]


def test_the_prefill_window_is_the_one_of_the_runtime() -> None:
    layout = CacheLayout(window=4, backtracking=1, ratios=(1,), tokens_per_block=8)
    sequences = [
        Sequence(token_ids=tuple(range(9)), block_table=(1, 2), state_id=1, cached=0),
        Sequence(token_ids=tuple(range(12)), block_table=(3, 4), state_id=2, cached=7),
    ]
    wanted = build_prefill(layout, sequences).kv_swa_full_index
    pivots, row_begin = [], 0
    for number, sequence in enumerate(sequences):
        start = sequence.cached
        for position in range(start, len(sequence)):
            oldest = max(position - 3, 0)
            before = max(start - oldest, 0)
            current = max(oldest, start)
            history = number * 4 + 4 - before
            pivots.append([history, before, 2 * 4 + row_begin + current - start, position - current + 1])
        row_begin += sequence.pending
    index = ops.expand_swa_index_tl(4)(ints(pivots), empty_ints(len(pivots), 4))
    assert torch.equal(index, wanted)


def test_joined_lists_shift_the_second_and_keep_minus_one() -> None:
    window, selected = ints([[1, 2, -1], [0, -1, -1]]), ints([[0, 5], [-1, 3]])
    out = empty_ints(2, 8)[:, :5]
    joined = ops.kv_index_cat_tl("int32", 3, 2, 8)(window, selected, 10, 100, out)
    assert joined.tolist() == [[1, 2, -1, 110, 115], [0, -1, -1, -1, 113]]


def test_joined_lists_lie_a_multiple_of_four_apart() -> None:
    with pytest.raises(ValueError, match=r"out_stride: expected a multiple of 4, at least W \+ topk = 5; found 6"):
        ops.kv_index_cat_tl("int32", 3, 2, 6)
    with pytest.raises(
        ValueError, match=r"index: expected int32 \[n = 2, 5\], row stride 8; found .* strides \(5, 1\)"
    ):
        ops.kv_index_cat_tl("int32", 3, 2, 8)(ints([[1] * 3] * 2), ints([[1] * 2] * 2), 0, 0, empty_ints(2, 5))


def test_entries_become_slots_by_the_number_of_their_column() -> None:
    block, table = 4, [[5, 3, 999], [2, 7, 1]]
    entries = [[[0, 3, 4, 7], [7, 2, 0, 1]], [[9, 8, -1, -1], [11, 0, 5, 6]]]
    lens = [[4, 2], [2, 3]]
    idx = ints(entries)
    out = ops.convert_kv_index_tl(2, 4, 3, block)(idx, ints(lens), ints(table))
    assert out is idx
    for b in range(2):
        for s in range(2):
            for c in range(4):
                entry = entries[b][s][c]
                wanted = table[b][entry // block] * block + entry % block if c < lens[b][s] else -1
                assert out[b, s, c] == wanted


def test_uninitialised_table_columns_are_never_read_out_of_bounds() -> None:
    idx = ints([[[0, 400, -1]]])
    out = ops.convert_kv_index_tl(1, 3, 1, 4)(idx, ints([[3]]), ints([[6]]))
    assert out[0, 0, 0] == 24
    assert out[0, 0, 2] == -1


def test_wrong_arguments_are_named() -> None:
    kernel = ops.gather_tl(8, "bfloat16", "int32", 8)
    with pytest.raises(
        ValueError, match=r"gather_tl: x: expected bfloat16 \[n, 8\], row stride 8; found float32 \[3, 8\]"
    ):
        kernel(torch.zeros(3, 8), ints([0]), bf16(1, 8))
    with pytest.raises(
        ValueError, match=r"gather_tl: y: expected bfloat16 \[m = 1, 8\], contiguous; found bfloat16 \[2, 8\]"
    ):
        kernel(bf16(3, 8), ints([0]), bf16(2, 8))
    with pytest.raises(ValueError, match="index: expected a tensor; found list"):
        kernel(bf16(3, 8), [0], bf16(1, 8))
    with pytest.raises(ValueError, match="dtype: expected a torch dtype or its name; found 'bfloat'"):
        ops.gather_tl(8, "bfloat", "int32", 8)
    with pytest.raises(ValueError, match="block_size: expected an int of at least 1; found 0"):
        ops.load_kv_index_tl(4, 0, True)
    with pytest.raises(
        ValueError, match="block_table: expected None, because has_block_tables is False; found a tensor"
    ):
        ops.load_kv_index_tl(4, 0, False)(ints([[0, 1]]), ints([1]), empty_ints(1, 4))
