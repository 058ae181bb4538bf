"""Rows of a table that ranks share by contiguous runs: ask the owner, get the row. Weights and scales alike.

Shape letters: N ids asked by this rank, R ranks, P rows a rank keeps, B bytes of a row.

Nobody holds more than its own rows, scales included: gathering the scale table to every rank would take a full copy of
it per Engram layer (about 3 GB at release size), while eight bytes more beside a row of 256 cost next to nothing. Row i
belongs to rank i // P; see `port/checkpoint/slices.py` for P. An id of -1 gives zeros. Ids may repeat.

| form | ids sent | host | for |
|---|---|---|---|
| exact (`max_ids` None) | to their owners alone | waits for the counts | prefill, eager decode |
| fixed slots (`max_ids` S) | S to every rank | never waits | compiled steps, trn2 (only equal slots: documented) |
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributed import ProcessGroup

from port.collectives.transport import (
    Pending,
    as_bytes,
    exchange_counts,
    exchange_rows,
    exchange_slots,
    from_bytes,
    gather_tensors,
    group_rank,
    group_size,
)
from port.errors import ShapeBucketError
from port.kernels.gather import load_known_rows


def look_up_rows(
    ids_N: Tensor,
    tables: Sequence[Tensor],
    *,
    group: ProcessGroup | None,
    max_ids: int | None = None,
) -> Pending[list[Tensor]]:
    """Return rows of a shared table; every rank of the group calls this, with any number of ids.

    Args:
        ids_N: int32, rows of the whole table; -1 for none.
        tables: this rank's rows (P, ...) of each part of the table, any dtype, contiguous; P is the same everywhere.
        group: the ranks.
        max_ids: fixed slots per pair of ranks, the same on every rank; None for exact sizes.

    Returns:
        A pending list with (N, ...) for each part. With exact sizes the requests are answered when this returns, and
        the rows are on their way; with fixed slots all of it is.

    Raises:
        ValueError: parts with different numbers of rows; with exact sizes also an id that is no row.
        ShapeBucketError: more ids than fixed slots.
    """
    rows = {table.shape[0] for table in tables}
    if len(rows) != 1:
        raise ValueError(f"tables: expected parts with equally many rows; found {sorted(rows)}.")
    per_rank, ranks = rows.pop(), group_size(group)
    if max_ids is not None and ids_N.shape[0] > max_ids:
        raise ShapeBucketError(
            f"table lookup: expected at most {max_ids} ids, the fixed slots of each pair of ranks; found "
            f"{ids_N.shape[0]}. Raise max_tokens_per_rank, or run the prompt in smaller chunks."
        )
    if ranks == 1:
        if max_ids is None:
            _check_ids(ids_N, per_rank)
        found = [_load(table, ids_N) for table in tables]
        return Pending(lambda: found)
    owner = torch.where(ids_N >= 0, torch.div(ids_N, per_rank, rounding_mode="floor"), -1)
    if max_ids is not None:
        return _with_fixed_slots(ids_N, owner, tables, per_rank, max_ids, group)
    _check_ids(ids_N, per_rank * ranks)
    ranks_R = torch.arange(ranks, dtype=owner.dtype, device=owner.device)
    rank, place = (owner.unsqueeze(0) == ranks_R.unsqueeze(1)).nonzero(as_tuple=True)
    asked = torch.bincount(rank, minlength=ranks).tolist()
    to_answer = exchange_counts(asked, group)
    local = (ids_N[place] - rank.to(torch.int32) * per_rank).unsqueeze(1)
    requests = from_bytes(exchange_rows(as_bytes([local]), asked, to_answer, group).wait(), [local])[0].squeeze(1)
    answers = as_bytes([_load(table, requests) for table in tables])
    pending = exchange_rows(answers, to_answer, asked, group)

    def finish() -> list[Tensor]:
        arrived = pending.wait()
        rows_NB = arrived.new_zeros(ids_N.shape[0], arrived.shape[1])
        rows_NB[place] = arrived
        return from_bytes(rows_NB, tables)

    return Pending(finish)


def _with_fixed_slots(
    ids_N: Tensor, owner: Tensor, tables: Sequence[Tensor], per_rank: int, max_ids: int, group: ProcessGroup | None
) -> Pending[list[Tensor]]:
    padded = F.pad(ids_N, (0, max_ids - ids_N.shape[0]), value=-1)
    local_RS = gather_tensors(padded, group).wait() - group_rank(group) * per_rank
    # What another rank holds is below 0 or beyond the last row here, and reads zeros.
    answers = as_bytes([_load(table, local_RS.flatten()) for table in tables])
    pending = exchange_slots(answers.unflatten(0, local_RS.shape), group)
    place = torch.arange(ids_N.shape[0], dtype=owner.dtype, device=owner.device)
    index = torch.where(owner >= 0, owner * max_ids + place, -1)
    return Pending(lambda: from_bytes(load_known_rows(pending.wait().flatten(0, 1), index), tables))


def _load(table: Tensor, ids: Tensor) -> Tensor:
    flat = table.view(table.shape[0], -1).view(torch.uint8)
    rows = load_known_rows(flat, ids)
    return rows.view(table.dtype).view(ids.shape[0], *table.shape[1:])


def _check_ids(ids: Tensor, rows: int) -> None:
    if ids.numel() and not -1 <= int(ids.min()) <= int(ids.max()) < rows:
        raise ValueError(
            f"table lookup: expected ids from -1 to {rows - 1}; found {int(ids.min())} to {int(ids.max())}. Were "
            "the hash functions made for this checkpoint?"
        )
