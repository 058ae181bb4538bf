"""Rotary position embedding over interleaved pairs, with YaRN frequencies for compressed layers.

Shape letters: P positions in the table, T rows, R rotated channels (R / 2 pairs). Elements 2i and 2i+1 of the last R
channels are one complex number, turned by position times frequency i. There is no magnitude scaling.
Source: DeepSeek-V4.1 `inference/model.py`, precompute_freqs_cis and apply_rotary_emb, revision dba1be0a.
"""

import math

import torch
from torch import Tensor


def plain_frequencies(width: int, theta: float) -> Tensor:
    """Return `theta ** (-2i / width)` for each pair, float32 (R / 2)."""
    return 1.0 / (theta ** (torch.arange(0, width, 2, dtype=torch.float32) / width))


def yarn_frequencies(
    width: int, theta: float, *, factor: float, beta_fast: float, beta_slow: float, original_positions: int
) -> Tensor:
    """Return YaRN's frequencies: fast pairs kept, slow pairs divided by `factor`, a linear ramp between.

    Args:
        width: rotated channels R.
        theta: base of the plain frequencies.
        factor: how far the context was stretched.
        beta_fast: turns over the original context at which the ramp begins.
        beta_slow: turns over the original context at which the ramp ends.
        original_positions: context length before stretching. The change applies at every length, also below it.

    Returns:
        float32 (R / 2).
    """
    low = max(math.floor(_pair_with_turns(beta_fast, width, theta, original_positions)), 0)
    high = min(math.ceil(_pair_with_turns(beta_slow, width, theta, original_positions)), width - 1)
    span = high - low if high != low else 0.001
    ramp = ((torch.arange(width // 2, dtype=torch.float32) - low) / span).clamp(0.0, 1.0)
    keep = 1.0 - ramp
    frequencies = plain_frequencies(width, theta)
    return frequencies / factor * (1.0 - keep) + frequencies * keep


def rotation_table(frequencies: Tensor, positions: int) -> tuple[Tensor, Tensor]:
    """Return cosines and sines for positions 0 up to `positions`, float32 (P, R / 2) each.

    Made on the host: angles grow to the number of positions, where a device's own cosine may be far off. `torch.polar`
    gives the bits of the source; `torch.cos` differs in the last one.
    """
    angles = torch.outer(torch.arange(positions, dtype=torch.float32), frequencies)
    turns = torch.polar(torch.ones_like(angles), angles)
    return turns.real.contiguous(), turns.imag.contiguous()


def rotate_tail(x: Tensor, cos_TR: Tensor, sin_TR: Tensor, *, inverse: bool = False) -> Tensor:
    """Return `x` with its last R channels turned to each row's position.

    Args:
        x: (T, ..., D), float32 or bfloat16, D at least R.
        cos_TR: float32 (T, R / 2), the table's rows at the positions of the rows of `x`.
        sin_TR: float32 (T, R / 2).
        inverse: turn back (the conjugate).

    Returns:
        Same shape and dtype as `x`.

    Numerics: products in float32, one rounding at the end.
    """
    width = cos_TR.shape[-1] * 2
    shape = (x.shape[0], *(1,) * (x.ndim - 2), width // 2)
    cos, sin = cos_TR.view(shape), sin_TR.view(shape)
    if inverse:
        sin = -sin
    pairs = x[..., -width:].to(torch.float32).unflatten(-1, (width // 2, 2))
    real, imaginary = pairs[..., 0], pairs[..., 1]
    turned = torch.stack((real * cos - imaginary * sin, real * sin + imaginary * cos), dim=-1).flatten(-2)
    return torch.cat((x[..., :-width], turned.to(x.dtype)), dim=-1)


def _pair_with_turns(turns: float, width: int, theta: float, positions: int) -> float:
    return width * math.log(positions / (turns * 2 * math.pi)) / (2 * math.log(theta))
