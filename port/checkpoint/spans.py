"""Where the bytes of a slice lie: runs of contiguous bytes, and how they repeat. Arithmetic only; nothing is read.

A slice of a row-major tensor is a grid of equally long runs. Axes taken whole melt into the axis before them, so that
most slices are one run (rows of a matrix) or one row of runs (columns of a matrix).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from port.checkpoint.dtypes import STORED_DTYPES
from port.checkpoint.entries import TensorEntry
from port.errors import CheckpointError


@dataclass(frozen=True, slots=True, kw_only=True)
class ByteSpan:
    """The bytes of one slice.

    Attributes:
        start: first byte in the file.
        run_bytes: length of one contiguous run.
        counts: how often runs repeat, outermost first; empty for a single run.
        strides: bytes from one repetition to the next, one per entry of `counts`.
        shape: shape of the result as torch sees it.
    """

    start: int
    run_bytes: int
    counts: tuple[int, ...]
    strides: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes asked for."""
        return self.run_bytes * prod(self.counts)


def whole_span(entry: TensorEntry) -> ByteSpan:
    """Return the span of a whole tensor."""
    return ByteSpan(start=entry.offset, run_bytes=entry.nbytes, counts=(), strides=(), shape=entry.torch_shape)


def span_of(entry: TensorEntry, slices: Sequence[slice | int]) -> ByteSpan:
    """Return the span of a slice.

    Args:
        entry: the tensor.
        slices: one per axis from the first; axes left out are taken whole. An int takes one index and drops the axis.
            Negative numbers count from the end and bounds clip, as in Python. Counted in elements, also where two
            share a byte.

    Raises:
        CheckpointError: more slices than axes, a step other than 1, an index outside, or a border inside a byte.
    """
    if len(slices) > len(entry.shape):
        raise _refuse(entry, f"at most {len(entry.shape)} slices for shape {list(entry.shape)}", f"{len(slices)}")
    bounds: list[tuple[int, int]] = []
    result: list[int] = []
    for axis, size in enumerate(entry.shape):
        piece = slices[axis] if axis < len(slices) else slice(None)
        begin, end = _bounds(entry, axis, size, piece)
        bounds.append((begin, end))
        if isinstance(piece, slice):
            result.append(end - begin)
    if all(bound == (0, size) for bound, size in zip(bounds, entry.shape, strict=True)) and len(result) == len(bounds):
        return whole_span(entry)
    stored = STORED_DTYPES[entry.dtype]
    sizes = list(entry.shape)
    item_bytes = stored.bits // 8
    if stored.is_packed:
        bounds[-1], sizes[-1] = _packed_bounds(entry, bounds[-1], stored.bits)
        item_bytes = 1
        result[-1] = bounds[-1][1] - bounds[-1][0]  # an index, being part of a byte, was refused
    return _merge(entry.offset, bounds, sizes, item_bytes, tuple(result))


def _bounds(entry: TensorEntry, axis: int, size: int, piece: slice | int) -> tuple[int, int]:
    if isinstance(piece, int):
        index = piece + size if piece < 0 else piece
        if not 0 <= index < size:
            raise _refuse(entry, f"an index from 0 to {size - 1} on axis {axis}", str(piece))
        return index, index + 1
    begin, end, step = piece.indices(size)
    if step != 1:
        raise _refuse(entry, f"step 1 on axis {axis}", f"step {step}")
    return begin, max(begin, end)


def _packed_bounds(entry: TensorEntry, bound: tuple[int, int], bits: int) -> tuple[tuple[int, int], int]:
    """Return the bounds and the size of a packed last axis in bytes."""
    row_bits = entry.shape[-1] * bits
    begin, end = bound[0] * bits, bound[1] * bits
    if row_bits % 8 or begin % 8 or end % 8:
        per = 8 // bits if 8 % bits == 0 else 4
        found = f"[{bound[0]}, {bound[1]}) of {entry.shape[-1]}"
        raise _refuse(entry, f"borders divisible by {per}, because {entry.dtype} elements share bytes", found)
    return (begin // 8, end // 8), row_bits // 8


def _merge(
    offset: int, bounds: list[tuple[int, int]], sizes: list[int], item_bytes: int, shape: tuple[int, ...]
) -> ByteSpan:
    """Melt axes taken whole into the axis before them, then read off runs and strides."""
    merged: list[tuple[int, int, int]] = []  # begin, end, size
    for (begin, end), size in zip(reversed(bounds), reversed(sizes), strict=True):
        if merged and merged[-1][:2] == (0, merged[-1][2]):
            inner = merged.pop()[2]
            merged.append((begin * inner, end * inner, size * inner))
        else:
            merged.append((begin, end, size))
    merged.reverse()
    strides: list[int] = []
    stride = item_bytes
    for _, _, size in reversed(merged):
        strides.append(stride)
        stride *= size
    strides.reverse()
    start = offset + sum(begin * step for (begin, _, _), step in zip(merged, strides, strict=True))
    counts = tuple(end - begin for begin, end, _ in merged)
    return ByteSpan(
        start=start,
        run_bytes=counts[-1] * item_bytes,
        counts=counts[:-1],
        strides=tuple(strides[:-1]),
        shape=shape,
    )


def _refuse(entry: TensorEntry, expected: str, found: str) -> CheckpointError:
    return CheckpointError(f"{entry.name} {entry.dtype}{list(entry.shape)}: expected {expected}; found {found}.")
