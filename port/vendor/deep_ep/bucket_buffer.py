"""The buffer of context parallelism: one piece of memory, cut anew in each session, and an all-gather."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from port.collectives.transport import Pending, gather_tensors, sum_tensor
from port.vendor.deep_ep.sizes import align


class BucketBuffer:
    """Memory for the exchanges of one prefill.

    Args:
        group: ranks that share a prompt; None for this process alone.
        num_bytes: size of the memory.
        device: where it lies.

    Raises:
        ValueError: a size below 1.
    """

    def __init__(self, group: ProcessGroup | None, num_bytes: int, *, device: torch.device | str = "cpu") -> None:
        if num_bytes < 1:
            raise ValueError(f"num_bytes: expected at least 1; found {num_bytes}.")
        self.group = group
        self.num_bytes = num_bytes
        self._memory = torch.empty(num_bytes, dtype=torch.uint8, device=device)
        self._used: int | None = None

    @contextmanager
    def session(self) -> Iterator[BucketBuffer]:
        """Begin with all memory free; at the end all of it is free again, and what was cut from it must not be used.

        Raises:
            ValueError: a session within a session.
        """
        if self._used is not None:
            raise ValueError("BucketBuffer.session: expected no open session; there is one, and it holds the memory.")
        self._used = 0
        try:
            yield self
        finally:
            self._used = None

    def allocate(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Return a tensor in the buffer's memory, not initialised.

        Raises:
            ValueError: outside a session, or more than what is left.
        """
        if self._used is None:
            raise ValueError("BucketBuffer.allocate: expected an open session; use `with buffer.session():`.")
        nbytes = math.prod(shape) * dtype.itemsize
        begin = self._used
        left = max(self.num_bytes - begin, 0)
        if nbytes > left:
            raise ValueError(
                f"BucketBuffer.allocate: expected at most {left} bytes, what the session has left "
                f"of {self.num_bytes}; found {nbytes} for {dtype}{list(shape)}. Make the buffer larger."
            )
        self._used = align(begin + nbytes)
        return self._memory[begin : begin + nbytes].view(dtype).view(*shape)

    def all_gather(self, x: Tensor) -> Pending[Tensor]:
        """Return a handle whose `wait()` gives the tensors of all ranks joined along their first axis, by rank.

        Args:
            x: (n, ...), the same shape and dtype on every rank; any dtype, FP8 travels as bytes.
        """
        as_bytes = x.contiguous().view(torch.uint8)
        pending = gather_tensors(as_bytes, self.group)
        return Pending(lambda: pending.wait().flatten(0, 1).view(x.dtype))

    def barrier(self) -> None:
        """Wait until every rank of the group is here."""
        sum_tensor(torch.zeros(1), self.group)

    def reduce_scatter(self, x: Tensor) -> Tensor:
        """Refuse: only context parallelism sums over ranks, and this port does not have it."""
        raise NotImplementedError(_refusal("reduce_scatter"))

    def all_reduce(self, x: Tensor) -> Tensor:
        """Refuse: only context parallelism sums over ranks, and this port does not have it."""
        raise NotImplementedError(_refusal("all_reduce"))


def _refusal(name: str) -> str:
    return (
        f"BucketBuffer.{name}: expected context_parallel_size=1; sums over the ranks of a shared prefill are not part "
        "of this port. Set context_parallel_size=1 and spread requests over data-parallel ranks instead."
    )
