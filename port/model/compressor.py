"""The compressor of a KV-source layer: one latent per `ratio` tokens, and the cache rows made from it."""

import torch
from torch import Tensor, nn

from port.config import ModelConfig
from port.kernels.compress import pool_groups
from port.kernels.gather import store_rows
from port.model.precision import Precision
from port.model.weights import Linear, RMSNorm
from port.runtime.cache_engine import KVCache
from port.runtime.input_metadata import InputMetadata


class Compressor(nn.Module):
    """Pools groups of `ratio` tokens at absolute positions; ratio 1 projects every token by itself and has no gate."""

    def __init__(self, config: ModelConfig, ratio: int, precision: Precision) -> None:
        super().__init__()
        self.wkv = Linear(config.head_dim, config.hidden_size, stored="bf16")
        if ratio > 1:
            self.wgate = Linear(config.head_dim, config.hidden_size, stored="bf16")
        self.norm = RMSNorm(config.head_dim, eps=config.rms_norm_eps)
        self.ratio = ratio
        self.precision = precision

    def forward(self, y: Tensor, batch: InputMetadata, cache: KVCache) -> Tensor:
        """Return the normalised latent of each new entry, before rotation.

        Args:
            y: (T, D), the attention input.
            batch: says which rows make up each entry.
            cache: `ca_state` keeps the rows of groups that are not complete yet; changed.

        Returns:
            (C, head_dim), the activation dtype. A row that completes nothing (decode, or a chunk too short) holds an
            arbitrary latent whose slot is -1.
        """
        precision = self.precision
        if self.ratio == 1:
            return self.norm(self.wkv(y, operands=precision.operands, out_dtype=precision.activation))
        value = self.wkv(y, operands=precision.operands, out_dtype=torch.float32)
        gate = self.wgate(y, operands=precision.operands, out_dtype=torch.float32)
        gate_members, value_members = self._group_members(gate, value, batch, cache)
        latent = pool_groups(gate_members, value_members)
        return self.norm(latent.to(precision.activation))

    def _group_members(
        self, gate: Tensor, value: Tensor, batch: InputMetadata, cache: KVCache
    ) -> tuple[Tensor, Tensor]:
        """Return gates and values of each group, (C, ratio, head_dim) each, and keep this batch's rows."""
        assert cache.ca_state is not None, "a compressor with ratio above 1 owns a state"
        key = str(self.ratio)
        rows = torch.stack((gate, value), dim=1)
        state = cache.ca_state
        # Read before storing: the ring may still hold the first half of a group whose slot this batch takes over.
        held = nn.functional.embedding(batch.state_block_idx, state.flatten(1)).view(-1, *state.shape[2:])
        store_rows(state.flatten(0, 1).flatten(1), batch.slot_mapping_store_state[key], rows.flatten(1))
        members = torch.cat((rows, held)).flatten(1)
        members = nn.functional.embedding(batch.compress_rows[key], members)
        gate_members, value_members = members.unflatten(-1, rows.shape[1:]).unbind(dim=2)
        return gate_members, value_members
