"""Two tensors of one name, compared: figures for the reader, and a verdict under one rule.

The difference of an element is counted in steps of the coarser format at the larger of its own magnitude and the root
mean square of its row. Where a sum cancels to nearly nothing its error stays the size of its terms, so steps at the
result's own size would say nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from workbench.captures import as_float64, dtype_name, has_numbers, tensor_text
from workbench.compare.dtypes import coarser, step_size, value_dtype
from workbench.compare.tolerances import ErrorKind, default_tolerance, tolerance_text
from workbench.plan import Tolerance
from workbench.records import Stamp, TensorDiff
from workbench.units import number_text

_ROW_WIDTH = 16
"""Shorter last axes are no rows of a statistic; the whole tensor is one row then."""

_ROW_FLOOR = 1e-2
"""A row counts as at least this share of the root mean square row norm, so that an almost empty row decides nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What two tensors of one shape differ by.

    Attributes:
        max_abs: largest absolute difference; infinite where only one side is finite, NaN where only one is NaN.
        max_rel: largest relative to the reference element, over reference elements other than 0.
        rel_l2: of the whole tensors, finite elements only.
        worst_row_rel_l2: largest of a single row.
        cosine: of the flattened tensors, None where one of them is zero.
        worst_index: of `max_abs`, None for equal tensors.
        max_steps: in steps of `dtype`, see the module; None for integers.
        allowed_excess: largest |difference| - (atol + rtol x |reference|).
        quantum_at_worst: one step of `dtype` at the worst element, None for integers.
        dtype: the coarser format of the two.
        mismatched_nonfinite: elements where NaN or infinity stands on one side only, or of the other sign.
        agreed_nonfinite: elements where both sides hold the same NaN or infinity.
        signed_zeros: elements that are 0 on both sides with different signs.
        largest: magnitude of the largest finite reference element.
    """

    max_abs: float
    max_rel: float
    rel_l2: float
    worst_row_rel_l2: float
    cosine: float | None
    worst_index: tuple[int, ...] | None
    max_steps: float | None
    allowed_excess: float
    quantum_at_worst: float | None
    dtype: torch.dtype
    mismatched_nonfinite: int
    agreed_nonfinite: int
    signed_zeros: int
    largest: float


def measure(
    reference: Tensor,
    candidate: Tensor,
    *,
    atol: float = 0.0,
    rtol: float = 0.0,
    precision: torch.dtype | None = None,
) -> Figures:
    """Return what two tensors of one shape differ by; both on the CPU or copied there.

    Args:
        reference: the side that is trusted.
        candidate: the side under test.
        atol: absolute part of the limit `allowed_excess` is measured from.
        rtol: part of it relative to the reference.
        precision: count steps in this format where it is coarser than that of the values.

    Raises:
        ValueError: shapes that differ.
    """
    if reference.shape != candidate.shape:
        raise ValueError(f"expected one shape, found {tensor_text(reference)} and {tensor_text(candidate)}")
    one, two = as_float64(reference), as_float64(candidate)
    dtype = coarser(value_dtype(reference), value_dtype(candidate))
    if precision is not None and dtype.is_floating_point:
        dtype = coarser(dtype, precision)
    both = one.isfinite() & two.isfinite()
    same = (one == two) | (one.isnan() & two.isnan())
    mismatched = ~both & ~same
    difference = torch.where(both, (one - two).abs(), torch.zeros_like(one))
    magnitude = torch.where(both, one.abs(), torch.zeros_like(one))
    worst_finite = difference.max().item() if difference.numel() else 0.0
    worst = _worst_index(difference, mismatched, worst_finite)
    max_abs = worst_finite
    if mismatched.any():
        max_abs = math.nan if bool((one.isnan() ^ two.isnan()).any()) else math.inf
    nonzero = magnitude > 0
    relative = difference[nonzero] / magnitude[nonzero]
    steps = quantum = None
    if dtype.is_floating_point and one.numel():
        scale = torch.maximum(torch.maximum(magnitude, torch.where(both, two.abs(), magnitude)), _row_rms(magnitude))
        size = step_size(scale, dtype)
        steps = (difference / size).max().item()
        quantum = size.reshape(-1)[int(difference.argmax())].item()
    excess = (difference - (atol + rtol * magnitude)).max().item() if one.numel() else 0.0
    return Figures(
        max_abs=max_abs,
        max_rel=relative.max().item() if relative.numel() else 0.0,
        rel_l2=_ratio(difference.norm().item(), magnitude.norm().item()),
        worst_row_rel_l2=_worst_row(difference, magnitude),
        cosine=_cosine(torch.where(both, one, 0.0), torch.where(both, two, 0.0)),
        worst_index=worst,
        max_steps=steps,
        allowed_excess=excess,
        quantum_at_worst=quantum,
        dtype=dtype,
        mismatched_nonfinite=int(mismatched.sum()),
        agreed_nonfinite=int((~both & same).sum()),
        signed_zeros=int(((one == 0) & (two == 0) & (one.signbit() != two.signbit())).sum()),
        largest=magnitude.max().item() if magnitude.numel() else 0.0,
    )


def compare_tensors(
    name: str,
    reference: Tensor,
    candidate: Tensor,
    *,
    tolerance: Tolerance | None = None,
    error: ErrorKind = "accumulated",
    stamp: Stamp | None = None,
    keep_rows: Tensor | None = None,
    precision: torch.dtype | None = None,
    note: str = "",
) -> TensorDiff:
    """Return one record: figures, verdict and the rule it was made by.

    Args:
        name: what is compared.
        reference: the side that is trusted.
        candidate: the side under test; may differ in dtype, not in shape.
        tolerance: the rule, None for the default of the two formats.
        error: how the candidate was fed.
        stamp: where in the run.
        keep_rows: bool over the first axis; other rows are left out of figures and verdict.
        precision: coarsest format the sides compute in, where that is coarser than what they hand over; decides the
            default rule, and steps are counted in it.
        note: said before our own remarks.
    """
    place = stamp or Stamp()
    remarks = [note] if note else []
    if reference.shape != candidate.shape:
        shapes = f"shapes differ: {tensor_text(reference)} and {tensor_text(candidate)}"
        return _incomparable(name, error, place, "; ".join([*remarks, shapes]))
    if not (has_numbers(reference) and has_numbers(candidate)):
        return _incomparable(name, error, place, "; ".join([*remarks, "no numbers on a dry side: shapes agree"]))
    if reference.dtype != candidate.dtype:
        remarks.append(f"dtypes: {dtype_name(reference.dtype)} and {dtype_name(candidate.dtype)}")
    if keep_rows is not None and not bool(keep_rows.all()):
        kept = keep_rows.to("cpu")
        reference, candidate = reference.to("cpu")[kept], candidate.to("cpu")[kept]
    given = tolerance is not None
    rule = tolerance or _default_rule(reference, candidate, error, precision)
    figures = measure(reference, candidate, atol=rule.atol, rtol=rule.rtol, precision=precision)
    passed, why, rule = _judge(figures, rule, error, given=given)
    if reference.numel() == 0:
        remarks.append("no element to compare")
    return TensorDiff(
        stamp=place,
        name=name,
        error=error,
        max_abs=figures.max_abs,
        max_rel=figures.max_rel,
        rel_l2=figures.rel_l2,
        cosine=figures.cosine,
        worst_index=_whole_index(figures.worst_index, keep_rows),
        max_steps=figures.max_steps,
        tolerance=tolerance_text(rule),
        verdict="match" if passed else "differ",
        note="; ".join([*remarks, *why]),
    )


def _default_rule(reference: Tensor, candidate: Tensor, error: ErrorKind, precision: torch.dtype | None) -> Tolerance:
    dtype = coarser(value_dtype(reference), value_dtype(candidate))
    # Integers are exact whatever the model computes in.
    return default_tolerance(coarser(dtype, precision) if precision and dtype.is_floating_point else dtype, error)


def _judge(figures: Figures, rule: Tolerance, error: ErrorKind, *, given: bool) -> tuple[bool, list[str], Tolerance]:
    """Return the verdict, remarks on it, and the rule that made it."""
    remarks = _remarks(figures)
    if figures.mismatched_nonfinite:
        return False, remarks, rule
    exact = not rule.atol and not rule.rtol and rule.rel_l2 is None and rule.steps is None
    if exact:
        return figures.max_abs == 0, remarks, rule
    failed: list[str] = []
    if (rule.atol or rule.rtol) and figures.allowed_excess > 0:
        quantum = figures.quantum_at_worst
        if given and _unreachable(figures, rule) and quantum is not None:
            fallback = default_tolerance(figures.dtype, error)
            remarks.append(
                f"the plan's limit ({rule.atol:g} + {rule.rtol:g} x |reference|) is below one "
                f"{dtype_name(figures.dtype)} step ({quantum:g} there), which no rounded result can meet; "
                "judged in steps instead"
            )
            rule = Tolerance(
                rel_l2=rule.rel_l2 if rule.rel_l2 is not None else fallback.rel_l2,
                steps=rule.steps if rule.steps is not None else fallback.steps,
                reason=fallback.reason,
                names=rule.names,
            )
        else:
            failed.append("absolute and relative limit")
    if rule.rel_l2 is not None and not figures.worst_row_rel_l2 <= rule.rel_l2:
        failed.append(f"worst row's relative L2 is {number_text(figures.worst_row_rel_l2)}")
    if rule.steps is not None and figures.max_steps is not None and not figures.max_steps <= rule.steps:
        failed.append(f"{number_text(figures.max_steps)} {dtype_name(figures.dtype)} steps")
    return not failed, [*remarks, *failed], rule


def _unreachable(figures: Figures, rule: Tolerance) -> bool:
    """Say whether a format as coarse as this one cannot meet the rule's limit at the element that misses it most."""
    quantum = figures.quantum_at_worst
    coarse = figures.dtype.itemsize <= 2
    return coarse and quantum is not None and rule.atol + rule.rtol * figures.largest < quantum


