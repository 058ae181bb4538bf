"""Rows on their way into a cache or a product: normalised, then rotated.

Shape letters: N rows, K channels of a row, R rotated channels; `...` stands for heads.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from port.kernels.normalize import rms_norm
from port.kernels.rotary import rotate_tail


class PreparedRows(NamedTuple):
    """Rows after two stages.

    Attributes:
        normed: after the norm; the input itself where there is none.
        turned: after the rotation; `normed` where there is none.
    """

    normed: Tensor
    turned: Tensor


def prepare_rows(
    x: Tensor,
    weight_K: Tensor | None,
    rotation: tuple[Tensor, Tensor] | None,
    *,
    eps: float,
    rotary_offset: int = 0,
    inverse: bool = False,
) -> PreparedRows:
    """Return rows normalised and rotated, with what they were in between.

    Args:
        x: (N, ..., K), float32 or bfloat16.
        weight_K: weight of the norm over K, or None for no norm.
        rotation: cosines and sines, float32 (N, R / 2) each, or None for no rotation.
        eps: added to the mean square.
        rotary_offset: first of the R channels that turn.
        inverse: turn back.

    Returns:
        Both stages, shape and dtype of `x`: each rounds once to that dtype, before the next one reads it.
    """
    normed = x if weight_K is None else rms_norm(x, weight_K, eps=eps)
    if rotation is None:
        return PreparedRows(normed, normed)
    end = rotary_offset + 2 * rotation[0].shape[-1]
    turned = rotate_tail(normed[..., :end], *rotation, inverse=inverse)
    return PreparedRows(normed, turned if end == x.shape[-1] else torch.cat((turned, normed[..., end:]), dim=-1))
