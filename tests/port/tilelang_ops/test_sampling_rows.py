"""Rows of requests, parameters per row, look-ups and token masks, against loops."""

from __future__ import annotations

import pytest
import torch

from port import tilelang_ops as ops
from tests.port.tilelang_ops.numbers import empty_ints, f32, ints


def test_every_row_knows_its_request_its_step_and_whether_more_follow() -> None:
    first, counts = [0, 3, 4, -1], [3, 1, 2, 2]
    outputs = empty_ints(8), empty_ints(8), torch.ones(8, dtype=torch.bool)
    ops.prepare_verification_metadata_tl(3)(ints(first), ints(counts), *outputs)
    wanted = [(-1, 0, False)] * 8
    for request in range(3):
        for step in range(counts[request]):
            wanted[first[request] + step] = (request, step, step < counts[request] - 1)
    assert list(zip(*(out.tolist() for out in outputs), strict=True)) == wanted


def test_without_drafts_no_row_is_to_be_verified() -> None:
    outputs = empty_ints(3), empty_ints(3), torch.ones(3, dtype=torch.bool)
    ops.prepare_verification_metadata_tl(1)(ints([0, 1, 2]), ints([1, 1, 1]), *outputs)
    assert [out.tolist() for out in outputs] == [[0, 1, 2], [0, 0, 0], [False] * 3]


def test_parameters_are_copied_and_positions_move_by_step() -> None:
    seeds = [2**63 + 5, 7]
    per_request = (
        torch.tensor([0.5, 2.0]),
        torch.tensor([0.9, 1.0]),
        ints([5, -1]),
        ints([100, 40]),
        torch.tensor(seeds, dtype=torch.uint64),
    )
    rows, steps = [1, 0, 0, -1], [0, 0, 1, 0]
    outputs = tuple(torch.zeros(4, dtype=values.dtype) for values in per_request)
    found = ops.expand_sampling_params_tl()(*per_request, ints(rows), ints(steps), *outputs)
    assert all(one is other for one, other in zip(found, outputs, strict=True))
    temperature, top_p, top_k, position, seed = (out.tolist() for out in outputs)
    for row in range(3):
        request = rows[row]
        assert temperature[row] == per_request[0][request]
        assert top_p[row] == per_request[1][request]
        assert top_k[row] == per_request[2][request]
        assert position[row] == int(per_request[3][request]) + 10000019 * steps[row]
        assert seed[row] == seeds[request]


def test_a_value_is_found_by_its_key() -> None:
    key, value = ints([[5, 9, 2], [5, 9, 2], [0, 1, 2]]), f32(3, 3)
    out = ops.map_lookup_tl(3, "key", torch.float32)(key, value, ints([[9], [3], [0]]), torch.empty(3))
    assert out.tolist() == [value[0, 1], -torch.inf, value[2, 0]]


@pytest.mark.parametrize(("dtype", "missing"), [(torch.float32, -torch.inf), (torch.int32, -1)])
def test_a_value_is_found_by_its_column(dtype: torch.dtype, missing: float) -> None:
    value = (f32(4, 3) * 100).to(dtype)
    out = ops.map_lookup_tl(3, "index", dtype)(None, value, ints([[2], [-1], [3], [0]]), torch.empty(4, dtype=dtype))
    assert out.tolist() == [value[0, 2], missing, missing, value[3, 0]]


def bits_of(allowed: list[set[int]], words: int) -> torch.Tensor:
    rows = [[sum(1 << b for b in range(32) if 32 * w + b in tokens) for w in range(words)] for tokens in allowed]
    return torch.tensor(rows, dtype=torch.int64).to(torch.int32)


@pytest.mark.parametrize("step", [0, 1, 2])
def test_masked_tokens_go_in_the_row_of_the_step(step: int) -> None:
    allowed: list[set[int]] = [{0, 31, 32, 69}, {1}, {5, 63}]
    first, counts, indices = [0, 2, 3], [2, 1, 3], [2, 0]
    logits = f32(6, 70)
    before = logits.clone()
    kernel = ops.apply_token_bitmask_by_step_inplace_tl(70, True)
    assert kernel(logits, bits_of(allowed, 3), ints(indices), ints(first), step) is logits
    for row in range(6):
        owner = [i for i in indices if step < counts[i] and first[i] + step == row]
        for token in range(70):
            forbidden = bool(owner) and token not in allowed[owner[0]]
            assert logits[row, token] == (-torch.inf if forbidden else before[row, token])


def test_without_first_rows_a_mask_goes_to_the_row_of_its_request() -> None:
    logits = torch.zeros(3, 32)
    ops.apply_token_bitmask_by_step_inplace_tl(32, False)(logits, bits_of([{1}, {2}, {3}], 1), ints([1]))
    assert (logits == 0).sum(dim=1).tolist() == [32, 1, 32]
    assert logits[1, 2] == 0
