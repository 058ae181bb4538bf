"""Weights and draws in whole numbers, against plain integers."""

from __future__ import annotations

import random

import pytest
import torch

from port.kernels.fixed_point import draw_columns, fixed_point_weights, slot_count, unit_threshold, word_below

MASK = 0xFFFFFFFF


def words(values: list[int]) -> torch.Tensor:
    return torch.tensor([value - (1 << 32) if value >> 31 else value for value in values], dtype=torch.int32)


def slow_draw(weights: list[int], low: int, high: int) -> int:
    """Two levels in plain integers; the random number is scaled to the total."""
    slots = slot_count(len(weights))
    total = sum(weights)
    target = (high << 32 | low) * total >> 64
    for slot in range(slots):
        share = sum(weights[slot::slots])
        if target < share:
            for column in range(slot, len(weights), slots):
                if target < weights[column]:
                    return column
                target -= weights[column]
        target -= share
    raise AssertionError("the target lies below the total")


@pytest.mark.parametrize(("columns", "slots"), [(1, 64), (64, 64), (65, 128), (2048, 2048), (5000, 2048), (8192, 4096)])
def test_slots_follow_the_vocabulary(columns: int, slots: int) -> None:
    assert slot_count(columns) == slots


def test_weights_are_the_truncated_probability_to_the_last_bit() -> None:
    probability = torch.rand(4000, generator=torch.Generator().manual_seed(1)) ** 8
    probability[:6] = torch.tensor([0.0, 1.0, 0.5, 2.0**-31, 2.0**-32, 1.0 - 2.0**-24])
    found = [value & MASK for value in fixed_point_weights(probability).tolist()]
    assert found == [int(value * 2**31) for value in probability.double().tolist()]


def test_thresholds_are_the_truncated_share_to_the_last_bit() -> None:
    share = torch.rand(1000, generator=torch.Generator().manual_seed(2))
    share[:3] = torch.tensor([0.0, 1.0, 2.0**-32])
    word, everything = unit_threshold(share)
    assert everything.tolist() == [value == 1.0 for value in share.tolist()]
    expected = [int(value * 2**32) & MASK for value in share.double().tolist()]
    assert [value & MASK for value in word.tolist()] == expected


def test_words_are_compared_as_unsigned() -> None:
    values = [0, 1, 0x7FFFFFFF, 0x80000000, MASK]
    for left in values:
        for right in values:
            assert word_below(words([left]), words([right])).item() == (left < right)


@pytest.mark.parametrize("columns", [1, 3, 64, 130, 5000, 9001])
def test_a_draw_agrees_with_plain_integers(columns: int) -> None:
    dice = random.Random(columns)
    rows, weights = [], []
    for row in range(6):
        largest = (1 << 32) // columns - 1 if row % 2 else (1 << 31) // columns
        weights.append([dice.randrange(largest) if dice.random() < 0.7 else 0 for _ in range(columns)])
        weights[-1][dice.randrange(columns)] += 1
        rows.append((dice.getrandbits(32), dice.getrandbits(32)))
    found = draw_columns(
        words([value for row in weights for value in row]).view(6, columns),
        words([value for row in rows for value in row]).view(6, 2),
    )
    assert found.tolist() == [slow_draw(row, low, high) for row, (low, high) in zip(weights, rows, strict=True)]


def test_a_single_certain_column_is_always_drawn() -> None:
    weight = fixed_point_weights(torch.tensor([[0.0, 0.0, 1.0, 0.0]])).expand(50, 4)
    dice = random.Random(3)
    random_words = words([dice.getrandbits(32) for _ in range(100)]).view(50, 2)
    assert draw_columns(weight, random_words).tolist() == [2] * 50


def test_a_weight_that_is_off_by_one_seldom_changes_the_token() -> None:
    dice = random.Random(8)
    weights = [dice.randrange(1, 1 << 21) for _ in range(500)]
    shifted = [weight + dice.choice((-1, 0, 1)) for weight in weights]
    random_words = words([dice.getrandbits(32) for _ in range(400)]).view(200, 2)
    one, two = (draw_columns(words(values).expand(200, 500), random_words) for values in (weights, shifted))
    assert torch.equal(one, two)
