"""The cache: block pools and state slots per layer, with the contract's slot numbers.

Rows are kept dequantised, in the activation dtype, so a read needs no decoding; the packed sizes are in
`port/runtime/cache_layout.py`. Nothing outside this file and the attention modules knows how rows are arranged:
others use `admit`, `release`, `snapshot` and `restore`.

| view | shape | owner |
|---|---|---|
| `ca_cache` | [blocks, 128 / ratio, head_dim] | layers with a compressor |
| `ica_cache` | [blocks, 128 / ratio, index_head_dim] | layers with index keys |
| `ca_state` | float32 [states, compressor ring, 2, head_dim], gate then value | compressors with ratio > 1 |
| `swa_cache` | [states, ring, head_dim] | every layer |
"""

from collections.abc import Sequence as SequenceType
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from port.config import ModelConfig
from port.numerics import NumericProfile
from port.runtime.block_manager import BlockManager
from port.runtime.cache_layout import CacheLayout
from port.runtime.sequence import Sequence
from port.schedule import LayerSchedule


@dataclass(frozen=True, slots=True, kw_only=True)
class KVCache:
    """The tensors one layer reads and writes; a consumer shares those of its source.

    Attributes:
        swa_cache: window rings, this layer's own.
        ca_cache: compressed entries of the layer's KV source; None for ratio 0.
        ica_cache: index keys of the layer's index-key source; None for ratio 0.
        ca_state: unfinished groups; only where this layer compresses with a ratio above 1.
    """

    swa_cache: Tensor
    ca_cache: Tensor | None = None
    ica_cache: Tensor | None = None
    ca_state: Tensor | None = None

    @property
    def window_rows(self) -> Tensor:
        """`swa_cache` by window slot: [states * ring, head_dim]."""
        return self.swa_cache.flatten(0, 1)


