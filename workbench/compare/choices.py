"""Discrete choices (router ids, index selections, argmax): compared as sets per row, and never as rounding."""

from __future__ import annotations

import torch
from torch import Tensor

from workbench.captures import on_host
from workbench.compare.tolerances import ErrorKind
from workbench.records import DiscreteFlip, Stamp


def flipped_rows(reference: Tensor, candidate: Tensor) -> Tensor:
    """Return bool over the rows (all axes but the last): the sets chosen there differ.

    Order within a row and padding of equal count do not matter.

    Raises:
        ValueError: shapes that differ.
    """
    if reference.shape != candidate.shape:
        raise ValueError(f"choices: expected one shape, found {tuple(reference.shape)} and {tuple(candidate.shape)}")
    one, two = on_host(reference).to(torch.int64), on_host(candidate).to(torch.int64)
    return (one.sort(-1).values != two.sort(-1).values).any(-1)


def compare_choices(
    name: str,
    reference: Tensor,
    candidate: Tensor,
    *,
    margin: Tensor | None = None,
    error: ErrorKind = "accumulated",
    stamp: Stamp | None = None,
) -> DiscreteFlip:
    """Return one record that counts the rows whose choice flipped.

    Args:
        name: which choice.
        reference: integer (..., K), the chosen ids of each row.
        candidate: the same shape.
        margin: (...), score of the last chosen minus score of the first rejected on the reference side.
        error: how the candidate was fed.
        stamp: where in the run.
    """
    flipped = flipped_rows(reference, candidate).reshape(-1)
    rows = flipped.nonzero()[:, 0]
    smallest = None
    if margin is not None and len(rows):
        smallest = on_host(margin).reshape(-1)[rows].min().item()
    return DiscreteFlip(
        stamp=stamp or Stamp(),
        name=name,
        error=error,
        rows=flipped.numel(),
        flipped_rows=len(rows),
        first_row=int(rows[0]) if len(rows) else None,
        min_margin=smallest,
    )


def choice_margin(scores: Tensor, kept: int) -> Tensor | None:
    """Return the gap between the `kept`-th and the next best score of each row; None where everything is kept."""
    if scores.shape[-1] <= kept:
        return None
    best = on_host(scores).float().topk(kept + 1, dim=-1).values
    return best[..., kept - 1] - best[..., kept]
