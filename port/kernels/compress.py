"""One latent per group of tokens: the pooling of the compressor.

Shape letters: C new compressed entries, J tokens per entry (the layer's ratio), D head width.
Source: DeepSeek-V4.1 `inference/model.py`, Compressor.forward, revision dba1be0a.
"""

import torch
from torch import Tensor


def pool_groups(gate_CJD: Tensor, value_CJD: Tensor) -> Tensor:
    """Return one latent per group: values weighted by a softmax of their gates over the group, per channel.

    Args:
        gate_CJD: float32 (C, J, D), logits of the weights.
        value_CJD: float32 (C, J, D).

    Returns:
        float32 (C, D).

    Numerics: float32; the caller rounds.
    """
    return (torch.softmax(gate_CJD, dim=1) * value_CJD).sum(dim=1)
