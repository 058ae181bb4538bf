"""Batches made without running a model."""

from __future__ import annotations

from port.runtime.cache_layout import CacheLayout
from port.runtime.decode_inputs import build_decode
from port.runtime.input_metadata import InputMetadata
from port.runtime.sequence import Sequence


def at_position(layout: CacheLayout, position: int) -> InputMetadata:
    """Return a decode batch of one row at a position."""
    table = tuple(range(1, layout.blocks_for(position + 1) + 1))
    tokens = (3,) * (position + 1)
    return build_decode(layout, [Sequence(token_ids=tokens, block_table=table, state_id=1, cached=position)])
