"""The two rotation tables of the model: window-only layers turn plainly, compressed layers with YaRN."""

import torch
from torch import Tensor, nn

from port.config import ModelConfig
from port.kernels.rotary import plain_frequencies, rotation_table, yarn_frequencies
from port.schedule import RopeKind


class RotationTable(nn.Module):
    """Cosines and sines by absolute position, float32 (positions, R / 2). Not part of the state dict."""

    cos: Tensor
    sin: Tensor

    def __init__(self, frequencies: Tensor, positions: int, device: torch.device | str) -> None:
        super().__init__()
        cos, sin = rotation_table(frequencies, positions)
        self.register_buffer("cos", cos.to(device), persistent=False)
        self.register_buffer("sin", sin.to(device), persistent=False)

    def forward(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return the cosines and sines of int32 positions (T,), each (T, R / 2)."""
        return nn.functional.embedding(positions, self.cos), nn.functional.embedding(positions, self.sin)


def rotation_tables(config: ModelConfig, positions: int, device: torch.device | str) -> dict[RopeKind, RotationTable]:
    """Return the tables of both kinds. The kind is a layer's: its queries, window keys and index rows all share it."""
    window = plain_frequencies(config.qk_rope_head_dim, config.rope_theta)
    scaling = config.rope_scaling
    if scaling is None:
        compress = plain_frequencies(config.qk_rope_head_dim, config.compress_rope_theta)
    else:
        compress = yarn_frequencies(
            config.qk_rope_head_dim,
            config.compress_rope_theta,
            factor=scaling.factor,
            beta_fast=scaling.beta_fast,
            beta_slow=scaling.beta_slow,
            original_positions=scaling.original_max_position_embeddings,
        )
    return {
        "window": RotationTable(window, positions, device),
        "compress": RotationTable(compress, positions, device),
    }
