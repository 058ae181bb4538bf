"""RMS normalisation against a loop, and numbers worked by hand."""

import math

import torch

from port.kernels.normalize import rms_norm


def test_worked_by_hand():
    # mean square of (3, 4) is 12.5
    found = rms_norm(torch.tensor([[3.0, 4.0]]), torch.tensor([1.0, 10.0]), eps=0.0)
    torch.testing.assert_close(found, torch.tensor([[3 / math.sqrt(12.5), 40 / math.sqrt(12.5)]]))


def test_agrees_with_a_loop_over_every_element():
    generator = torch.Generator().manual_seed(0)
    x, weight = torch.randn(3, 2, 8, generator=generator), torch.randn(8, generator=generator)
    found = rms_norm(x, weight, eps=0.5)
    for i in range(3):
        for j in range(2):
            row = x[i, j].tolist()
            root = math.sqrt(sum(value * value for value in row) / 8 + 0.5)
            expected = [value / root * factor for value, factor in zip(row, weight.tolist(), strict=True)]
            torch.testing.assert_close(found[i, j], torch.tensor(expected))


def test_bfloat16_is_rounded_once_at_the_end():
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(16, 64, generator=generator).to(torch.bfloat16)
    weight = torch.randn(64, generator=generator).to(torch.bfloat16)
    wide = rms_norm(x.to(torch.float32), weight, eps=1e-20)
    assert torch.equal(rms_norm(x, weight, eps=1e-20), wide.to(torch.bfloat16))
    early = (x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True))).to(torch.bfloat16) * weight
    assert not torch.equal(rms_norm(x, weight, eps=1e-20), early), "rounding before the weight would differ"


def test_the_size_of_a_row_does_not_matter_until_eps_does():
    x = torch.tensor([[1.0, -2.0, 3.0]])
    assert torch.equal(rms_norm(x * 2.0**-20, torch.ones(3), eps=0.0), rms_norm(x, torch.ones(3), eps=0.0))
