"""The compressor's state by hand; whole sequences are in tests/port/tilelang_ops/test_compress.py."""

from __future__ import annotations

import torch
from torch import Tensor

from port.kernels.compress_state import compress_decode_rows, compress_prefill_rows


def ints(values: object) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def test_a_decode_row_finishes_the_pair_its_state_began() -> None:
    state = torch.zeros(2, 2, 2, 1)
    first = compress_decode_rows(torch.tensor([[0.0]]), torch.tensor([[4.0]]), state, ints([1]), ints([1]), ratio=2)
    second = compress_decode_rows(torch.tensor([[0.0]]), torch.tensor([[8.0]]), state, ints([1]), ints([2]), ratio=2)
    assert first.tolist() == [[0.0]], "one token makes no entry"
    assert second.tolist() == [[6.0]], "equal gates give the mean"
    assert state[1, :, 1, 0].tolist() == [4.0, 8.0]
    assert not state[0].any()


def test_rows_behind_the_last_request_are_not_kept() -> None:
    """A prefill padded to a static number of rows."""
    state = torch.zeros(2, 2, 2, 1)
    value = torch.tensor([[2.0], [4.0], [9.0], [9.0]])
    pooled = compress_prefill_rows(
        torch.zeros(4, 1), value, state, ints([1]), ints([0]), ints([0, 2]), ints([0, 2]), ints([0, 1]), ratio=2
    )
    assert pooled.tolist() == [[3.0]]
    assert state[1, :, 1, 0].tolist() == [2.0, 4.0]
    assert not state[0].any()


def test_members_before_the_chunk_are_read_before_their_place_is_taken() -> None:
    state = torch.zeros(2, 2, 2, 1)
    state[1, 0, 1] = 10.0  # position 2, the first half of entry 1
    value = torch.tensor([[20.0], [1.0], [3.0]])  # positions 3, 4, 5; 4 takes the place of 2
    pooled = compress_prefill_rows(
        torch.zeros(3, 1), value, state, ints([1]), ints([0, 0]), ints([0, 3]), ints([0, 6]), ints([0, 2]), ratio=2
    )
    assert pooled.flatten().tolist() == [15.0, 2.0]
    assert state[1, :, 1, 0].tolist() == [1.0, 3.0]
