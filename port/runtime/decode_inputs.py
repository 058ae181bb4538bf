"""The batch of a decode step: the pending tokens of each sequence (usually one), rows of one sequence in a row."""

from collections.abc import Sequence as SequenceType

import numpy as np
import torch

from port.errors import ShapeBucketError
from port.runtime.cache_layout import CacheLayout
from port.runtime.engram_hash import EngramHash
from port.runtime.input_metadata import PADDING_QUERY_INDEX, InputMetadata
from port.runtime.sequence import Sequence
from port.runtime.slots import compressed_slots, compressor_slots, engram_inputs, int32, window_slots


def build_decode(
    layout: CacheLayout,
    sequences: SequenceType[Sequence],
    *,
    engram: EngramHash | None = None,
    rows: int | None = None,
    table_width: int | None = None,
) -> InputMetadata:
    """Return the batch that runs the pending tokens of each sequence as decode rows.

    Args:
        layout: the cache's slot arithmetic.
        sequences: at least one, each with 1 to `layout.backtracking` pending tokens.
        engram: the model's hash functions; needed where the model has Engram layers.
        rows: query rows of the batch, padding included; as many as there are tokens when None.
        table_width: columns of `block_tables`; as many as the longest context needs when None.

    Returns:
        The batch on the host. Padding rows repeat token 0 at position 0, see nothing and store nothing.

    Raises:
        ValueError: no sequence, or a number of pending tokens out of range.
        ShapeBucketError: `rows` or `table_width` too small for the sequences.
    """
    _check_pending(layout, sequences)
    counts = [sequence.pending for sequence in sequences]
    real = sum(counts)
    total = real if rows is None else rows
    if total < real:
        raise ShapeBucketError(f"rows: expected at least {real}, the pending tokens of all sequences; found {rows}.")
    starts = [sequence.cached for sequence in sequences]
    ends = [len(sequence) for sequence in sequences]
    needed = max(layout.blocks_for(end) for end in ends)
    width = needed if table_width is None else table_width
    if width < needed:
        raise ShapeBucketError(f"table_width: expected at least {needed} blocks for {max(ends)} tokens; found {width}.")

    request = np.repeat(np.arange(len(sequences)), counts)
    positions = np.concatenate([np.arange(start, end) for start, end in zip(starts, ends, strict=True)])
    states = np.array([sequence.state_id for sequence in sequences])[request]
    tables = [np.asarray(sequence.block_table) for sequence in sequences]
    tokens = [np.asarray(sequence.token_ids, dtype=np.int64) for sequence in sequences]
    engram_ids, engram_rows = engram_inputs(engram, tokens, starts, ends)
    pad = _Padding(real, total)
    positions_c, slots_ca, compress_rows, slots_state = {}, {}, {}, {}
    for ratio in layout.ratios:
        key = str(ratio)
        completes = (positions + 1) % ratio == 0
        entry = positions // ratio
        slots = [compressed_slots(layout, ratio, tables[r], entry[i : i + 1])[0] for i, r in enumerate(request)]
        positions_c[key] = pad(np.where(completes, entry * ratio, 0), 0)
        slots_ca[key] = pad(np.where(completes, slots, -1), -1)
        if ratio > 1:
            compress_rows[key] = pad.members(_member_rows(layout, ratio, positions, request, starts, total, completes))
            slots_state[key] = pad(compressor_slots(layout, ratio, states, positions), -1)
    block_tables = np.zeros((real, width), dtype=np.int64)
    for row, r in enumerate(request):
        used = tables[r][:width]
        block_tables[row, : len(used)] = used
    return InputMetadata(
        is_prompt=False,
        num_reqs=len(sequences),
        max_position=width * layout.tokens_per_block - 1,
        input_ids=pad(np.concatenate([ids[s:e] for ids, s, e in zip(tokens, starts, ends, strict=True)]), 0),
        positions=pad(positions, 0),
        ngram_token_ids=None if engram_ids is None else pad(engram_ids.numpy(), 0),
        engram_row_ids={key: pad(rows_.numpy(), 0) for key, rows_ in engram_rows.items()},
        valid_token_mask=torch.arange(total) < real,
        positions_c=positions_c,
        slot_mapping_store_ca=slots_ca,
        compress_rows=compress_rows,
        slot_mapping_store_state=slots_state,
        slot_mapping_store_swa=pad(window_slots(layout, states, positions), -1),
        state_block_idx=pad(states, 0),
        klen={str(ratio): pad((positions + 1) // ratio, 0) for ratio in layout.ratios},
        block_tables=pad(block_tables, 0),
        context_lens=pad(positions + 1, 1),
        query_indices=pad(request, PADDING_QUERY_INDEX),
        kv_swa_index=pad(_window_index(layout, positions, states), -1),
    )


class _Padding:
    """Appends padding rows and makes the tensor."""

    def __init__(self, real: int, total: int) -> None:
        self._missing = total - real
        self._real = real

    def __call__(self, values: np.ndarray, fill: int) -> torch.Tensor:
        values = np.asarray(values)
        tail = np.full((self._missing, *values.shape[1:]), fill, dtype=values.dtype)
        return int32(np.concatenate((values, tail)))

    def members(self, values: np.ndarray) -> torch.Tensor:
        own = np.arange(self._real, self._real + self._missing)[:, None]
        return int32(np.concatenate((values, np.broadcast_to(own, (self._missing, values.shape[1])))))


def _member_rows(
    layout: CacheLayout,
    ratio: int,
    positions: np.ndarray,
    request: np.ndarray,
    starts: SequenceType[int],
    total: int,
    completes: np.ndarray,
) -> np.ndarray:
    """Where the members of the group each row completes lie; a row that completes none names itself."""
    ring = layout.compressor_ring(ratio)
    rows = np.arange(len(positions))
    member = (positions // ratio * ratio)[:, None] + np.arange(ratio)
    in_batch = rows[:, None] - (positions[:, None] - member)
    in_state = total + rows[:, None] * ring + member % ring
    first = np.asarray(starts)[request][:, None]
    found = np.where(member >= first, in_batch, in_state)
    return np.where(completes[:, None], found, rows[:, None])


def _window_index(layout: CacheLayout, positions: np.ndarray, states: np.ndarray) -> np.ndarray:
    """Window slots each row sees, oldest first, right-padded with -1."""
    seen = np.maximum(positions - layout.window + 1, 0)[:, None] + np.arange(layout.window)
    return np.where(seen <= positions[:, None], window_slots(layout, states[:, None], seen), -1)


def _check_pending(layout: CacheLayout, sequences: SequenceType[Sequence]) -> None:
    if not sequences:
        raise ValueError("expected at least one sequence to decode; found none.")
    for i, sequence in enumerate(sequences):
        if not 1 <= sequence.pending <= layout.backtracking:
            raise ValueError(
                f"sequences[{i}]: expected 1 to {layout.backtracking} pending tokens in a decode step (the cache's "
                f"backtracking); found {sequence.pending}. Prefill longer inputs."
            )
