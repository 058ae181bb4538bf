"""Rows from tables and caches: any 8-bit dtype, missing slots, and what a store leaves alone."""

import pytest
import torch

from port.kernels.gather import gather_table_rows, load_known_rows, load_rows, store_rows


@pytest.mark.parametrize("width", [1, 2, 3, 4, 6, 32], ids=lambda width: f"width{width}")
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.float8_e4m3fn, torch.float8_e8m0fnu], ids=str)
def test_table_rows_keep_their_bytes_at_every_width(width, dtype):
    # Widths that fill 4, 2 or 1 bytes at a time take different ways through the kernel.
    table = torch.randint(0, 256, (7, width), dtype=torch.uint8, generator=torch.Generator().manual_seed(width))
    index = torch.tensor([[6, 0, 3], [3, 5, 6]], dtype=torch.int32)
    found = gather_table_rows(table.view(dtype), index)
    assert found.dtype == dtype
    assert found.shape == (2, 3, width)
    for i in range(2):
        for j in range(3):
            assert found[i, j].view(torch.uint8).tolist() == table[index[i, j]].tolist()


def test_a_missing_slot_reads_zeros():
    pool = torch.tensor([[0.0, 0.0], [1.0, 2.0], [3.0, 4.0]])
    found = load_rows(pool, torch.tensor([[2, -1], [1, 1]], dtype=torch.int32))
    assert found.tolist() == [[[3.0, 4.0], [0.0, 0.0]], [[1.0, 2.0], [1.0, 2.0]]]


def test_a_store_writes_its_slots_and_nothing_else():
    pool = torch.arange(10.0).view(5, 2)
    pool[0] = 0
    before = pool.clone()
    store_rows(pool, torch.tensor([3, -1, 1], dtype=torch.int32), torch.tensor([[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]]))
    assert pool.tolist() == [[0.0, 0.0], [3.0, 3.0], before[2].tolist(), [1.0, 1.0], before[4].tolist()]


def test_rows_that_are_not_stored_leave_the_padding_row_zero_even_when_not_finite():
    pool = torch.zeros(3, 2)
    store_rows(pool, torch.tensor([-1, -1]), torch.tensor([[torch.nan, 1.0], [torch.inf, 2.0]]))
    assert pool.abs().sum() == 0


def test_a_store_converts_to_the_dtype_of_the_pool():
    pool = torch.zeros(2, 1, dtype=torch.bfloat16)
    store_rows(pool, torch.tensor([1]), torch.tensor([[1.001]]))
    assert pool[1].item() == 1.0


def test_a_number_that_names_no_row_gives_zeros():
    table = torch.arange(1.0, 7.0).view(3, 2)
    rows = load_known_rows(table, torch.tensor([2, -1, 3, 0], dtype=torch.int32))
    assert rows.tolist() == [[5.0, 6.0], [0.0, 0.0], [0.0, 0.0], [1.0, 2.0]]


def test_rows_of_bytes_that_are_not_numbers_can_be_zeros_too():
    table = torch.arange(8, dtype=torch.uint8).view(2, 4).view(torch.float8_e8m0fnu)
    rows = load_known_rows(table, torch.tensor([1, 5]))
    assert rows.dtype == table.dtype
    assert rows.view(torch.uint8).tolist() == [[4, 5, 6, 7], [0, 0, 0, 0]]
