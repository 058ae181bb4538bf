"""Slot arithmetic on host arrays, shared by the prefill and decode builders."""

from collections.abc import Sequence as SequenceType

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from port.runtime.cache_layout import CacheLayout
from port.runtime.engram_hash import EngramHash


def window_slots(layout: CacheLayout, states: NDArray[np.int64], positions: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the window slot of each position in the ring of its state."""
    return states * layout.ring + positions % layout.ring


def compressor_slots(
    layout: CacheLayout, ratio: int, states: NDArray[np.int64], positions: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the compressor slot of each position in the ring of its state."""
    ring = layout.compressor_ring(ratio)
    return states * ring + positions % ring


def compressed_slots(
    layout: CacheLayout, ratio: int, block_table: NDArray[np.int64], entries: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the slot of each compressed entry of a sequence."""
    per_block = layout.entries_per_block(ratio)
    return block_table[entries // per_block] * per_block + entries % per_block


def engram_inputs(
    engram: EngramHash | None,
    tokens: SequenceType[NDArray[np.int64]],
    starts: SequenceType[int],
    ends: SequenceType[int],
) -> tuple[Tensor | None, dict[str, Tensor]]:
    """Return the n-gram windows of the rows of all sequences, and the table rows per Engram layer."""
    if engram is None:
        return None, {}
    windows = np.concatenate(
        [engram.windows(ids, start, end) for ids, start, end in zip(tokens, starts, ends, strict=True)]
    )
    rows = engram.rows(windows)
    return int32(windows), {str(layer): int32(rows[:, i]) for i, layer in enumerate(engram.layers)}


def int32(values: ArrayLike) -> Tensor:
    """Return a host array as an int32 tensor of its own memory."""
    return torch.from_numpy(np.array(values, dtype=np.int32, order="C"))