@dataclass(frozen=True, slots=True)
class LayerSnapshot:
    """Copies of what one layer may change, for the blocks and states in use when it was taken.

    Attributes:
        layer: index of the layer.
        block_ids: blocks copied.
        state_ids: state slots copied.
        tensors: copies by view name.
    """

    layer: int
    block_ids: tuple[int, ...]
    state_ids: tuple[int, ...]
    tensors: dict[str, Tensor]

    @property
    def nbytes(self) -> int:
        """Bytes held by the copies."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors.values())


class CacheEngine:
    """Pools for all layers, and the bookkeeping of who holds which block and state.

    Args:
        config: the model's configuration.
        profile: its activation dtype is the dtype of the rows.
        num_blocks: blocks in the pool, the reserved one included.
        num_states: state slots, the reserved one included.
        backtracking: tokens that may be taken back.
        device: where the pools lie.
    """

    def __init__(
        self,
        config: ModelConfig,
        *,
        profile: NumericProfile,
        num_blocks: int,
        num_states: int,
        backtracking: int = 1,
        device: torch.device | str = "cpu",
    ) -> None:
        self.layout = CacheLayout.from_config(config, backtracking=backtracking)
        self.blocks = BlockManager(num_blocks)
        self.states = BlockManager(num_states)
        self._schedule = LayerSchedule.from_config(config)
        dtype = torch.bfloat16 if profile.activation == "bfloat16" else torch.float32
        self.kv_caches = _allocate(config, self._schedule, self.layout, num_blocks, num_states, dtype, device)

    @classmethod
    def for_lengths(
        cls,
        config: ModelConfig,
        lengths: SequenceType[int],
        *,
        profile: NumericProfile,
        backtracking: int = 1,
        device: torch.device | str = "cpu",
    ) -> "CacheEngine":
        """Return a cache just large enough for sequences of these final lengths at the same time."""
        layout = CacheLayout.from_config(config, backtracking=backtracking)
        return cls(
            config,
            profile=profile,
            num_blocks=1 + sum(layout.blocks_for(length) for length in lengths),
            num_states=1 + len(lengths),
            backtracking=backtracking,
            device=device,
        )

    @property
    def nbytes(self) -> int:
        """Bytes of all pools as held here (dequantised)."""
        owned = {id(tensor): tensor for cache in self.kv_caches for tensor in _views(cache).values()}
        return sum(tensor.numel() * tensor.element_size() for tensor in owned.values())

    def admit(self, token_ids: SequenceType[int], *, max_tokens: int = 0) -> Sequence:
        """Return a new sequence with room for `max_tokens` more tokens than it has.

        Raises:
            PortError: too few free blocks or states; nothing is taken.
        """
        needed = self.layout.blocks_for(len(token_ids) + max_tokens)
        table = self.blocks.allocate(needed)
        try:
            (state_id,) = self.states.allocate(1)
        except Exception:
            self.blocks.free(table)
            raise
        return Sequence(token_ids=tuple(token_ids), block_table=table, state_id=state_id)

    def release(self, sequence: Sequence) -> None:
        """Give back the blocks and the state of a sequence."""
        self.blocks.free(sequence.block_table)
        self.states.free((sequence.state_id,))

    def snapshot(self, layer: int) -> LayerSnapshot:
        """Return copies of everything a step of `layer` may change, so that it can be run again."""
        blocks, states = self.blocks.in_use, self.states.in_use
        tensors = {}
        for name, tensor in _views(self._owned(layer)).items():
            ids = blocks if name in _BLOCK_VIEWS else states
            tensors[name] = tensor[torch.tensor(ids, dtype=torch.int64, device=tensor.device)].clone()
        return LayerSnapshot(layer, blocks, states, tensors)

    def restore(self, snapshot: LayerSnapshot) -> None:
        """Put the copies of a snapshot back, in place."""
        views = _views(self._owned(snapshot.layer))
        for name, tensor in snapshot.tensors.items():
            ids = snapshot.block_ids if name in _BLOCK_VIEWS else snapshot.state_ids
            index = torch.tensor(ids, dtype=torch.int64, device=views[name].device)
            views[name].index_copy_(0, index, tensor.to(views[name].device, views[name].dtype))

    def _owned(self, layer: int) -> KVCache:
        """Return the views that a step of this layer writes to: its window, and what it is the source of."""
        cache, role = self.kv_caches[layer], self._schedule[layer]
        return KVCache(
            swa_cache=cache.swa_cache,
            ca_cache=cache.ca_cache if role.owns_kv else None,
            ica_cache=cache.ica_cache if role.owns_index_k else None,
            ca_state=cache.ca_state,
        )


_BLOCK_VIEWS = ("ca_cache", "ica_cache")


def _views(cache: KVCache) -> dict[str, Tensor]:
    found = ((spec.name, getattr(cache, spec.name)) for spec in fields(cache))
    return {name: tensor for name, tensor in found if tensor is not None}


def _allocate(
    config: ModelConfig,
    schedule: LayerSchedule,
    layout: CacheLayout,
    num_blocks: int,
    num_states: int,
    dtype: torch.dtype,
    device: torch.device | str,
) -> tuple[KVCache, ...]:
    # Zeros, not empty: row 0 of every pool is what a slot of -1 reads.
    compressed: dict[int, Tensor] = {}
    index_keys: dict[int, Tensor] = {}
    caches = []
    for role in schedule.roles:
        state = None
        if role.owns_kv:
            entries = layout.entries_per_block(role.ratio)
            compressed[role.layer] = torch.zeros(num_blocks, entries, config.head_dim, dtype=dtype, device=device)
            if role.ratio > 1:
                shape = (num_states, layout.compressor_ring(role.ratio), 2, config.head_dim)
                state = torch.zeros(shape, dtype=torch.float32, device=device)
        if role.owns_index_k:
            entries = layout.entries_per_block(role.ratio)
            index_keys[role.layer] = torch.zeros(num_blocks, entries, config.index_head_dim, dtype=dtype, device=device)
        caches.append(
            KVCache(
                swa_cache=torch.zeros(num_states, layout.ring, config.head_dim, dtype=dtype, device=device),
                ca_cache=None if role.kv_source is None else compressed[role.kv_source],
                ica_cache=None if role.index_k_source is None else index_keys[role.index_k_source],
                ca_state=state,
            )
        )
    return tuple(caches)
