"""Expanded rows against a loop over experts, exact and worst case."""

from __future__ import annotations

import pytest
import torch

from port.collectives.expert_groups import group_by_expert, largest_expansion


def ids_of(rows, experts, slots=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    ids = torch.stack([torch.randperm(experts, generator=generator)[:slots] for _ in range(rows)]).to(torch.int32)
    ids[torch.rand(ids.shape, generator=generator) < 0.4] = -1
    return ids


def slow_places(ids, experts, alignment):
    places, ends, begin = torch.full(ids.shape, -1), [], 0
    for expert in range(experts):
        begin = -(-begin // alignment) * alignment
        for row in range(len(ids)):
            for slot in range(ids.shape[1]):
                if ids[row, slot] == expert:
                    places[row, slot] = begin
                    begin += 1
        ends.append(begin)
    return places, ends, -(-begin // alignment) * alignment


@pytest.mark.parametrize("alignment", [1, 4, 128])
@pytest.mark.parametrize("worst_case", [False, True])
def test_rows_lie_where_a_loop_puts_them(alignment, worst_case):
    ids, experts = ids_of(11, 5), 5
    places, ends, total = slow_places(ids, experts, alignment)
    rows = largest_expansion(11, slots=3, local_experts=5, alignment=alignment) if worst_case else None
    groups = group_by_expert(ids, local_experts=experts, alignment=alignment, expanded_rows=rows)
    assert torch.equal(groups.place_MK, places.to(torch.int32))
    assert groups.ends_L.tolist() == ends
    assert groups.counts_L.tolist() == [int((ids == expert).sum()) for expert in range(experts)]
    x = torch.arange(22.0).view(11, 2) + 1
    expanded = groups.expand(x)
    assert len(expanded) == (rows or total)
    for row in range(11):
        for slot in range(3):
            if ids[row, slot] >= 0:
                assert torch.equal(expanded[places[row, slot]], x[row])
    used = int((ids >= 0).sum())
    assert int((expanded[:, 0] != 0).sum()) == used
    collapsed = groups.collapse(expanded * 2)
    assert torch.equal(collapsed, torch.where((ids >= 0).unsqueeze(-1), x.unsqueeze(1) * 2, 0.0))
    weights = torch.rand(11, 3)
    assert torch.equal(groups.collapse(groups.expand_slots(weights).unsqueeze(1)).squeeze(-1), weights * (ids >= 0))


@pytest.mark.parametrize("rows", [0, 3])
def test_no_pair_at_all_gives_no_rows(rows):
    groups = group_by_expert(torch.full((rows, 2), -1, dtype=torch.int32), local_experts=3, alignment=8)
    assert groups.ends_L.tolist() == [0, 0, 0]
    assert groups.expand(torch.zeros(rows, 4)).shape == (0, 4)
    assert groups.collapse(torch.zeros(0, 4)).shape == (rows, 2, 4)


def test_worst_case_is_enough_when_every_row_chooses_every_expert():
    ids = torch.arange(2, dtype=torch.int32).repeat(5, 1)
    groups = group_by_expert(ids, local_experts=2, alignment=4)
    assert len(groups.source_P) == 16
    assert largest_expansion(5, slots=2, local_experts=2, alignment=4) >= 16


def test_an_alignment_below_one_is_refused():
    with pytest.raises(ValueError, match="expert_alignment: expected at least 1; found 0"):
        group_by_expert(torch.zeros(1, 1, dtype=torch.int32), local_experts=1, alignment=0)
