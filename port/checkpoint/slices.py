"""Which part of each tensor one rank of n keeps: whole, a block of experts, or a run of Engram table rows.

| tensors | kept by rank r |
|---|---|
| routed experts | slots `[r * S / n, (r + 1) * S / n)`; S pads the experts E, and extra ones, to a multiple of n |
| Engram tables | rows `[r * P / n, (r + 1) * P / n)`; P pads the rows to a multiple of lcm(256, n) |
| everything else | whole, on every rank |

Slot p below E holds expert p, slot E + i holds expert i % E; without padding a rank's experts are one block. Padding
rows of a table have zero weights and scale 1; no lookup reaches them. A weight and its scale are always cut alike.
Source: deepinfer 0.1.0, expert and Engram parallelism.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import lcm, prod

import torch
from torch import Tensor

from port.checkpoint.dtypes import STORED_DTYPES
from port.checkpoint.index import Checkpoint
from port.checkpoint.names import TensorSpec
from port.checkpoint.reader import CheckpointReader
from port.errors import CheckpointError

TABLE_ROW_MULTIPLE = 256
_EXPERT = re.compile(r"\.ffn\.experts\.(\d+)\.")
_TABLE = re.compile(r"^layers\.\d+\.engram\.embed\.(weight|scale)$")
_SCALE_ONE = 127  # exponent byte of 2^0


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSlice:
    """What one rank keeps of one tensor.

    Attributes:
        spec: the whole tensor.
        rows: rows read from the checkpoint; None for the whole tensor.
        padding_rows: rows added behind them in memory.
    """

    spec: TensorSpec
    rows: slice | None = None
    padding_rows: int = 0

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape in the rank's memory."""
        if self.rows is None:
            return self.spec.shape
        return (self.rows.stop - self.rows.start + self.padding_rows, *self.spec.shape[1:])

    @property
    def nbytes(self) -> int:
        """Bytes in the rank's memory, padding included."""
        return prod(self.shape) * STORED_DTYPES[self.spec.dtype].bits // 8

    @property
    def padding_bytes(self) -> int:
        """Bytes of padding rows."""
        row_elements = prod(self.spec.shape[1:])
        return self.padding_rows * row_elements * STORED_DTYPES[self.spec.dtype].bits // 8


def is_expert(name: str) -> bool:
    """Return whether a tensor belongs to a routed expert, and is therefore split by experts."""
    return _EXPERT.search(name) is not None


def is_table(name: str) -> bool:
    """Return whether a tensor is an Engram table or its scale, and is therefore split by rows."""
    return _TABLE.match(name) is not None


def experts_of_rank(expert_count: int, rank: int, world_size: int, *, extra: int = 0) -> tuple[int, ...]:
    """Return the logical experts in one rank's physical slots, in slot order; `extra` slots were asked for beyond E."""
    _check_rank(rank, world_size)
    per_rank = -(-(expert_count + extra) // world_size)
    slots = range(rank * per_rank, (rank + 1) * per_rank)
    return tuple(slot if slot < expert_count else (slot - expert_count) % expert_count for slot in slots)


def table_rows_of_rank(row_count: int, rank: int, world_size: int) -> tuple[slice, int]:
    """Return the table rows one rank keeps, and how many padding rows come behind them."""
    _check_rank(rank, world_size)
    multiple = lcm(TABLE_ROW_MULTIPLE, world_size)
    per_rank = -(-row_count // multiple) * multiple // world_size
    begin, end = min(rank * per_rank, row_count), min((rank + 1) * per_rank, row_count)
    return slice(begin, end), per_rank - (end - begin)


def rank_slices(
    table: Mapping[str, TensorSpec], *, rank: int, world_size: int, extra_experts: int = 0
) -> dict[str, RankSlice]:
    """Return what one rank keeps, by tensor name; tensors it does not keep are left out.

    Args:
        table: of `port.checkpoint.names.tensor_table`, or any part of it.
        rank: from 0.
        world_size: ranks that share experts and tables.
        extra_experts: redundant expert slots asked for.

    Raises:
        CheckpointError: a rank outside the world.
    """
    kept: dict[int, frozenset[int]] = {}
    counts = _expert_counts(table)
    found: dict[str, RankSlice] = {}
    _check_rank(rank, world_size)
    for name, spec in table.items():
        match = _EXPERT.search(name)
        if match is not None:
            count = counts[name[: match.start()]]
            if count not in kept:
                kept[count] = frozenset(experts_of_rank(count, rank, world_size, extra=extra_experts))
            if int(match[1]) in kept[count]:
                found[name] = RankSlice(spec=spec)
        elif world_size > 1 and is_table(name):
            rows, padding = table_rows_of_rank(spec.shape[0], rank, world_size)
            found[name] = RankSlice(spec=spec, rows=rows, padding_rows=padding)
        else:
            found[name] = RankSlice(spec=spec)
    return found


def read_rank_slice(checkpoint: Checkpoint, piece: RankSlice, *, reader: CheckpointReader | None = None) -> Tensor:
    """Return one rank's part of a tensor as stored, padding rows included; no other bytes are read.

    Raises:
        CheckpointError: no such tensor, or one of another shape than the slice was made for.
    """
    if reader is None:
        with checkpoint.reader() as own:
            return read_rank_slice(checkpoint, piece, reader=own)
    entry = checkpoint.entry(piece.spec.name)
    if entry.shape != piece.spec.shape or entry.dtype != piece.spec.dtype:
        raise CheckpointError(
            f"{entry.file}: {entry.name}: expected {piece.spec}; found {entry.dtype}{list(entry.shape)}. "
            "Check that config.json belongs to this checkpoint."
        )
    if piece.rows is None:
        return reader.read(entry)
    if not piece.padding_rows:
        return reader.read_slice(entry, [piece.rows])
    filling = _SCALE_ONE if piece.spec.scale_of is not None else 0
    whole = torch.full(piece.shape, filling, dtype=torch.uint8).view(entry.torch_dtype)
    reader.read_into(whole[: piece.rows.stop - piece.rows.start], entry, [piece.rows])
    return whole


def _expert_counts(table: Mapping[str, TensorSpec]) -> dict[str, int]:
    """Return the number of experts of each layer, by the layer's name."""
    ids: dict[str, set[int]] = {}
    for name in table:
        if match := _EXPERT.search(name):
            ids.setdefault(name[: match.start()], set()).add(int(match[1]))
    return {at: max(numbers) + 1 for at, numbers in ids.items()}


def _check_rank(rank: int, world_size: int) -> None:
    if world_size < 1 or not 0 <= rank < world_size:
        raise CheckpointError(
            f"rank {rank} of {world_size}: expected a world size of at least 1 and a rank from 0 to world size - 1."
        )
