"""Facts of index lists by hand; the loops are in tests/port/tilelang_ops/test_index.py and test_candidates.py."""

from __future__ import annotations

import torch
from torch import Tensor

from port.kernels.index_lists import (
    compact_lengths,
    flat_table_slots,
    paged_slots,
    range_index,
    restore_candidates,
    shift_index,
    two_ranges_index,
)


def ints(values: object) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def test_a_ring_starts_at_a_multiple_of_its_length() -> None:
    assert range_index(ints([13, 2]), ints([4, 4]), width=5, ring=5).tolist() == [
        [13, 14, 10, 11, -1],
        [2, 3, 4, 0, -1],
    ]


def test_a_second_range_is_cut_at_the_width() -> None:
    assert two_ranges_index(ints([[8, 2, 0, 9]]), width=4).tolist() == [[8, 9, 0, 1]]


def test_minus_one_is_not_shifted() -> None:
    assert shift_index(ints([[0, -1], [3, -1]]), ints([[10], [20]])).tolist() == [[10, -1], [23, -1]]


def test_an_entry_lies_in_its_own_row_of_the_table() -> None:
    entry = ints([[0, 5], [0, 5]])
    slots = paged_slots(entry, ints([[3, 7], [2, 9]]), entries_per_block=4, valid_NJ=entry >= 0)
    assert slots.tolist() == [[12, 29], [8, 37]]


def test_entries_over_all_tables_keep_minus_one() -> None:
    assert flat_table_slots(ints([[0, 3, -1]]), ints([6, 1]), entries_per_block=2).tolist() == [[12, 3, -1]]


def test_a_block_past_the_visible_entries_holds_none() -> None:
    assert compact_lengths(ints([[0, 1, 9, -1]]), ints([6]), block_size=4).tolist() == [6]


def test_a_compact_entry_of_no_candidate_is_none() -> None:
    assert restore_candidates(ints([[1, 4, 8, -1]]), ints([[5, -1]]), block_size=4).tolist() == [[21, -1, -1, -1]]
