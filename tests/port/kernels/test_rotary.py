"""Rotary embedding: golden tables to the bit, turns worked by hand, and a loop of complex numbers."""

import cmath
import math

import pytest
import torch

from port.kernels.rotary import plain_frequencies, rotate_tail, rotation_table, yarn_frequencies
from tests.port.golden import units

YARN = {"beta_fast": 32, "beta_slow": 1}


@pytest.mark.parametrize(("name", "width", "theta"), [("A", 16, 10000.0), ("C", 24, 10000.0)])
def test_plain_tables_equal_the_golden_bits(name, width, theta):
    cos, sin = rotation_table(plain_frequencies(width, theta), 256)
    assert torch.equal(cos, units()[f"rope.{name}.window.cos"])
    assert torch.equal(sin, units()[f"rope.{name}.window.sin"])


@pytest.mark.parametrize(
    ("name", "width", "theta", "factor", "original"),
    [("A", 16, 160000.0, 16, 64), ("C", 24, 40000.0, 8, 48), ("release", 64, 160000.0, 16, 65536)],
)
def test_yarn_tables_equal_the_golden_bits(name, width, theta, factor, original):
    frequencies = yarn_frequencies(width, theta, factor=factor, original_positions=original, **YARN)
    expected = units()[f"rope.{name}.compress.cos"]
    cos, sin = rotation_table(frequencies, expected.shape[0])
    assert torch.equal(cos, expected)
    assert torch.equal(sin, units()[f"rope.{name}.compress.sin"])


def test_released_ramp_runs_from_pair_15_to_pair_25():
    plain = plain_frequencies(64, 160000.0)
    yarn = yarn_frequencies(64, 160000.0, factor=16, original_positions=65536, **YARN)
    assert torch.equal(yarn[:16], plain[:16]), "pairs up to 15 are kept"
    torch.testing.assert_close(yarn[25:], plain[25:] / 16, rtol=1e-6, atol=0)
    assert bool((yarn[16:25] < plain[16:25]).all())
    assert bool((yarn[16:25] > plain[16:25] / 16).all())


def test_a_ramp_of_no_width_is_a_step():
    # Both ends of the ramp fall on pair 0: pair 0 is kept, all others are divided.
    plain = plain_frequencies(8, 1e4)
    yarn = yarn_frequencies(8, 1e4, factor=4, original_positions=5, beta_fast=2, beta_slow=1)
    torch.testing.assert_close(yarn, torch.cat((plain[:1], plain[1:] / 4)))


def test_frequencies_worked_by_hand():
    torch.testing.assert_close(plain_frequencies(4, 100.0), torch.tensor([1.0, 0.1]))
    cos, sin = rotation_table(torch.tensor([math.pi / 2]), 3)
    torch.testing.assert_close(cos, torch.tensor([[1.0], [0.0], [-1.0]]), atol=1e-6, rtol=0)
    torch.testing.assert_close(sin, torch.tensor([[0.0], [1.0], [0.0]]), atol=1e-6, rtol=0)


def test_a_quarter_turn_swaps_the_two_elements_of_a_pair():
    x = torch.tensor([[9.0, 1.0, 2.0, 3.0, 4.0]])
    cos, sin = torch.zeros(1, 2), torch.ones(1, 2)
    assert rotate_tail(x, cos, sin).tolist() == [[9.0, -2.0, 1.0, -4.0, 3.0]]
    assert rotate_tail(x, cos, sin, inverse=True).tolist() == [[9.0, 2.0, -1.0, 4.0, -3.0]]


def test_agrees_with_complex_numbers_one_by_one():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(5, 3, 10, generator=generator)
    frequencies = plain_frequencies(6, 50.0)
    cos, sin = rotation_table(frequencies, 40)
    positions = torch.tensor([0, 7, 7, 39, 12])
    found = rotate_tail(x, cos[positions], sin[positions])
    for t, position in enumerate(positions.tolist()):
        for head in range(3):
            row = x[t, head].tolist()
            expected = row[:4]
            for i, frequency in enumerate(frequencies.tolist()):
                turned = complex(row[4 + 2 * i], row[5 + 2 * i]) * cmath.exp(1j * position * frequency)
                expected += [turned.real, turned.imag]
            torch.testing.assert_close(found[t, head], torch.tensor(expected), rtol=1e-5, atol=1e-5)


def test_turning_back_gives_what_was_there():
    x = torch.randn(6, 2, 8, generator=torch.Generator().manual_seed(1))
    cos, sin = rotation_table(plain_frequencies(8, 1e4), 6)
    torch.testing.assert_close(rotate_tail(rotate_tail(x, cos, sin), cos, sin, inverse=True), x)
    assert torch.equal(rotate_tail(x, cos, sin)[0], x[0]), "position 0 is not turned"
