"""The two-level selection, against loops."""

from __future__ import annotations

import math

import pytest
import torch

from port import tilelang_ops as ops
from port.kernels.index_selection import candidate_blocks
from tests.port.tilelang_ops.numbers import bf16, empty_ints, ints


def test_a_block_scores_as_its_best_visible_entry() -> None:
    logits, lens = bf16(5, 10), [0, 1, 4, 7, 10]
    logits[3, 1] = torch.inf
    scores, blocks = torch.zeros(5, 3, dtype=torch.bfloat16), empty_ints(5)
    ops.candidate_block_max_tl(10, 4)(logits, ints(lens), scores, blocks)
    largest = torch.finfo(torch.bfloat16).max
    for row, length in enumerate(lens):
        assert blocks[row] == math.ceil(length / 4)
        for block in range(3):
            visible = [float(logits[row, c]) for c in range(block * 4, min(block * 4 + 4, length))]
            if length and block == (length - 1) // 4:
                assert scores[row, block] == torch.inf
            elif visible:
                assert scores[row, block] == min(max(visible), largest)


def test_garbage_behind_the_visible_entries_counts_for_nothing() -> None:
    logits = torch.full((1, 8), torch.nan, dtype=torch.bfloat16)
    logits[0, :5] = torch.tensor([1.0, 3.0, 2.0, 0.0, 9.0])
    scores, blocks = torch.zeros(1, 4, dtype=torch.bfloat16), empty_ints(1)
    ops.candidate_block_max_tl(8, 2)(logits, ints([5]), scores, blocks)
    assert scores.tolist() == [[3.0, 2.0, math.inf, -math.inf]]


def test_block_scores_choose_the_blocks_of_the_model() -> None:
    logits, lens = bf16(6, 40, seed=3), ints([40, 33, 17, 8, 3, 1])
    column = torch.arange(40)
    visible = torch.where(column < lens.unsqueeze(-1), logits.float(), -torch.inf)
    wanted = candidate_blocks(visible, lens, block_size=4, topk_blocks=3)
    scores, blocks = torch.zeros(6, 10, dtype=torch.bfloat16), empty_ints(6)
    ops.candidate_block_max_tl(40, 4)(logits, lens, scores, blocks)
    for row in range(6):
        order = sorted(range(int(blocks[row])), key=lambda block: (-float(scores[row, block]), block))
        assert sorted(order[:3]) == wanted[row].nonzero().flatten().tolist()


def test_compact_lengths_count_visible_entries_of_the_candidates() -> None:
    blocks, lens = [[0, 2, 5, -1], [1, 3, -1, -1], [-1, -1, -1, -1]], [19, 13, 50]
    out = ops.get_candidate_compact_lens_tl(4, 4)(ints(blocks), ints(lens), empty_ints(3))
    for row, length in enumerate(lens):
        assert out[row] == sum(min(max(length - block * 4, 0), 4) for block in blocks[row] if block >= 0)


@pytest.mark.parametrize("offset", [None, [100, 1000]])
def test_compact_entries_become_entries_of_the_sequence(offset: list[int] | None) -> None:
    blocks = [[2, 5, 9], [0, 7, -1]]
    compact = [[0, 3, 4, 11, -1], [1, 7, 8, 12, -1]]
    idx = ints(compact)
    kernel = ops.restore_candidate_indices_inplace_tl(5, 3, 4, offset is not None)
    assert kernel(idx, ints(blocks), None if offset is None else ints(offset)) is idx
    for row in range(2):
        for column, entry in enumerate(compact[row]):
            wanted = -1
            if 0 <= entry < 12 and blocks[row][entry // 4] >= 0:
                wanted = blocks[row][entry // 4] * 4 + entry % 4 + (offset[row] if offset else 0)
            assert idx[row, column] == wanted
