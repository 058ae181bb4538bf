"""What one forward pass is told about its batch: tokens, positions, and slot numbers, all computed on the host.

Field names are those of the runtime contracts (section 9) where the content is the same. Four differ, because caches
here are read by row: `load_slots_swa` and `load_slots_ca` are the contract's load segments written out per row, and
`compress_rows` and `slot_mapping_store_state` say in slots what its compressor kernel computes for itself.

Index tensors are int32. Dictionaries have one entry per compression ratio, keyed "1", "2".
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

PADDING_QUERY_INDEX = 998244353


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestSpan:
    """The part of a flattened prefill that belongs to one request, in plain integers: slicing reads no device.

    Attributes:
        rows: first query row and the row after the last.
        entries: per ratio, first gathered entry and the one after the last.
    """

    rows: tuple[int, int]
    entries: dict[str, tuple[int, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class InputMetadata:
    """One flattened batch. T = query rows, W = window, C = new compressed entries, S = requests.

    Attributes:
        is_prompt: prefill (any number of rows per request) or decode.
        num_reqs: real requests, padding rows not counted.
        max_position: no position is above it. A decode takes the last one its block tables can hold, so that steps of
            the same shapes have the same plain integers and one compiled graph serves them all.
        input_ids: (T,).
        positions: (T,), absolute.
        ngram_token_ids: (T, n) compressed ids, newest first; None without Engram.
        engram_row_ids: per Engram layer, keyed by its id, table rows (T, columns).
        valid_token_mask: bool (T,), false on padding rows; None when every row is real.
        selected_token_indices: rows whose logits are wanted; None for all.
        positions_c: per ratio (C,), position of each new entry's first token; 0 for a row that produces nothing.
        slot_mapping_store_ca: per ratio (C,), compressed slot of each new entry, or -1.
        compress_rows: per ratio above 1 (C, ratio), where each member of the group lies: below T a row of this
            batch, above it T + request * compressor ring + position % compressor ring.
        slot_mapping_store_state: per ratio above 1 (T,), compressor slot of each row, or -1.
        slot_mapping_store_swa: (T,), window slot of each row, or -1.
        state_block_idx: state id per request (prefill) or per row (decode).
        klen: per ratio (T,), entries each row may see.
        cu_seqlens_q, cu_seqlens_k: prefill, (S + 1,) prefix sums.
        cu_compressed_seqlens_q: prefill, per ratio (S + 1,), prefix sums of new entries (at least 1 per request).
        load_slots_swa: prefill, (S * W,), window slot of each of the W positions before a request's first row, or -1.
        kv_swa_full_index: prefill, (T, W), rows of [history | this batch] that each row sees, or -1.
        load_slots_ca: prefill, per ratio, compressed slot of every entry of every request in order (-1 for a dummy).
        ks, ke: prefill, per ratio (T,), first visible gathered entry and the one after the last.
        requests: prefill, one span per request.
        block_tables: decode, (T, blocks).
        context_lens: decode, (T,), position + 1.
        query_indices: decode, (T,), request of each row.
        kv_swa_index: decode, (T, W), window slots each row sees, or -1.
    """

    is_prompt: bool
    num_reqs: int
    max_position: int
    input_ids: Tensor
    positions: Tensor
    positions_c: dict[str, Tensor]
    slot_mapping_store_ca: dict[str, Tensor]
    compress_rows: dict[str, Tensor]
    slot_mapping_store_state: dict[str, Tensor]
    slot_mapping_store_swa: Tensor
    state_block_idx: Tensor
    klen: dict[str, Tensor]
    ngram_token_ids: Tensor | None = None
    engram_row_ids: dict[str, Tensor] = field(default_factory=dict)
    valid_token_mask: Tensor | None = None
    selected_token_indices: Tensor | None = None
    cu_seqlens_q: Tensor | None = None
    cu_seqlens_k: Tensor | None = None
    cu_compressed_seqlens_q: dict[str, Tensor] = field(default_factory=dict)
    load_slots_swa: Tensor | None = None
    kv_swa_full_index: Tensor | None = None
    load_slots_ca: dict[str, Tensor] = field(default_factory=dict)
    ks: dict[str, Tensor] = field(default_factory=dict)
    ke: dict[str, Tensor] = field(default_factory=dict)
    requests: tuple[RequestSpan, ...] = ()
    block_tables: Tensor | None = None
    context_lens: Tensor | None = None
    query_indices: Tensor | None = None
    kv_swa_index: Tensor | None = None

    @property
    def total_q(self) -> int:
        """Query rows, padding included."""
        return self.input_ids.shape[0]

    def map(self, function: Callable[[Tensor], Tensor]) -> "InputMetadata":
        """Return the batch with `function` applied to every tensor."""
        changes: dict[str, object] = {}
        for spec in dataclasses.fields(self):
            value = getattr(self, spec.name)
            if isinstance(value, Tensor):
                changes[spec.name] = function(value)
            elif isinstance(value, dict):
                changes[spec.name] = {key: function(tensor) for key, tensor in value.items()}
        return dataclasses.replace(self, **changes)  # pyright: ignore[reportArgumentType]

    def to(self, device: torch.device | str) -> "InputMetadata":
        """Return the batch with its tensors on a device; itself when they are there already."""
        if self.input_ids.device == torch.device(device):
            return self
        return self.map(lambda tensor: tensor.to(device))

    def tensors(self) -> dict[str, Tensor]:
        """Return every tensor by name, dictionary entries as `field.key`."""
        found: dict[str, Tensor] = {}
        for spec in dataclasses.fields(self):
            value = getattr(self, spec.name)
            if isinstance(value, Tensor):
                found[spec.name] = value
            elif isinstance(value, dict):
                found |= {f"{spec.name}.{key}": tensor for key, tensor in value.items()}
        return found
