"""The batch of a prefill: any number of tokens of each sequence, from any position on, all rows in one line."""

from collections.abc import Sequence as SequenceType
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from port.runtime.cache_layout import CacheLayout
from port.runtime.engram_hash import EngramHash
from port.runtime.input_metadata import InputMetadata, RequestSpan
from port.runtime.sequence import Sequence
from port.runtime.slots import compressed_slots, compressor_slots, engram_inputs, int32, window_slots


def build_prefill(
    layout: CacheLayout,
    sequences: SequenceType[Sequence],
    *,
    engram: EngramHash | None = None,
    chunk_lens: SequenceType[int] | None = None,
    logits: Literal["all", "last"] = "all",
) -> InputMetadata:
    """Return the batch that runs the next tokens of each sequence.

    Args:
        layout: the cache's slot arithmetic.
        sequences: at least one; each continues at its `cached` position.
        engram: the model's hash functions; needed where the model has Engram layers.
        chunk_lens: tokens to run of each sequence, all that are pending when None.
        logits: for every row, or only for the last row of each sequence.

    Returns:
        The batch on the host. Running it stores `chunk_lens` more tokens of each sequence: go on with
        `sequence.advanced(chunk_len)`.

    Raises:
        ValueError: no sequence, or a chunk that is empty or longer than what is pending.
    """
    chunk_lens = [sequence.pending for sequence in sequences] if chunk_lens is None else list(chunk_lens)
    _check_chunks(sequences, chunk_lens)
    starts = [sequence.cached for sequence in sequences]
    ends = [start + length for start, length in zip(starts, chunk_lens, strict=True)]
    positions = np.concatenate([np.arange(start, end) for start, end in zip(starts, ends, strict=True)])
    request = np.repeat(np.arange(len(sequences)), chunk_lens)
    row_begin = _prefix_sums(chunk_lens)
    tokens = [np.asarray(sequence.token_ids, dtype=np.int64) for sequence in sequences]
    states = np.array([sequence.state_id for sequence in sequences])
    from_end = np.repeat(ends, chunk_lens) - positions
    engram_ids, engram_rows = engram_inputs(engram, tokens, starts, ends)
    by_ratio = {str(ratio): _RatioInputs(layout, ratio, sequences, starts, ends, row_begin) for ratio in layout.ratios}
    pooled = {key: inputs for key, inputs in by_ratio.items() if inputs.ratio > 1}
    return InputMetadata(
        is_prompt=True,
        num_reqs=len(sequences),
        max_position=max(ends) - 1,
        input_ids=int32(np.concatenate([ids[s:e] for ids, s, e in zip(tokens, starts, ends, strict=True)])),
        positions=int32(positions),
        ngram_token_ids=engram_ids,
        engram_row_ids=engram_rows,
        selected_token_indices=None if logits == "all" else int32(row_begin[1:] - 1),
        positions_c={key: int32(inputs.positions) for key, inputs in by_ratio.items()},
        slot_mapping_store_ca={key: int32(inputs.slots) for key, inputs in by_ratio.items()},
        compress_rows={key: int32(inputs.member_rows) for key, inputs in pooled.items()},
        slot_mapping_store_state={
            key: int32(
                np.where(
                    from_end <= layout.compressor_ring(inputs.ratio),
                    compressor_slots(layout, inputs.ratio, states[request], positions),
                    -1,
                )
            )
            for key, inputs in pooled.items()
        },
        slot_mapping_store_swa=int32(
            np.where(from_end <= layout.ring, window_slots(layout, states[request], positions), -1)
        ),
        state_block_idx=int32(states),
        klen={key: int32((positions + 1) // inputs.ratio) for key, inputs in by_ratio.items()},
        cu_seqlens_q=int32(row_begin),
        cu_seqlens_k=int32(_prefix_sums(ends)),
        cu_compressed_seqlens_q={key: int32(inputs.new_begin) for key, inputs in by_ratio.items()},
        load_slots_swa=_history_slots(layout, states, starts),
        kv_swa_full_index=_window_index(layout, positions, request, np.array(starts), row_begin),
        load_slots_ca={key: int32(inputs.load_slots) for key, inputs in by_ratio.items()},
        ks={key: int32(inputs.entry_begin[request]) for key, inputs in by_ratio.items()},
        ke={
            key: int32(inputs.entry_begin[request] + (positions + 1) // inputs.ratio)
            for key, inputs in by_ratio.items()
        },
        requests=tuple(
            RequestSpan(
                rows=(int(row_begin[i]), int(row_begin[i + 1])),
                entries={
                    key: (int(inputs.entry_begin[i]), int(inputs.entry_begin[i + 1]))
                    for key, inputs in by_ratio.items()
                },
            )
            for i in range(len(sequences))
        ),
    )


class _RatioInputs:
    """The arrays that depend on one compression ratio; a request with no entry gets one dummy, so no axis is empty."""

    def __init__(
        self,
        layout: CacheLayout,
        ratio: int,
        sequences: SequenceType[Sequence],
        starts: list[int],
        ends: list[int],
        row_begin: NDArray[np.int64],
    ) -> None:
        self.ratio = ratio
        ring = layout.compressor_ring(ratio)
        batch_rows = int(row_begin[-1])
        positions, slots, members, loads = [], [], [], []
        for i, (sequence, start, end) in enumerate(zip(sequences, starts, ends, strict=True)):
            table = np.asarray(sequence.block_table)
            entries = np.arange(start // ratio, end // ratio)
            dummy = len(entries) == 0
            positions.append(np.zeros(1, dtype=np.int64) if dummy else entries * ratio)
            slots.append(np.full(1, -1) if dummy else compressed_slots(layout, ratio, table, entries))
            member = positions[-1][:, None] + np.arange(ratio)
            in_batch = row_begin[i] + member - start
            in_state = batch_rows + i * ring + member % ring
            members.append(
                np.full((1, ratio), row_begin[i]) if dummy else np.where(member >= start, in_batch, in_state)
            )
            known = np.arange(end // ratio)
            loads.append(compressed_slots(layout, ratio, table, known) if len(known) else np.full(1, -1))
        self.positions = np.concatenate(positions)
        self.slots = np.concatenate(slots)
        self.member_rows = np.concatenate(members)
        self.load_slots = np.concatenate(loads)
        self.new_begin = _prefix_sums([len(part) for part in positions])
        self.entry_begin = _prefix_sums([len(part) for part in loads])


def _history_slots(layout: CacheLayout, states: NDArray[np.int64], starts: list[int]) -> Tensor:
    position = np.asarray(starts)[:, None] - layout.window + np.arange(layout.window)
    slots = np.where(position >= 0, window_slots(layout, states[:, None], position), -1)
    return int32(slots.reshape(-1))


def _window_index(
    layout: CacheLayout,
    positions: NDArray[np.int64],
    request: NDArray[np.int64],
    starts: NDArray[np.int64],
    row_begin: NDArray[np.int64],
) -> Tensor:
    """Rows of [W history rows per request | rows of this batch] each query sees, oldest first, right-padded with -1."""
    window = layout.window
    oldest = np.maximum(positions - window + 1, 0)
    seen = oldest[:, None] + np.arange(window)
    start = starts[request][:, None]
    history = request[:, None] * window + seen - (start - window)
    current = len(starts) * window + row_begin[request][:, None] + seen - start
    index = np.where(seen < start, history, current)
    return int32(np.where(seen <= positions[:, None], index, -1))


def _prefix_sums(lengths: SequenceType[int]) -> NDArray[np.int64]:
    return np.concatenate(([0], np.cumsum(np.asarray(lengths, dtype=np.int64))))


def _check_chunks(sequences: SequenceType[Sequence], chunk_lens: list[int]) -> None:
    if not sequences:
        raise ValueError("expected at least one sequence to prefill; found none.")
    if len(chunk_lens) != len(sequences):
        raise ValueError(f"chunk_lens: expected one per sequence ({len(sequences)}); found {len(chunk_lens)}.")
    for i, (sequence, length) in enumerate(zip(sequences, chunk_lens, strict=True)):
        if not 1 <= length <= sequence.pending:
            raise ValueError(
                f"chunk_lens[{i}]: expected 1 to {sequence.pending}, the tokens not run yet; found {length}."
            )
