"""Lists of rows and slots to read: spelled out from ranges, joined, and mapped from entries of a sequence to slots.

Shape letters: N query rows, J columns of a list, W window columns, K selected columns, B candidate blocks of a row,
P blocks of a row's table. All are int32, -1 stands for "none", and shapes are static: everything here may run inside a
compiled decode step.
Source: deepinfer 0.1.0 index kernels, described in the runtime contracts, sections 9.3 and 15.1.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


def range_index(offset_N: Tensor, length_N: Tensor, *, width: int, ring: int = 0) -> Tensor:
    """Return `offset, offset + 1, ...` for `length` columns of each row, then -1.

    Args:
        offset_N: int32 (N,), first number.
        length_N: int32 (N,), how many; more than `width` are cut off.
        width: columns of the result.
        ring: slots of a ring; numbers wrap inside the ring that `offset` lies in. 0 for none.

    Returns:
        int32 (N, width).
    """
    column = _columns(width, offset_N)
    index = offset_N.unsqueeze(-1) + column
    if ring:
        first = (offset_N - offset_N % ring).unsqueeze(-1)
        index = first + (index - first) % ring
    return torch.where(column < length_N.unsqueeze(-1), index, -1)


def two_ranges_index(pivots_N4: Tensor, *, width: int) -> Tensor:
    """Return two ranges one after the other, then -1.

    Args:
        pivots_N4: int32 (N, 4): start and length of the first range, start and length of the second.
        width: columns of the result; what does not fit is cut off.

    Returns:
        int32 (N, width).
    """
    start, length, second_start, second_length = pivots_N4.unsqueeze(-1).unbind(dim=1)
    column = _columns(width, pivots_N4)
    length, second_length = length.clamp(min=0), second_length.clamp(min=0)
    index = torch.where(column < length, start + column, second_start + column - length)
    return torch.where(column < length + second_length, index, -1)


def shift_index(index_NJ: Tensor, shift: Tensor | int) -> Tensor:
    """Return the index plus `shift` (an int, or int32 that broadcasts); -1 stays."""
    return torch.where(index_NJ >= 0, index_NJ + shift, -1)


def paged_slots(entry_NJ: Tensor, table_NP: Tensor, *, entries_per_block: int, valid_NJ: Tensor) -> Tensor:
    """Return the cache slots of entries of each row's own sequence.

    Args:
        entry_NJ: int32 (N, J), entries counted from the start of the sequence.
        table_NP: int32 (N, P), blocks of each row's sequence; columns past those in use may hold anything.
        entries_per_block: entries of one block.
        valid_NJ: bool (N, J), which columns to map.

    Returns:
        int32 (N, J), -1 where not valid. An entry outside the table reads its nearest column, so that nothing is read
        out of bounds; such an entry must not be valid.
    """
    known = torch.where(valid_NJ, entry_NJ, 0).clamp(min=0)
    column = torch.div(known, entries_per_block, rounding_mode="floor").clamp(max=table_NP.shape[1] - 1)
    block = table_NP.gather(1, column.to(torch.int64))
    return torch.where(valid_NJ, block * entries_per_block + known % entries_per_block, -1)


def flat_table_slots(entry_NJ: Tensor, table_P: Tensor, *, entries_per_block: int) -> Tensor:
    """Return the cache slots of entries counted over all block tables in one line.

    Args:
        entry_NJ: int32 (N, J), -1 or an entry; entry e lies in the block of column e // entries_per_block.
        table_P: int32 (P,), the tables of all sequences one after the other.
        entries_per_block: entries of one block.

    Returns:
        int32 (N, J), -1 kept; entries outside the table read its nearest column.
    """
    known = entry_NJ.clamp(min=0)
    column = torch.div(known, entries_per_block, rounding_mode="floor").clamp(max=table_P.shape[0] - 1)
    block = F.embedding(column, table_P.unsqueeze(-1)).squeeze(-1)
    return torch.where(entry_NJ >= 0, block * entries_per_block + known % entries_per_block, -1)


def compact_lengths(blocks_NB: Tensor, length_N: Tensor, *, block_size: int) -> Tensor:
    """Return how many visible entries the candidate blocks of each row hold together.

    Args:
        blocks_NB: int32 (N, B), candidate block numbers, -1 = none.
        length_N: int32 (N,), visible entries: the first `length` ones.
        block_size: entries of a candidate block.

    Returns:
        int32 (N,).
    """
    held = (length_N.unsqueeze(-1) - blocks_NB * block_size).clamp(0, block_size)
    return torch.where(blocks_NB >= 0, held, 0).sum(dim=-1, dtype=torch.int32)


def restore_candidates(compact_NJ: Tensor, blocks_NB: Tensor, *, block_size: int) -> Tensor:
    """Return entries of the sequence for entries counted over the candidate blocks only.

    Args:
        compact_NJ: int32 (N, J), entry c is entry c % block_size of candidate c // block_size; -1 = none.
        blocks_NB: int32 (N, B), candidate block numbers, -1 = none.
        block_size: entries of a candidate block.

    Returns:
        int32 (N, J), -1 where there is no entry or no such candidate.
    """
    known = compact_NJ.clamp(min=0)
    place = torch.div(known, block_size, rounding_mode="floor")
    candidates = blocks_NB.shape[1]
    block = blocks_NB.gather(1, place.clamp(max=candidates - 1).to(torch.int64))
    valid = (compact_NJ >= 0) & (place < candidates) & (block >= 0)
    return torch.where(valid, block * block_size + known % block_size, -1)


def _columns(width: int, like: Tensor) -> Tensor:
    return torch.arange(width, dtype=torch.int32, device=like.device)
