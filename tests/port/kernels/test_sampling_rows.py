"""A sampler's rows by hand; the loops are in tests/port/tilelang_ops/test_sampling_rows.py."""

from __future__ import annotations

import torch
from torch import Tensor

from port.kernels.sampling_rows import look_up_column, look_up_key, mask_tokens, request_of_rows, spread_to_rows


def ints(values: object) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def test_the_last_row_of_a_request_is_followed_by_none() -> None:
    request, step, followed = request_of_rows(ints([0, 2]), ints([2, 1]), rows=4)
    assert request.tolist() == [0, 0, 1, -1]
    assert step.tolist() == [0, 1, 0, 0]
    assert followed.tolist() == [True, False, False, False]


def test_seeds_keep_all_64_bits() -> None:
    seeds = torch.tensor([2**64 - 1, 2**32 + 3], dtype=torch.uint64)
    assert spread_to_rows(seeds, ints([1, 0, -1])).tolist() == [2**32 + 3, 2**64 - 1, 2**64 - 1]


def test_what_is_not_found_is_minus_infinity_or_minus_one() -> None:
    assert look_up_key(ints([[4, 5]]), torch.tensor([[0.5, -2.0]]), ints([6])).tolist() == [-torch.inf]
    assert look_up_column(ints([[7, 8]]), ints([2])).tolist() == [-1]
    assert look_up_key(ints([[4, 5]]), torch.tensor([[0.5, -2.0]]), ints([5])).tolist() == [-2.0]


def test_the_sign_bit_of_a_word_is_a_token_too() -> None:
    bits = ints([[-(2**31), 1]])  # tokens 31 and 32
    masked = mask_tokens(torch.zeros(2, 40), bits, ints([0]), ints([1]))
    assert masked[0].eq(0).all()
    assert masked[1].eq(0).nonzero().flatten().tolist() == [31, 32]
