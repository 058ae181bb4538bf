"""The compressor with its state: gates and values of unfinished groups in a ring, and the groups that get finished.

Shape letters: T token rows, D head width, C rows of produced entries, J tokens of an entry (the ratio), S requests.
A state is float32 (slots, ring, 2, D), gate first; position p of a sequence lies at [its slot, p % ring], and slots
may lie apart. Slot 0 belongs to padding rows.

Of the port's own model only `pool_groups` is used: it reads the places of members off its batch, and these functions
find them as the contract's kernels do.
Source: deepinfer 0.1.0 compressor kernels, described in the runtime contracts, section 15.1.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from port.kernels.compress import pool_groups


def compress_decode_rows(
    gate_TD: Tensor, value_TD: Tensor, state: Tensor, slot_T: Tensor, length_T: Tensor, *, ratio: int
) -> Tensor:
    """Return the entry that each row finishes, after keeping the row in the state.

    Args:
        gate_TD: float32 (T, D).
        value_TD: float32 (T, D).
        state: changed: each row at [its slot, (length - 1) % ring].
        slot_T: int32 (T,), state slots; rows of one slot differ in their positions by less than the ring.
        length_T: int32 (T,), position + 1.
        ratio: tokens of an entry.

    Returns:
        float32 (T, D); zeros where `length` is no multiple of `ratio`. All rows are kept before any is read.
    """
    ring = state.shape[1]
    state.index_put_((slot_T, (length_T - 1) % ring), torch.stack((gate_TD, value_TD), dim=1))
    member = torch.arange(ratio, dtype=torch.int32, device=state.device)
    place_TJ = (length_T.unsqueeze(-1) - ratio + member) % ring
    gate, value = _held_members(state, slot_T, place_TJ)
    finished = (length_T % ratio == 0).unsqueeze(-1)
    return torch.where(finished, pool_groups(gate, value), 0.0)


def compress_prefill_rows(
    gate_TD: Tensor,
    value_TD: Tensor,
    state: Tensor,
    slot_S: Tensor,
    request_C: Tensor,
    query_begin: Tensor,
    key_begin: Tensor,
    entry_begin: Tensor,
    *,
    ratio: int,
) -> Tensor:
    """Return the entries a prefill finishes, then keep the last rows of every request in the state.

    Args:
        gate_TD: float32 (T, D), rows of all requests in a line.
        value_TD: float32 (T, D).
        state: read for members before the chunk, then changed: the last min(tokens, ring) rows of each request.
        slot_S: int32 (S,), state slots.
        request_C: int32 (C,), the request of each produced row.
        query_begin: int32 (S + 1,), prefix sums of the tokens to run.
        key_begin: int32 (S + 1,), prefix sums of the tokens including those that ran before.
        entry_begin: int32 (S + 1,), prefix sums of produced rows; a request that finishes nothing has one dummy.
        ratio: tokens of an entry.

    Returns:
        float32 (C, D), zeros for dummies.
    """
    ring, tokens = state.shape[1], gate_TD.shape[0]
    end_S = key_begin.diff()
    start_S = end_S - query_begin.diff()
    row_C = torch.arange(request_C.shape[0], dtype=torch.int32, device=state.device)
    start_C1, end_C = _pick(start_S, request_C).unsqueeze(-1), _pick(end_S, request_C)
    first_entry_C = torch.div(start_C1.squeeze(-1), ratio, rounding_mode="floor")
    entry_C = first_entry_C + row_C - _pick(entry_begin, request_C)
    member_CJ = entry_C.unsqueeze(-1) * ratio + torch.arange(ratio, dtype=torch.int32, device=state.device)
    place_CJ = (_pick(query_begin, request_C).unsqueeze(-1) + member_CJ - start_C1).clamp(0, tokens - 1)
    before_CJ1 = (member_CJ < start_C1).unsqueeze(-1)
    held_gate, held_value = _held_members(state, _pick(slot_S, request_C), member_CJ % ring)
    gate = torch.where(before_CJ1, held_gate, F.embedding(place_CJ, gate_TD))
    value = torch.where(before_CJ1, held_value, F.embedding(place_CJ, value_TD))
    finished = ((entry_C + 1) * ratio <= end_C).unsqueeze(-1)
    pooled = torch.where(finished, pool_groups(gate, value), 0.0)

    # The request of a row is the number of requests that end at or before it.
    row_T = torch.arange(tokens, dtype=torch.int32, device=state.device)
    request_T = (row_T.unsqueeze(-1) >= query_begin[1:]).sum(dim=-1, dtype=torch.int32)
    inside = request_T < slot_S.shape[0]
    request_T = request_T.clamp(max=slot_S.shape[0] - 1)
    position_T = _pick(start_S, request_T) + row_T - _pick(query_begin, request_T)
    kept = inside & (_pick(end_S, request_T) - position_T <= ring)
    rows = torch.where(kept.view(-1, 1, 1), torch.stack((gate_TD, value_TD), dim=1), state[0, 0])
    slot, place = torch.where(kept, _pick(slot_S, request_T), 0), torch.where(kept, position_T % ring, 0)
    state.index_put_((slot, place), rows)
    return pooled


def _held_members(state: Tensor, slot_N: Tensor, place_NJ: Tensor) -> tuple[Tensor, Tensor]:
    """Return gates and values at [slot, place], float32 (N, J, D) each; whole slots are read, one move a row."""
    rows, ring = slot_N.shape[0], state.shape[1]
    held = F.embedding(slot_N, state.flatten(1)).view(rows * ring, -1)
    first = torch.arange(rows, dtype=torch.int32, device=state.device).unsqueeze(-1) * ring
    gate, value = F.embedding(first + place_NJ, held).unflatten(-1, (2, -1)).unbind(dim=2)
    return gate, value


def _pick(numbers: Tensor, index: Tensor) -> Tensor:
    return F.embedding(index, numbers.unsqueeze(-1)).squeeze(-1)
