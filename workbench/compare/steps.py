"""One step of two sides, compared: rounding tensor by tensor, discrete choices apart from it.

A row whose choice flipped is no rounding error: it is left out of the figures of what the choice decided (the experts'
output of that step), and counted as a flip instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from workbench.captures import has_numbers, tensor_text
from workbench.compare.choices import compare_choices, flipped_rows
from workbench.compare.tensors import compare_tensors
from workbench.compare.tolerances import ErrorKind, tolerance_for
from workbench.plan import Tolerance
from workbench.records import DiscreteFlip, Record, Stamp, TensorDiff

_CHOICES = ("router_ids", "index_topk", "candidate_blocks")
_DECIDED_BY: dict[str, tuple[str, ...]] = {
    "router_ids": ("router_weights", "ffn.out"),
    "index_topk": ("attn.heads", "attn.out", "attn.stream", "attn.pre"),
}
"""Which tensors of the same step a choice decides, by the ends of their names."""


def compare_step(
    reference: Mapping[str, Tensor],
    candidate: Mapping[str, Tensor],
    *,
    error: ErrorKind,
    rules: Sequence[Tolerance],
    stamp: Stamp,
    precision: torch.dtype | None = None,
) -> Iterator[Record]:
    """Yield a record for every tensor both sides show, in the reference's order.

    Args:
        reference: intermediates of one step, by name, on the side that is trusted.
        candidate: the same on the side under test.
        error: how the candidate was fed.
        rules: the plan's tolerances; defaults hold where it has none.
        stamp: where in the run.
        precision: coarsest format either side computes in; None for that of each tensor.
    """
    flips = _flips(reference, candidate)
    for name, trusted in reference.items():
        if name not in candidate:
            continue
        found = candidate[name]
        if is_choice(name, trusted):
            yield _compare_choice(name, trusted, found, error, stamp)
            continue
        flipped = next((rows for ends, rows in flips if name.endswith(ends)), None)
        keep = None if flipped is None else ~flipped
        if keep is not None and not bool(keep.any()):
            continue
        note = "" if flipped is None else f"{int(flipped.sum())} rows reported as flips"
        if name.endswith("router_weights"):
            trusted, found = _by_expert(reference, trusted), _by_expert(candidate, found)
        yield compare_tensors(
            name,
            trusted,
            found,
            tolerance=tolerance_for(name, rules),
            error=error,
            stamp=stamp,
            keep_rows=keep,
            precision=precision,
            note=note,
        )


def is_choice(name: str, tensor: Tensor) -> bool:
    """Say whether a tensor holds discrete choices: expert ids, selected entries, candidate blocks."""
    return name.endswith(_CHOICES) and not tensor.is_floating_point()


def _compare_choice(
    name: str, reference: Tensor, candidate: Tensor, error: ErrorKind, stamp: Stamp
) -> DiscreteFlip | TensorDiff:
    if not (has_numbers(reference) and has_numbers(candidate)):
        return compare_tensors(name, reference, candidate, error=error, stamp=stamp)
    one, two = _as_ids(name, reference), _as_ids(name, candidate)
    width = max(one.shape[-1], two.shape[-1])
    one, two = _padded(one, width), _padded(two, width)
    if one.shape != two.shape:
        note = f"shapes differ: {tensor_text(reference)} and {tensor_text(candidate)}"
        return compare_tensors(name, reference, candidate, error=error, stamp=stamp, note=note)
    return compare_choices(name, one, two, error=error, stamp=stamp)


def _as_ids(name: str, tensor: Tensor) -> Tensor:
    """Return a mask as the ids it marks, -1 elsewhere, so that two masks compare as sets."""
    host = tensor.detach().to("cpu")
    if not name.endswith("candidate_blocks"):
        return host.to(torch.int64)
    ids = torch.arange(host.shape[-1]).expand(host.shape)
    return torch.where(host.bool(), ids, -1)


def _padded(ids: Tensor, width: int) -> Tensor:
    return torch.nn.functional.pad(ids, (0, width - ids.shape[-1]), value=-1)


def _flips(reference: Mapping[str, Tensor], candidate: Mapping[str, Tensor]) -> list[tuple[tuple[str, ...], Tensor]]:
    """Return, for each choice that flipped somewhere, the names it decides and bool per row."""
    found: list[tuple[tuple[str, ...], Tensor]] = []
    for name, trusted in reference.items():
        decided = next((names for choice, names in _DECIDED_BY.items() if name.endswith(choice)), None)
        if decided is None or name not in candidate or not (has_numbers(trusted) and has_numbers(candidate[name])):
            continue
        if trusted.shape == candidate[name].shape:
            rows = flipped_rows(trusted, candidate[name])
            if bool(rows.any()):
                found.append((decided, rows))
    return found


def _by_expert(side: Mapping[str, Tensor], weights: Tensor) -> Tensor:
    """Return router weights in ascending order of their experts' ids: the order chosen means nothing."""
    name = next((one for one in side if one.endswith("router_ids")), None)
    if name is None or side[name].shape != weights.shape:
        return weights
    return weights.gather(-1, side[name].to(torch.int64).argsort(-1))
