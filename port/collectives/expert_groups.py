"""Rows written out per expert: one row for each (row, slot) pair, grouped by expert, as grouped products want them.

Shape letters: M received rows, K slots per row, L experts here, P expanded rows.

Expert i's rows are [align(end of i - 1), end of i), with the ends of `ends_L`; rows in the gaps are zeros. Within an
expert, rows keep the order in which they came. Counting instead of sorting keeps shapes static; the table that is
counted in has M * K * L numbers.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from port.kernels.gather import load_known_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertGroups:
    """Where each (row, slot) pair lies among the expanded rows.

    Attributes:
        place_MK: int32, expanded row of each pair; -1 where the slot's expert is not here.
        source_P: int32, row * K + slot of each expanded row; -1 in gaps.
        counts_L: int32, rows of each expert.
        ends_L: int32, expanded row after the last one of each expert.
    """

    place_MK: Tensor
    source_P: Tensor
    counts_L: Tensor
    ends_L: Tensor

    def expand(self, rows_M: Tensor) -> Tensor:
        """Return (P, ...) from (M, ...), any dtype; zeros in gaps."""
        slots = self.place_MK.shape[1]
        row = torch.where(self.source_P >= 0, torch.div(self.source_P, slots, rounding_mode="floor"), -1)
        return _load(rows_M, row)

    def expand_slots(self, values_MK: Tensor) -> Tensor:
        """Return (P,) from one value per pair; zeros in gaps."""
        return _load(values_MK.reshape(-1, 1), self.source_P).squeeze(-1)

    def collapse(self, rows_PD: Tensor) -> Tensor:
        """Return (M, K, D) from expanded rows; zeros where the slot's expert is not here."""
        return _load(rows_PD, self.place_MK)


def group_by_expert(
    ids_MK: Tensor, *, local_experts: int, alignment: int = 1, expanded_rows: int | None = None
) -> ExpertGroups:
    """Return the grouping of received rows.

    Args:
        ids_MK: int32, 0 to L - 1, or -1.
        local_experts: L.
        alignment: each expert's rows start at a multiple of it.
        expanded_rows: P, at least what is needed (`largest_expansion`); None for exactly that, rounded up to the
            alignment, for which the host waits.

    Raises:
        ValueError: an alignment below 1.
    """
    if alignment < 1:
        raise ValueError(f"expert_alignment: expected at least 1; found {alignment}.")
    flat = ids_MK.flatten()
    chosen_PL = flat.unsqueeze(-1) == torch.arange(local_experts, dtype=flat.dtype, device=flat.device)
    upto_PL = chosen_PL.to(torch.int32).cumsum(dim=0, dtype=torch.int32)
    counts = chosen_PL.sum(dim=0, dtype=torch.int32)
    padded = torch.div(counts + alignment - 1, alignment, rounding_mode="floor") * alignment
    starts = padded.cumsum(dim=0, dtype=torch.int32) - padded
    place = torch.where(chosen_PL, starts + upto_PL - 1, 0).sum(dim=-1, dtype=torch.int32)
    place = torch.where(flat >= 0, place, -1)
    if expanded_rows is None:
        expanded_rows = int(padded.sum())
    # One row behind the last takes what has no place, and is cut off.
    source = torch.full((expanded_rows + 1,), -1, dtype=torch.int32, device=flat.device)
    target = torch.where(place >= 0, place, expanded_rows).to(torch.int64)
    pairs = torch.arange(len(flat), dtype=torch.int32, device=flat.device)
    source = source.scatter(0, target, pairs)[:expanded_rows]
    return ExpertGroups(
        place_MK=place.view(ids_MK.shape), source_P=source, counts_L=counts, ends_L=(starts + counts).to(torch.int32)
    )


def largest_expansion(rows: int, *, slots: int, local_experts: int, alignment: int) -> int:
    """Return the expanded rows that are enough for any routing of `rows` rows."""
    used = rows * min(slots, local_experts) + local_experts * (alignment - 1)
    return -(-used // alignment) * alignment


def _load(rows: Tensor, index: Tensor) -> Tensor:
    shape = (*index.shape, *rows.shape[1:])
    if rows.shape[0] == 0:
        return torch.zeros(shape, dtype=rows.dtype, device=rows.device)
    flat = rows.reshape(rows.shape[0], -1).contiguous()
    return load_known_rows(flat, index).view(shape)
