"""The few exchanges everything here is made of: rows of bytes between all pairs of ranks, and one number summed.

| exchange | sizes | host waits | on trn2 |
|---|---|---|---|
| `exchange_rows` | another one for every pair | for the counts | not within an instance (documented) |
| `exchange_slots` | equal for every pair | never | yes (documented) |

trn2 refuses variable sizes for want of receive displacements: its output must be ranks times its input (documented).
There is no send or receive in the neuron back end (documented), so nothing here uses them. FP8 and other dtypes travel
as bytes, since back ends differ in what they can name. A group of None is this process alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Generic, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from port.errors import CollectiveError

T = TypeVar("T")


class Pending(Generic[T]):
    """A result that is on its way.

    Args:
        finish: waits for it and makes it; called once.
    """

    def __init__(self, finish: Callable[[], T]) -> None:
        self._finish: Callable[[], T] | None = finish
        self._results: list[T] = []

    def wait(self) -> T:
        """Return the result, waiting for it the first time."""
        if self._finish is not None:
            # Dropped first: a failed exchange is not waited for again, and its buffers can go.
            finish, self._finish = self._finish, None
            self._results.append(finish())
        if not self._results:
            raise CollectiveError("expected a result of an exchange; it failed when it was first waited for.")
        return self._results[0]


def group_rank(group: ProcessGroup | None) -> int:
    """Return this process's place in a group."""
    return 0 if group is None else dist.get_rank(group)


def group_size(group: ProcessGroup | None) -> int:
    """Return the number of ranks of a group."""
    return 1 if group is None else dist.get_world_size(group)


def exchange_counts(counts: Sequence[int], group: ProcessGroup | None) -> list[int]:
    """Return what each rank has for this one, given what this one has for each; the host waits."""
    if group_size(group) == 1:
        return list(counts)
    sent = torch.tensor(counts, dtype=torch.int64, device=group_device(group))
    received = torch.empty_like(sent)
    with explained("counts", group):
        dist.all_to_all_single(received, sent, group=group)
    return received.tolist()


def exchange_rows(
    rows: Tensor, sent: Sequence[int], received: Sequence[int], group: ProcessGroup | None
) -> Pending[Tensor]:
    """Return the rows that came from each rank, in order of rank.

    Args:
        rows: uint8 (sum of `sent`, width), those for rank 0 first.
        sent: rows for each rank.
        received: rows from each rank, known beforehand (`exchange_counts`).
        group: the ranks.

    Returns:
        A pending uint8 (sum of `received`, width).
    """
    if group_size(group) == 1:
        return Pending(lambda: rows)
    assert sum(sent) == rows.shape[0], f"{rows.shape[0]} rows are cut into {list(sent)}"
    out = rows.new_empty(sum(received), rows.shape[1])
    with explained("rows", group):
        work = dist.all_to_all_single(out, rows.contiguous(), list(received), list(sent), group=group, async_op=True)
    return _pending(work, out, "rows", group)


def exchange_slots(slots: Tensor, group: ProcessGroup | None) -> Pending[Tensor]:
    """Return entry r of what rank r has for this one, with equal sizes everywhere and no wait on the host.

    Args:
        slots: (ranks, ...), entry r is for rank r; every rank has the same shape.
        group: the ranks.

    Returns:
        A pending tensor of the same shape and dtype, entry r from rank r.
    """
    if group_size(group) == 1:
        return Pending(lambda: slots)
    sent = slots.contiguous()
    out = torch.empty_like(sent)
    with explained("slots", group):
        work = dist.all_to_all_single(out, sent, group=group, async_op=True)
    return _pending(work, out, "slots", group)


def gather_tensors(x: Tensor, group: ProcessGroup | None) -> Pending[Tensor]:
    """Return the tensors of all ranks, (ranks, *x.shape), in order of rank; shapes must agree."""
    if group_size(group) == 1:
        return Pending(lambda: x.unsqueeze(0))
    out = x.new_empty(group_size(group), *x.shape)
    with explained("all-gather", group):
        work = dist.all_gather(list(out.unbind(0)), x.contiguous(), group=group, async_op=True)
    return _pending(work, out, "all-gather", group)


def sum_tensor(x: Tensor, group: ProcessGroup | None) -> Tensor:
    """Return the sum over all ranks; `x` is left as it is."""
    if group_size(group) == 1:
        return x.clone()
    total = x.to(group_device(group), copy=True)
    with explained("all-reduce", group):
        dist.all_reduce(total, group=group)
    return total.to(x.device)


def group_device(group: ProcessGroup | None) -> torch.device:
    """Return where a group's tensors must lie: the CPU for gloo, else the device of its back end."""
    if group is None or dist.get_backend(group) == "gloo":
        return torch.device("cpu")
    device = torch.accelerator.current_accelerator()
    if device is None:
        raise CollectiveError(
            f"group: expected a device for the back end {dist.get_backend(group)!r}; torch finds none. Use gloo."
        )
    return torch.device(device.type, torch.accelerator.current_device_index())


def as_bytes(parts: Sequence[Tensor]) -> Tensor:
    """Return tensors (N, ...) of any dtype side by side as uint8 (N, bytes)."""
    return torch.cat([_row_bytes(part) for part in parts], dim=1)


def from_bytes(rows: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """Return the parts of `as_bytes` again: (N, ...) each, with the row shapes and dtypes of `like`."""
    widths = [_row_width(part) for part in like]
    # A copy even of a single row, which is contiguous where it lies: wide elements begin at multiples of their size.
    return [
        piece.clone(memory_format=torch.contiguous_format).view(part.dtype).view(rows.shape[0], *part.shape[1:])
        for piece, part in zip(rows.split(widths, dim=1), like, strict=True)
    ]


@contextmanager
def explained(what: str, group: ProcessGroup | None) -> Iterator[None]:
    """Turn a back end's error into one that says which ranks were meant and what to look for."""
    try:
        yield
    except RuntimeError as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise CollectiveError(
            f"{what}: expected all {group_size(group)} ranks of the group to take part; rank {group_rank(group)} met: "
            f"{first}\n  A rank has died, hangs, or ran another number of steps. Look at the first error of the others."
        ) from error


def _pending(work: dist.Work | None, out: Tensor, what: str, group: ProcessGroup | None) -> Pending[Tensor]:
    def finish() -> Tensor:
        if work is not None:
            with explained(what, group):
                work.wait()
        return out

    return Pending(finish)


def _row_bytes(part: Tensor) -> Tensor:
    return part.reshape(part.shape[0], _row_elements(part)).contiguous().view(torch.uint8)


def _row_elements(part: Tensor) -> int:
    return math.prod(part.shape[1:])


def _row_width(part: Tensor) -> int:
    return _row_elements(part) * part.element_size()