def _remarks(figures: Figures) -> list[str]:
    remarks: list[str] = []
    if figures.mismatched_nonfinite:
        remarks.append(f"NaN or infinity on one side only in {figures.mismatched_nonfinite} elements")
    if figures.agreed_nonfinite:
        remarks.append(f"the same NaN or infinity on both sides in {figures.agreed_nonfinite} elements")
    if figures.signed_zeros:
        remarks.append(f"zeros of different sign in {figures.signed_zeros} elements")
    return remarks


def _incomparable(name: str, error: ErrorKind, stamp: Stamp, note: str) -> TensorDiff:
    return TensorDiff(
        stamp=stamp,
        name=name,
        error=error,
        max_abs=None,
        max_rel=None,
        rel_l2=None,
        cosine=None,
        worst_index=None,
        max_steps=None,
        tolerance="none applied",
        verdict="incomparable",
        note=note,
    )


def _rows(tensor: Tensor) -> Tensor:
    """Return the tensor as (rows, width), one row in all where the last axis is short."""
    if tensor.dim() < 2 or tensor.shape[-1] < _ROW_WIDTH:
        return tensor.reshape(1, -1)
    return tensor.reshape(-1, tensor.shape[-1])


def _row_rms(magnitude: Tensor) -> Tensor:
    rms = _rows(magnitude).square().mean(-1, keepdim=True).sqrt()
    return rms.expand(_rows(magnitude).shape).reshape(magnitude.shape)


