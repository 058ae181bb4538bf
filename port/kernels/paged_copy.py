"""Ranges of cache blocks copied into a line: which slot each row of the line is. For prefill, not for decode graphs.

Shape letters: G segments, N rows of the line. Source: the runtime contracts, sections 9.2 and 15.1.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


def segment_slots(segment_G4: Tensor, *, rows: int, entries_per_block: int) -> tuple[Tensor, Tensor]:
    """Return the cache slot of every row of a line that segments fill.

    Args:
        segment_G4: int32 (G, 4): block or -1 for zeros, first entry, entry after the last, first row of the line.
            In any order; no two share a row.
        rows: rows of the line.
        entries_per_block: entries of one block.

    Returns:
        slot int32 (N,), -1 where a row is zero or not covered; covered bool (N,).
    """
    block, begin, end, row = segment_G4.unbind(dim=1)
    length = end - begin
    used = (length > 0) & (row >= 0) & (row < rows)
    spare = torch.where(used, row, rows).to(torch.int64)  # empty segments mark a row behind the line
    number = torch.arange(segment_G4.shape[0], dtype=torch.int32, device=segment_G4.device)
    line = torch.arange(rows, dtype=torch.int32, device=segment_G4.device)
    owner_at = torch.zeros(rows + 1, dtype=torch.int32, device=line.device).scatter_(0, spare, number)
    first_row = torch.full((rows + 1,), -1, dtype=torch.int32, device=line.device).scatter_(0, spare, row)
    latest = first_row[:rows].cummax(dim=0).values
    owner = F.embedding(latest.clamp(min=0), owner_at.unsqueeze(-1)).squeeze(-1)
    block_N, begin_N, length_N = F.embedding(owner, torch.stack((block, begin, length), dim=1)).unbind(dim=1)
    covered = (latest >= 0) & (line < latest + length_N)
    slot = block_N * entries_per_block + begin_N + line - latest
    return torch.where(covered & (block_N >= 0), slot, -1), covered
