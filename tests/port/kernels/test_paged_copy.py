"""Rows of a line that segments of blocks fill."""

from __future__ import annotations

import torch

from port.kernels.paged_copy import segment_slots


def test_each_row_is_the_slot_its_segment_names() -> None:
    # (block, first entry, entry after the last, first row), out of order, one of them empty
    segments = torch.tensor([[3, 1, 3, 4], [5, 2, 2, 1], [-1, 0, 2, 1], [2, 3, 4, 0]], dtype=torch.int32)
    slot, covered = segment_slots(segments, rows=8, entries_per_block=4)
    assert slot.tolist() == [11, -1, -1, -1, 13, 14, -1, -1]
    assert covered.tolist() == [True, True, True, False, True, True, False, False]


def test_a_segment_that_ends_behind_the_line_is_cut() -> None:
    slot, covered = segment_slots(torch.tensor([[1, 0, 9, 1]], dtype=torch.int32), rows=3, entries_per_block=9)
    assert slot.tolist() == [-1, 9, 10]
    assert covered.tolist() == [False, True, True]
