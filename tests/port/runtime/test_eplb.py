"""Expert slots, replicas and counts against the contract's formulas written out."""

from __future__ import annotations

import pytest
import torch

from port.checkpoint.slices import experts_of_rank
from port.environment import ENV
from port.errors import ConfigError, PlatformError
from port.runtime import eplb
from port.runtime.eplb import ExpertBalancer, ExpertSlots, choose_replicas


@pytest.mark.parametrize(
    ("experts", "ranks", "requested", "extra"),
    [(384, 1, 0, 0), (384, 64, 0, 0), (10, 4, 0, 2), (10, 4, 3, 6), (8, 4, 3, 4), (6, 1, 5, 5), (3, 2, 4, 5)],
)
def test_extra_slots_are_padded_to_what_ranks_can_share(experts, ranks, requested, extra):
    slots = ExpertSlots(experts=experts, ranks=ranks, requested=requested)
    assert slots.extra == extra
    assert slots.physical % ranks == 0
    to_logical = slots.physical_to_logical().tolist()
    assert to_logical == [slot if slot < experts else (slot - experts) % experts for slot in range(slots.physical)]
    for expert in range(experts):
        own = [slot for slot, logical in enumerate(to_logical) if logical == expert]
        row = slots.logical_to_physical()[expert].tolist()
        assert row == own + [-1] * (slots.extra + 1 - len(own))
        assert int(slots.logical_count()[expert]) == len(own)
    held = [expert for rank in range(ranks) for expert in experts_of_rank(experts, rank, ranks, extra=requested)]
    assert held == to_logical, "what is loaded is what the maps say"


def test_replicas_take_turns_by_row_and_rank():
    slots = ExpertSlots(experts=3, ranks=2, requested=4)
    to_physical, count = slots.logical_to_physical(), slots.logical_count()
    ids = torch.tensor([[row % 3, (row + 1) % 3, -1] for row in range(200_000)])
    for ep_rank in (0, 1):
        found = choose_replicas(ids, to_physical, count, ep_rank=ep_rank)
        for row in (0, 1, 2, 17, 92_040, 199_999):
            for slot, logical in enumerate(ids[row].tolist()):
                copy = (ep_rank + row * 23333) % int(count[logical])
                assert int(found[row, slot]) == (-1 if logical < 0 else int(to_physical[logical, copy]))


def test_without_extra_slots_maps_are_the_identity():
    balancer = ExpertBalancer(ExpertSlots(experts=5), layers=3)
    to_physical, count, expert_count = balancer.layer(2)
    assert to_physical.tolist() == [[expert] for expert in range(5)]
    assert count.tolist() == [1] * 5
    assert (expert_count.dtype, tuple(expert_count.shape)) == (torch.int32, (5,))
    ids = torch.tensor([[4, -1], [0, 2]])
    assert torch.equal(choose_replicas(ids, to_physical, count, ep_rank=0), ids)


def test_with_one_rank_a_step_does_nothing():
    balancer = ExpertBalancer(ExpertSlots(experts=4), layers=1)
    balancer.layer(0)[2].add_(3)
    for _ in range(130):
        balancer.step(False)
    assert balancer.statistics is None
    assert balancer.layer(0)[2].tolist() == [3] * 4


def test_the_installed_balancer_is_the_current_one():
    with pytest.raises(PlatformError, match=r"eplb\.current: expected an expert balancer; none is installed"):
        eplb.current()
    balancer = ExpertBalancer(ExpertSlots(experts=4), layers=1)
    eplb.install(balancer)
    try:
        assert eplb.current() is balancer
    finally:
        eplb.install(None)


def test_moving_experts_is_refused_with_the_way_out(monkeypatch):
    balancer = ExpertBalancer(ExpertSlots(experts=4), layers=1)
    with pytest.raises(PlatformError, match="expected DEEPINFER_EXPERT_REARRANGEMENT_STEP_INTERVAL=0"):
        balancer.rearrange()
    monkeypatch.setenv("DEEPINFER_EXPERT_REARRANGEMENT_STEP_INTERVAL", "100")
    ENV.rearm_all()
    try:
        with pytest.raises(PlatformError, match="use DEEPINFER_OVERRIDE_NUM_EXTRA_EXPERTS for replicas"):
            ExpertBalancer(ExpertSlots(experts=4), layers=1)
    finally:
        monkeypatch.undo()
        ENV.rearm_all()


def test_slots_and_groups_must_agree():
    with pytest.raises(ConfigError, match="expected a group of 2 ranks, as the slots are laid out for; found 1"):
        ExpertBalancer(ExpertSlots(experts=4, ranks=2), layers=1)
    with pytest.raises(ConfigError, match="expected at least one expert, one rank and 0 or more extra slots"):
        ExpertSlots(experts=4, ranks=0)
