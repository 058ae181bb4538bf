"""Scores, candidate blocks and selections against loops, and numbers worked by hand."""

import pytest
import torch

from port.kernels import index_selection
from port.kernels.index_selection import candidate_blocks, index_scores, restrict_to_blocks, select_entries

INF = float("inf")


def random_scores(tokens, entries, *, seed=0, levels=6):
    """Scores with many ties, and -inf after a length that differs by row; also the lengths."""
    generator = torch.Generator().manual_seed(seed)
    score = torch.randint(0, levels, (tokens, entries), generator=generator).float()
    length = torch.randint(0, entries + 1, (tokens,), generator=generator, dtype=torch.int32)
    return torch.where(torch.arange(entries) < length.unsqueeze(-1), score, -INF), length


def slow_best(values, allowed, count):
    order = sorted((i for i in range(len(values)) if allowed[i]), key=lambda i: (-values[i], i))
    return sorted(order[:count])


def test_scores_worked_by_hand():
    query = torch.tensor([[[1.0, 0.0], [0.0, 1.0]]])
    key = torch.tensor([[2.0, 3.0], [-1.0, 5.0]])
    found = index_scores(query, torch.tensor([[10.0, -1.0]]), key, operands=torch.float32, round_per_head=False)
    assert found.tolist() == [[10 * 2 - 3, -5.0]]


def test_scores_agree_with_a_loop_for_shared_and_for_own_keys():
    generator = torch.Generator().manual_seed(0)
    query, weight = torch.randn(4, 3, 5, generator=generator), torch.randn(4, 3, generator=generator)
    shared, own = torch.randn(6, 5, generator=generator), torch.randn(4, 6, 5, generator=generator)
    for keys in (shared, own):
        found = index_scores(query, weight, keys, operands=torch.float32, round_per_head=False)
        for t in range(4):
            for c in range(6):
                key = (keys if keys is shared else keys[t])[c]
                expected = sum(weight[t, h].item() * max(sum((query[t, h] * key).tolist()), 0.0) for h in range(3))
                assert found[t, c].item() == pytest.approx(expected, rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("per_head", [True, False])
def test_scores_are_rounded_per_head_or_only_at_the_end(per_head):
    generator = torch.Generator().manual_seed(1)
    query = torch.randn(8, 16, 8, generator=generator).to(torch.bfloat16)
    weight = torch.randn(8, 16, generator=generator).to(torch.bfloat16)
    key = torch.randn(5, 8, generator=generator).to(torch.bfloat16)
    found = index_scores(query, weight, key, operands=torch.float32, round_per_head=per_head)
    total = torch.zeros(8, 5)
    for h in range(16):
        product = query[:, h].float() @ key.float().T
        if per_head:
            total += (product.to(torch.bfloat16).relu() * weight[:, h : h + 1]).float()
        else:
            total += product.relu() * weight[:, h : h + 1].float()
    torch.testing.assert_close(found.float(), total.to(torch.bfloat16).float(), rtol=2**-7, atol=1e-6)
    other = index_scores(query, weight, key, operands=torch.float32, round_per_head=not per_head)
    assert not torch.equal(found, other)


def test_score_pieces_have_the_bits_of_the_whole(monkeypatch):
    generator = torch.Generator().manual_seed(2)
    query, weight = torch.randn(9, 2, 8, generator=generator), torch.randn(9, 2, generator=generator)
    options = {"operands": torch.float32, "round_per_head": True}
    for keys in (torch.randn(16, 8, generator=generator), torch.randn(9, 16, 8, generator=generator)):
        whole = index_scores(query, weight, keys, **options)
        monkeypatch.setattr(index_selection, "MAX_SCORE_ELEMENTS", 2 * 16 * 4)
        torch.testing.assert_close(index_scores(query, weight, keys, **options), whole, rtol=1e-6, atol=1e-6)
        monkeypatch.undo()


def test_selection_worked_by_hand():
    score = torch.tensor([[5.0, 1.0, 7.0, 3.0], [1.0, -INF, -INF, -INF], [2.0, 2.0, 2.0, 2.0], [-INF] * 4])
    assert select_entries(score, topk=2).tolist() == [[0, 2], [0, -1], [0, 1], [-1, -1]]


@pytest.mark.parametrize("topk", [1, 3, 8, 20])
def test_selection_agrees_with_a_sort(topk):
    score, _ = random_scores(40, 13)
    found = select_entries(score, topk=topk)
    assert found.dtype == torch.int32
    assert found.shape == (40, topk)
    for row, kept in zip(score.tolist(), found.tolist(), strict=True):
        expected = slow_best(row, [value > -INF for value in row], topk)
        assert kept == expected + [-1] * (topk - len(expected))


def test_negative_scores_are_selected_before_nothing():
    assert select_entries(torch.tensor([[-3.0, -INF, -1.0]]), topk=2).tolist() == [[0, 2]]


def test_blocks_worked_by_hand():
    # blocks of 2 over 7 entries, 5 of them visible: best are block 0 (9) and, pinned, block 2 with the newest entry
    score = torch.tensor([[9.0, 0.0, 3.0, 4.0, 1.0, -INF, -INF]])
    found = candidate_blocks(score, torch.tensor([5], dtype=torch.int32), block_size=2, topk_blocks=2)
    assert found.tolist() == [[True, False, True, False]]


@pytest.mark.parametrize(("block_size", "topk_blocks"), [(4, 2), (3, 1), (1, 5), (4, 50), (20, 1)])
def test_blocks_agree_with_a_loop(block_size, topk_blocks):
    score, length = random_scores(40, 13, seed=3)
    found = candidate_blocks(score, length, block_size=block_size, topk_blocks=topk_blocks)
    blocks = range(-(-13 // block_size))
    assert found.shape == (40, len(blocks))
    for t in range(40):
        visible = [b * block_size < length[t] for b in blocks]
        best = [max(score[t, b * block_size : (b + 1) * block_size].tolist()) for b in blocks]
        if length[t] > 0:
            best[(int(length[t]) - 1) // block_size] = INF
        assert found[t].nonzero().flatten().tolist() == slow_best(best, visible, topk_blocks)


def test_restriction_masks_whole_blocks():
    score = torch.arange(7.0).unsqueeze(0)
    found = restrict_to_blocks(score, torch.tensor([[True, False, True]]), block_size=3)
    assert found.tolist() == [[0.0, 1.0, 2.0, -INF, -INF, -INF, 6.0]]
