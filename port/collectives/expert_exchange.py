"""Rows sent to the ranks that hold their experts, and results brought back by the slot that asked for them.

Shape letters: N rows of this rank, R ranks, K experts per row, L experts held by a rank, M rows received, D width.

A row travels once to each rank that holds at least one of its experts. Results travel back one per (row, slot), before
anything is added: a sum made on the way would depend on where experts lie, and with it on the number of ranks. The
caller adds what came back, in an order of its own choice, so bits are the same for any number of ranks.

| form | received rows | host | for |
|---|---|---|---|
| exact (`max_rows` None) | those that were sent | waits for the counts | prefill |
| fixed slots (`max_rows` S) | R * S, empty ones without experts | never waits | decode, compiled steps, trn2 |

Not here: replicas of experts (`port/runtime/eplb.py`), grouping rows by expert (`port/collectives/expert_groups.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
    group_size,
)
from port.errors import ShapeBucketError
from port.kernels.gather import load_known_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """Which rows went where; what is needed to bring results back.

    Attributes:
        owner_NK: int32, rank that holds the expert of each slot of this rank's rows; -1 for an unused slot.
        ids_MK: int32, number of the expert on this rank, 0 to L - 1, of each slot of the rows received; -1 where the
            slot is another rank's or unused.
        local_experts: L.
        received_counts: rows that came from each rank; None where slots are fixed.
        max_rows: slots per pair of ranks; None where sizes are exact.
        group: the ranks.
    """

    owner_NK: Tensor
    ids_MK: Tensor
    local_experts: int
    received_counts: tuple[int, ...] | None
    max_rows: int | None
    group: ProcessGroup | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedRows:
    """Rows that have experts on this rank, by sending rank and then in the sender's order.

    Attributes:
        rows: (M, ...) each, the tensors that were sent.
        weights_MK: float32, routing weights; 0 where the rank does not hold the slot's expert.
        route: hand it to `return_rows`.
    """

    rows: tuple[Tensor, ...]
    weights_MK: Tensor
    route: Route


def send_rows(
    rows: Sequence[Tensor],
    ids_NK: Tensor,
    weights_NK: Tensor,
    *,
    num_experts: int,
    group: ProcessGroup | None,
    max_rows: int | None = None,
) -> Pending[ReceivedRows]:
    """Send rows to the ranks that hold their experts; every rank of the group calls this, with any number of rows.

    Args:
        rows: (N, ...) each, any dtype: activations, or codes and their scales.
        ids_NK: integers, physical experts, those of rank r from r * L; -1 for an unused slot.
        weights_NK: float32.
        num_experts: physical experts of all ranks, R * L.
        group: the ranks.
        max_rows: fixed slots per pair of ranks, the same on every rank; None for exact sizes.

    Raises:
        ValueError: shapes that do not belong together, or experts that the ranks cannot share evenly.
        ShapeBucketError: more rows than fixed slots.
    """
    ranks = group_size(group)
    _check(rows, ids_NK, weights_NK, num_experts, ranks, max_rows)
    local_experts = num_experts // ranks
    ids = ids_NK.to(torch.int32)
    owner = torch.where(ids >= 0, torch.div(ids, local_experts, rounding_mode="floor"), -1)
    here_RNK = owner.unsqueeze(0) == torch.arange(ranks, dtype=torch.int32, device=ids.device).view(-1, 1, 1)
    first_R = torch.arange(0, num_experts, local_experts, dtype=torch.int32, device=ids.device)
    ids_RNK = torch.where(here_RNK, ids - first_R.view(-1, 1, 1), -1)
    weights_RNK = torch.where(here_RNK, weights_NK.to(torch.float32), 0.0)
    if max_rows is None:
        rank, row = here_RNK.any(dim=-1).nonzero(as_tuple=True)
        parts = [*rows, ids_RNK[rank, row], weights_RNK[rank, row]]
        sent_counts = torch.bincount(rank, minlength=ranks).tolist()
        counts = tuple(exchange_counts(sent_counts, group))
        sent = as_bytes([as_bytes(rows)[row], *parts[-2:]])
        pending = exchange_rows(sent, sent_counts, counts, group)
    else:
        # Every rank is sent every row: a slot that stayed empty would be on its way all the same.
        missing = max_rows - ids.shape[0]
        ids_RSK = F.pad(ids_RNK, (0, 0, 0, missing), value=-1)
        weights_RSK = F.pad(weights_RNK, (0, 0, 0, missing))
        rows_SB = F.pad(as_bytes(rows), (0, 0, 0, missing))
        spread_RSB = rows_SB.unsqueeze(0).expand(ranks, -1, -1).flatten(0, 1)
        parts = [*rows, ids_RSK.flatten(0, 1), weights_RSK.flatten(0, 1)]
        slots = as_bytes([spread_RSB, *parts[-2:]]).unflatten(0, (ranks, max_rows))
        counts, pending = None, exchange_slots(slots, group)

    def finish() -> ReceivedRows:
        arrived = pending.wait()
        *received, ids_MK, weights_MK = from_bytes(arrived.flatten(0, -2), parts)
        route = Route(
            owner_NK=owner,
            ids_MK=ids_MK,
            local_experts=local_experts,
            received_counts=counts,
            max_rows=max_rows,
            group=group,
        )
        return ReceivedRows(rows=tuple(received), weights_MK=weights_MK, route=route)

    return Pending(finish)


def return_rows(outputs_MKD: Tensor, route: Route) -> Pending[Tensor]:
    """Bring results back to the ranks whose rows they belong to; every rank of the group calls this.

    Args:
        outputs_MKD: results by received row and slot, any dtype; those of slots whose expert is not here are not used.
        route: of the rows received.

    Returns:
        A pending (N, K, D): results by row and slot of this rank's own rows, zeros in unused slots.
    """
    rows, slots, width = route.owner_NK.shape[0], route.owner_NK.shape[1], outputs_MKD.shape[-1]
    owner, ranks = route.owner_NK, group_size(route.group)
    if route.max_rows is not None:
        blocks = as_bytes([outputs_MKD.reshape(-1, width)]).view(ranks, route.max_rows * slots, -1)
        pending = exchange_slots(blocks, route.group)
        place = torch.arange(rows * slots, dtype=torch.int32, device=owner.device).view(rows, slots)
        index = torch.where(owner >= 0, owner * (route.max_rows * slots) + place, -1)
        return Pending(lambda: load_known_rows(pending.wait().flatten(0, 1), index).view(outputs_MKD.dtype))
    assert route.received_counts is not None, "sizes are exact or slots are fixed"
    used = route.ids_MK >= 0
    sent_counts = [int(part.sum()) for part in used.split(route.received_counts)]
    rank, row, slot = (owner.unsqueeze(0) == torch.arange(ranks, device=owner.device).view(-1, 1, 1)).nonzero(
        as_tuple=True
    )
    counts = torch.bincount(rank, minlength=ranks).tolist()
    pending = exchange_rows(as_bytes([outputs_MKD[used]]), sent_counts, counts, route.group)

    def finish() -> Tensor:
        # Both sides list a pair of ranks' results by row and then by slot, so the order says which is which.
        arrived = pending.wait()
        found = arrived.new_zeros(rows, slots, arrived.shape[1])
        found[row, slot] = arrived
        return found.view(outputs_MKD.dtype)

    return Pending(finish)


def add_slots(outputs_NKD: Tensor, *, first_ND: Tensor | None = None) -> Tensor:
    """Return the results of each row added in float32, slot by slot in order, onto `first_ND` (zeros when None).

    Args:
        outputs_NKD: by row and slot, any float dtype.
        first_ND: what stands before them in the sum: the shared expert's output.
    """
    if first_ND is None:
        total = outputs_NKD.new_zeros(outputs_NKD.shape[0], outputs_NKD.shape[2], dtype=torch.float32)
    else:
        total = first_ND.to(torch.float32)
    for output_ND in outputs_NKD.unbind(dim=1):
        total = total + output_ND.to(torch.float32)
    return total


def _check(
    rows: Sequence[Tensor], ids: Tensor, weights: Tensor, num_experts: int, ranks: int, max_rows: int | None
) -> None:
    problems = []
    if ids.dim() != 2 or weights.shape != ids.shape:
        problems.append(
            f"expected ids and weights of one shape [rows, slots]; found {list(ids.shape)} and {list(weights.shape)}"
        )
    problems += [
        f"rows[{number}]: expected {ids.shape[0]} rows, one per row of ids; found {list(part.shape)}"
        for number, part in enumerate(rows)
        if part.shape[:1] != ids.shape[:1]
    ]
    if num_experts < 1 or num_experts % ranks:
        problems.append(
            f"num_experts: expected a multiple of the {ranks} ranks that share them; found {num_experts}. Add "
            "redundant experts"
        )
    if problems:
        raise ValueError("expert dispatch: " + "; ".join(problems) + ".")
    if max_rows is not None and ids.shape[0] > max_rows:
        raise ShapeBucketError(
            f"expert dispatch: expected at most {max_rows} rows, the fixed slots of each pair of ranks; found "
            f"{ids.shape[0]}. Raise max_tokens_per_rank, or run the prompt in smaller chunks."
        )
