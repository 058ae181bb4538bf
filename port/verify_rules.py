"""The arithmetic of a verification: errors per row, discrete choices compared as sets, and the row that is reported."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

SAFE_MARGIN = 1e-4
"""A choice whose last kept and first dropped scores are this close may go either way under re-association."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One check of one prompt.

    Attributes:
        prompt: its name in golden.json.
        check: what was compared.
        passed: the answer.
        worst: the figure that decided, None when there is none.
        limit: what it was held against; an upper limit unless the note says "at least".
        note: in words.
    """

    prompt: str
    check: str
    passed: bool
    worst: float | None
    limit: float | None
    note: str


def row_errors(expected: Tensor, found: Tensor) -> Tensor:
    """Return |found - expected| / |expected| in the Euclidean norm, per row; inf for a non-finite row."""
    difference = (found.to(torch.float32) - expected.to(torch.float32)).flatten(0, -2).norm(dim=-1)
    size = expected.to(torch.float32).flatten(0, -2).norm(dim=-1)
    errors = torch.where(size > 0, difference / size.clamp(min=torch.finfo(torch.float32).tiny), difference)
    return torch.where(torch.isfinite(errors), errors, torch.inf)


def flips(prompt: str, check: str, expected: Tensor, found: Tensor, margin: Tensor | None) -> CheckResult:
    """Compare chosen ids as sets, row by row.

    Args:
        prompt: its name.
        check: what is compared.
        expected: (..., K) ids, -1 = none.
        found: (..., J) ids, -1 = none; J may differ from K.
        margin: (...,) gap between the last kept and the first dropped score; rows at `SAFE_MARGIN` or less are not
            judged. None to judge all.
    """
    width = max(expected.shape[-1], found.shape[-1])
    one, two = _sorted(expected, width), _sorted(found, width)
    if one.shape != two.shape:
        return CheckResult(prompt, check, False, None, 0.0, f"expected ids {list(one.shape)}, found {list(two.shape)}")
    differ = (one != two).any(dim=-1)
    open_rows = torch.zeros_like(differ) if margin is None else margin <= SAFE_MARGIN
    wrong = (differ & ~open_rows).nonzero().tolist()
    notes = [f"first at {wrong[0]}"] if wrong else []
    if int(open_rows.sum()):
        notes.append(
            f"{int(open_rows.sum())} rows too close to judge, {int((differ & open_rows).sum())} of them differ"
        )
    return CheckResult(prompt, check, not wrong, float(len(wrong)), 0.0, "; ".join(notes))


def _sorted(ids: Tensor, width: int) -> Tensor:
    padded = torch.nn.functional.pad(ids.to(torch.int64), (0, width - ids.shape[-1]), value=-1)
    return padded.sort(dim=-1).values