def _worst_row(difference: Tensor, magnitude: Tensor) -> float:
    if not difference.numel():
        return 0.0
    sizes, errors = _rows(magnitude).norm(dim=-1), _rows(difference).norm(dim=-1)
    floor = _ROW_FLOOR * sizes.square().mean().sqrt().item()
    wrong = errors > 0
    if not bool(wrong.any()):
        return 0.0
    return (errors[wrong] / sizes[wrong].clamp_min(floor)).max().item()


def _worst_index(difference: Tensor, mismatched: Tensor, worst: float) -> tuple[int, ...] | None:
    if bool(mismatched.any()):
        flat = int(mismatched.reshape(-1).to(torch.uint8).argmax())
    elif worst > 0:
        flat = int(difference.reshape(-1).argmax())
    else:
        return None
    return tuple(int(axis) for axis in torch.unravel_index(torch.tensor(flat), difference.shape))


def _whole_index(index: tuple[int, ...] | None, keep_rows: Tensor | None) -> tuple[int, ...] | None:
    """Return the index counted over all rows, where some had been left out."""
    if index is None or keep_rows is None or not index:
        return index
    return (int(keep_rows.to("cpu").nonzero()[index[0], 0]), *index[1:])


def _ratio(part: float, whole: float) -> float:
    if part == 0:
        return 0.0
    return part / whole if whole else math.inf


def _cosine(one: Tensor, two: Tensor) -> float | None:
    product = one.norm().item() * two.norm().item()
    return (one * two).sum().item() / product if product else None
