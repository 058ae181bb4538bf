"""Attention of one layer: its own window, plus the compressed entries that its index source selected.

One latent row per token is key and value at once. A layer may own a compressor (KV source), index keys and an indexer,
or borrow all three from an earlier layer; see `port/schedule.py`.
"""

import torch
from torch import Tensor, nn

from port.config import ModelConfig
from port.kernels.attention import KeySource, sparse_attention
from port.kernels.gather import load_rows, store_rows
from port.kernels.index_lists import paged_slots, shift_index
from port.kernels.linear import grouped_linear
from port.kernels.rotary import rotate_tail
from port.model.compressor import Compressor
from port.model.forward_state import ForwardState
from port.model.indexer import Indexer
from port.model.precision import Precision
from port.model.rotary import RotationTable
from port.model.taps import Tap
from port.model.weights import Linear, RMSNorm, meta_parameter
from port.runtime.cache_engine import KVCache
from port.runtime.input_metadata import InputMetadata
from port.schedule import LayerRole


class Attention(nn.Module):
    """One layer's attention. Names are the checkpoint's."""

    def __init__(self, config: ModelConfig, role: LayerRole, precision: Precision) -> None:
        super().__init__()
        heads, head_width, width = config.num_attention_heads, config.head_dim, config.hidden_size
        eps = config.rms_norm_eps
        self.attn_sink = meta_parameter(heads, dtype=torch.float32)
        self.wq_a = Linear(config.q_lora_rank, width, stored="fp8")
        self.q_norm = RMSNorm(config.q_lora_rank, eps=eps)
        self.wq_b = Linear(heads * head_width, config.q_lora_rank, stored="fp8")
        self.wkv = Linear(head_width, width, stored="fp8")
        self.kv_norm = RMSNorm(head_width, eps=eps)
        self.wo_a = Linear(config.o_groups * config.o_lora_rank, heads * head_width // config.o_groups, stored="fp8")
        self.wo_b = Linear(width, config.o_groups * config.o_lora_rank, stored="fp8")
        if role.owns_kv:
            self.compressor = Compressor(config, role.ratio, precision)
        if role.owns_index:
            self.indexer = Indexer(config, role, precision)
        self.config = config
        self.role = role
        self.precision = precision
        self._prefix = f"layers.{role.layer}.attn"

    def forward(
        self,
        y: Tensor,
        state: ForwardState,
        batch: InputMetadata,
        cache: KVCache,
        rotations: RotationTable,
        tap: Tap,
    ) -> tuple[Tensor, ForwardState]:
        """Return the attention output (T, D) and the state with what this layer published.

        Args:
            y: (T, D), normalised input.
            state: what source layers published.
            batch: positions, slots and lengths.
            cache: this layer's views; its window and, for a source, new entries are stored.
            rotations: the table of this layer's kind.
            tap: see `port/model/taps.py`.
        """
        precision, prefix, role = self.precision, self._prefix, self.role
        rotation = rotations(batch.positions)
        y_in = precision.linear_input(y)
        query_latent = precision.linear_input(self.q_norm(self._project(self.wq_a, y_in)))
        query = self._project(self.wq_b, query_latent).unflatten(-1, (self.config.num_attention_heads, -1))
        query = tap(f"{prefix}.q", rotate_tail(query, *rotation))
        window_row = rotate_tail(self.kv_norm(self._project(self.wkv, y_in)), *rotation)
        window_row = tap(f"{prefix}.kv", precision.window_row(window_row))

        if role.owns_kv:
            state = self._compress(y, state, batch, cache, rotations, tap)
        if role.owns_index:
            state = self._select(y, query_latent, rotation, state, batch, cache, tap)
        sources = [self._window_source(window_row, batch, cache)]
        if role.ratio > 0:
            sources.append(self._compressed_source(state, batch, cache))

        mixed = sparse_attention(
            query,
            tuple(sources),
            self.attn_sink,
            scale=self.config.head_dim**-0.5,
            operands=precision.operands,
            probability_dtype=precision.probabilities,
        )
        # Keys double as values, so the output still carries the keys' rotation: turn it back by the query's position.
        mixed = tap(f"{prefix}.heads", rotate_tail(mixed, *rotation, inverse=True))
        return tap(f"{prefix}.out", self._output(mixed)), state

    def _project(self, linear: Linear, x: Tensor) -> Tensor:
        return linear(x, operands=self.precision.operands, out_dtype=self.precision.activation)

    def _compress(
        self,
        y: Tensor,
        state: ForwardState,
        batch: InputMetadata,
        cache: KVCache,
        rotations: RotationTable,
        tap: Tap,
    ) -> ForwardState:
        """Store the entries this batch completes; in a prefill, publish all entries of its requests."""
        assert cache.ca_cache is not None, "a KV source has a compressed cache"
        key, layer = str(self.role.ratio), self.role.layer
        rotation = rotations(batch.positions_c[key])
        slots = batch.slot_mapping_store_ca[key]
        latent = self.compressor(y, batch, cache)
        entry = tap(f"{self._prefix}.compressed", self.precision.compressed_row(rotate_tail(latent, *rotation)))
        store_rows(cache.ca_cache.flatten(0, 1), slots, entry)
        if batch.is_prompt:
            state = state.replace(compressed={layer: load_rows(cache.ca_cache.flatten(0, 1), batch.load_slots_ca[key])})
        if self.role.owns_index_k:
            assert cache.ica_cache is not None, "an index-key source has an index cache"
            index_key = tap(f"{self._prefix}.index_key", self.indexer.keys(latent, rotation))
            store_rows(cache.ica_cache.flatten(0, 1), slots, index_key)
            if batch.is_prompt:
                keys = load_rows(cache.ica_cache.flatten(0, 1), batch.load_slots_ca[key])
                state = state.replace(index_keys={layer: keys})
        return state

    def _select(
        self,
        y: Tensor,
        query_latent: Tensor,
        rotation: tuple[Tensor, Tensor],
        state: ForwardState,
        batch: InputMetadata,
        cache: KVCache,
        tap: Tap,
    ) -> ForwardState:
        """Publish the entries this layer's indexer selects, and the candidate blocks where it is their source."""
        gathered = state.index_keys[self._source("index_k_source")] if batch.is_prompt else None
        allowed = state.candidate_blocks
        selection = self.indexer(y, query_latent, rotation, batch, cache, gathered, allowed, tap)
        state = state.replace(selection={self.role.layer: selection.entries})
        if selection.candidate_blocks is not None:
            state = state.replace(candidate_blocks=selection.candidate_blocks)
        return state

    def _window_source(self, window_row: Tensor, batch: InputMetadata, cache: KVCache) -> KeySource:
        """Store this batch's window rows and return the rows its queries see."""
        rows = cache.window_rows
        if batch.is_prompt:
            assert batch.load_slots_swa is not None, "a prefill batch says where its history lies"
            assert batch.kv_swa_full_index is not None, "a prefill batch has a window index"
            # Read before storing: the new rows may take the slots of history that is still needed.
            history = load_rows(rows, batch.load_slots_swa)
            store_rows(rows, batch.slot_mapping_store_swa, window_row)
            return KeySource(torch.cat((history, window_row)), batch.kv_swa_full_index)
        assert batch.kv_swa_index is not None, "a decode batch has a window index"
        store_rows(rows, batch.slot_mapping_store_swa, window_row)
        return KeySource(rows, batch.kv_swa_index)

    def _compressed_source(self, state: ForwardState, batch: InputMetadata, cache: KVCache) -> KeySource:
        """Return the selected entries: rows of the gathered line in a prefill, cache slots in a decode."""
        entries = state.selection[self._source("index_source")]
        key = str(self.role.ratio)
        if batch.is_prompt:
            rows = state.compressed[self._source("kv_source")]
            columns = min(entries.shape[1], rows.shape[0])
            entries = entries[:, :columns]
            return KeySource(rows, shift_index(entries, batch.ks[key].unsqueeze(-1)))
        assert cache.ca_cache is not None, "a layer with a ratio reads a compressed cache"
        assert batch.block_tables is not None, "a decode batch has block tables"
        per_block = cache.ca_cache.shape[1]
        columns = min(entries.shape[1], batch.block_tables.shape[1] * per_block)
        entries = entries[:, :columns]
        slots = paged_slots(entries, batch.block_tables, entries_per_block=per_block, valid_NJ=entries >= 0)
        return KeySource(cache.ca_cache.flatten(0, 1), slots)

    def _output(self, mixed: Tensor) -> Tensor:
        """Return the grouped low-rank output projection of (T, heads, head_dim): (T, D)."""
        precision, groups = self.precision, self.config.o_groups
        grouped = precision.grouped_linear_input(mixed.flatten(1)).unflatten(-1, (groups, -1))
        weight = self.wo_a.dense if self.wo_a.dense is not None else self.wo_a.densified(precision.operands)
        low_rank = grouped_linear(
            grouped,
            weight.unflatten(0, (groups, -1)),
            operands=precision.operands,
            out_dtype=precision.activation,
        )
        return self._project(self.wo_b, precision.linear_input(low_rank.flatten(1)))

    def _source(self, kind: str) -> int:
        layer = getattr(self.role, kind)
        assert layer is not None, f"layer {self.role.layer} with ratio {self.role.ratio} has a {kind}"
        return layer
