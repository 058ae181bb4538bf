"""Norm and rotation of rows, one rounding each."""

from __future__ import annotations

import torch

from port.kernels.normalize import rms_norm
from port.kernels.rotary import rotate_tail
from port.kernels.row_pipeline import prepare_rows


def test_the_rotation_reads_the_rounded_norm() -> None:
    x = torch.randn(3, 8, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    weight, cosine, sine = torch.ones(8), torch.full((3, 2), 0.6), torch.full((3, 2), 0.8)
    rows = prepare_rows(x, weight, (cosine, sine), eps=1e-6, rotary_offset=4)
    assert torch.equal(rows.normed, rms_norm(x, weight, eps=1e-6))
    assert torch.equal(rows.turned, rotate_tail(rows.normed, cosine, sine))


def test_channels_on_both_sides_of_the_rotated_ones_stay() -> None:
    x = torch.arange(6.0).unsqueeze(0)
    rows = prepare_rows(x, None, (torch.zeros(1, 1), torch.ones(1, 1)), eps=0.0, rotary_offset=2)
    assert rows.normed is x
    assert rows.turned.tolist() == [[0.0, 1.0, -3.0, 2.0, 4.0, 5.0]]


def test_turning_back_undoes_the_turn() -> None:
    x = torch.arange(4.0).unsqueeze(0)
    turn = torch.tensor([[0.6, 0.0]]), torch.tensor([[0.8, 1.0]])
    turned = prepare_rows(x, None, turn, eps=0.0).turned
    assert torch.allclose(prepare_rows(turned, None, turn, eps=0.0, inverse=True).turned, x)
