"""The released schedule is the one the specification tabulates, and small ones follow the same rule."""

import pytest

from port.config import ModelConfig
from port.schedule import LayerSchedule
from tests.shared import shared_path


def schedule_of(*parts):
    return LayerSchedule.from_config(ModelConfig.from_file(shared_path(*parts)))


@pytest.fixture(scope="module")
def released():
    return schedule_of("spec", "released_config.json")


@pytest.mark.parametrize(
    ("layers", "ratio", "kv_source", "index_source"),
    [
        (range(2), 0, None, None),
        (range(2, 8), 2, 2, 2),
        (range(8, 14), 2, 8, 8),
        (range(14, 20), 2, 14, 14),
        (range(20, 24), 1, 20, 20),
        (range(24, 28), 1, 20, 24),
        (range(28, 32), 1, 20, 28),
        (range(32, 36), 1, 20, 32),
        (range(36, 40), 1, 20, 36),
    ],
)
def test_released_segments(released, layers, ratio, kv_source, index_source):
    for layer in layers:
        role = released[layer]
        assert (role.ratio, role.kv_source, role.index_k_source) == (ratio, kv_source, kv_source)
        assert role.index_source == index_source
        assert role.rope == ("window" if ratio == 0 else "compress")


def test_released_owners_candidates_and_engram(released):
    assert released.kv_sources == (2, 8, 14, 20)
    assert [role.layer for role in released.roles if role.owns_index] == [2, 8, 14, 20, 24, 28, 32, 36]
    assert [role.layer for role in released.roles if role.candidates == "publishes"] == [20]
    assert [role.layer for role in released.roles if role.candidates == "restricted"] == [24, 28, 32, 36]
    assert released.engram_layers == (1, 14)
    assert released.n_prefill_layer == 20
    assert released.ratios == (1, 2)
    assert len(released) == 40


def test_small_schedules_follow_the_same_rule():
    schedule = schedule_of("golden", "B", "checkpoint")
    assert [role.kv_source for role in schedule.roles] == [None, None, 2, 2, 4, 4, 6, 6, 6, 6, 6, 6]
    assert [role.index_source for role in schedule.roles] == [None, None, 2, 2, 4, 4, 6, 6, 8, 8, 10, 10]
    assert [role.candidates for role in schedule.roles if role.owns_index] == ["none"] * 2 + ["publishes"] + [
        "restricted"
    ] * 2
