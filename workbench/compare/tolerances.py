"""When two tensors count as equal: the plan's own rules first, else the default of the pair, each with its reason.

Two formats of different width can only be compared in steps of the coarser one and by the norm of the difference. An
absolute limit below one such step can be met by no correct result, and a cosine says nothing of a few wrong
elements; neither is ever a verdict alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Literal

import torch

from workbench.plan import Tolerance

ErrorKind = Literal["accumulated", "isolated"]

EXACT = Tolerance(reason="no rounding separates the two sides, so every bit must agree")

_NO_RULE = Tolerance(reason="the plan gives rules and none fits this name, so every value must agree")

_DEFAULTS: dict[tuple[torch.dtype, ErrorKind], Tolerance] = {
    (torch.float64, "isolated"): Tolerance(
        rel_l2=1e-13, steps=4096, reason="float64 against float64: only the order of summation may differ"
    ),
    (torch.float64, "accumulated"): Tolerance(
        rel_l2=1e-11, steps=65536, reason="float64 against float64, over many operations"
    ),
    (torch.float32, "isolated"): Tolerance(
        rel_l2=1e-5, steps=4096, reason="float32 against float32: only the order of summation may differ"
    ),
    (torch.float32, "accumulated"): Tolerance(
        rel_l2=1e-4,
        steps=65536,
        reason="float32 against float32 over a whole model: two independent implementations agree to 1.5e-6, "
        "a fault of the architecture shows above 1e-4",
    ),
    (torch.float16, "isolated"): Tolerance(
        rel_l2=2**-9, steps=4, reason="operands and result rounded to float16: a few steps at the size of the row"
    ),
    (torch.float16, "accumulated"): Tolerance(
        rel_l2=2**-6, steps=64, reason="float16 roundings of many operations add up"
    ),
    (torch.bfloat16, "isolated"): Tolerance(
        rel_l2=2**-6, steps=4, reason="operands and result rounded to bfloat16: a few steps at the size of the row"
    ),
    (torch.bfloat16, "accumulated"): Tolerance(
        rel_l2=0.05, steps=32, reason="bfloat16 roundings of many operations add up"
    ),
}

_NARROW: dict[ErrorKind, Tolerance] = {
    "isolated": Tolerance(rel_l2=0.06, reason="an 8-bit float has 2 or 3 fraction bits: half a step is up to 6 %"),
    "accumulated": Tolerance(rel_l2=0.15, reason="8-bit roundings of many operations add up"),
}


def default_tolerance(dtype: torch.dtype, error: ErrorKind) -> Tolerance:
    """Return the rule for two tensors whose coarser format is `dtype`; exact for integers and booleans."""
    if not dtype.is_floating_point:
        return EXACT
    if dtype.itemsize == 1:
        return _NARROW[error]
    return _DEFAULTS[dtype, error]


def tolerance_for(name: str, rules: Sequence[Tolerance]) -> Tolerance | None:
    """Return the plan's rule for a tensor: the first whose pattern fits, exact where rules exist and none fits.

    None when the plan has no rules; the default of the pair holds then.
    """
    if not rules:
        return None
    return next((rule for rule in rules if fnmatchcase(name, rule.names)), _NO_RULE)


def tolerance_text(tolerance: Tolerance) -> str:
    """Return the rule in words, with its reason."""
    parts = []
    if tolerance.atol or tolerance.rtol:
        parts.append(f"|difference| <= {tolerance.atol:g} + {tolerance.rtol:g} x |reference|")
    if tolerance.rel_l2 is not None:
        parts.append(f"relative L2 of each row <= {tolerance.rel_l2:g}")
    if tolerance.steps is not None:
        parts.append(f"<= {tolerance.steps:g} steps")
    return f"{', '.join(parts) or 'exact'} ({tolerance.reason})"
