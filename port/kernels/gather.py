"""Rows picked from tables and caches, and rows put back into them.

Shape letters: N rows of the table, T rows picked. A slot of -1 reads zeros and stores nothing. Both hold because row
0 of every cache pool is reserved for padding and only ever receives zeros.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

_WIDER = ((4, torch.int32), (2, torch.int16))


def gather_table_rows(table_NB: Tensor, index: Tensor) -> Tensor:
    """Return rows of a table of 8-bit elements, moved as wider words.

    Args:
        table_NB: any 8-bit dtype (N, B), contiguous.
        index: int32 or int64, any shape, values below N.

    Returns:
        (*index.shape, B), dtype of the table.

    An index on a table of bytes makes the device widen the whole table (docs: 4 bytes per table element of
    workspace); an embedding lookup on a view as int32 does not.
    """
    width = table_NB.shape[1]
    for nbytes, dtype in _WIDER:
        if width % nbytes == 0:
            return F.embedding(index, table_NB.view(dtype)).view(table_NB.dtype)
    return F.embedding(index, table_NB.view(torch.uint8)).view(table_NB.dtype)


def load_rows(pool_ND: Tensor, slot: Tensor) -> Tensor:
    """Return cache rows by slot; zeros where the slot is -1.

    Args:
        pool_ND: (N, D), row 0 zeros.
        slot: int32 or int64, any shape, -1 or a row number.

    Returns:
        (*slot.shape, D), dtype of the pool.
    """
    return F.embedding(slot.clamp(min=0), pool_ND)


def load_known_rows(table_ND: Tensor, index: Tensor) -> Tensor:
    """Return rows of a table by number; zeros where the number names no row.

    Args:
        table_ND: (N, D), any dtype; 8-bit tables contiguous. No row is reserved, as row 0 is for `load_rows`.
        index: int32 or int64, any shape, any value.

    Returns:
        (*index.shape, D), dtype of the table.
    """
    last = table_ND.shape[0] - 1
    known = ((index >= 0) & (index <= last)).unsqueeze(-1)
    picked = index.clamp(0, last)
    rows = gather_table_rows(table_ND, picked) if table_ND.element_size() == 1 else F.embedding(picked, table_ND)
    if rows.element_size() == 1:  # bytes: not every 8-bit dtype can be compared or selected
        return torch.where(known, rows.view(torch.uint8), 0).view(rows.dtype)
    return torch.where(known, rows, 0)


def store_rows(pool_ND: Tensor, slot_T: Tensor, rows_TD: Tensor) -> None:
    """Write rows into a cache pool in place; rows with slot -1 leave it unchanged.

    Args:
        pool_ND: (N, D), row 0 zeros; changed.
        slot_T: int32 or int64 (T,), -1 or a row number; no number above 0 twice.
        rows_TD: (T, D), converted to the pool's dtype.
    """
    kept = torch.where((slot_T >= 0).unsqueeze(-1), rows_TD.to(pool_ND.dtype), 0)
    pool_ND.index_copy_(0, slot_T.clamp(min=0).to(torch.int64), kept)
