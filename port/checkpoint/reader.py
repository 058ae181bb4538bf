"""Reads tensors and slices of tensors: only the bytes asked for, into memory of its own.

| the bytes asked for | how they are read | why |
|---|---|---|
| a whole tensor | `preadv` into the result | the kernel reads ahead into the tensor that comes next |
| one run of a tensor (rows) | one `preadv`, nothing read ahead | not a byte too many from the disk |
| such a run, where not in memory yet | pieces, several at a time | a disk is faster with several requests |
| long runs, or runs far apart | one `preadv` each | the gaps are never read |
| short runs close together (columns) | copied out of a memory map | one strided copy in place of thousands of calls |

A map covers at most `WINDOW_BYTES` at a time, so the process never grows by more than that beyond the result. Measured
beside `safetensors.get_slice` by `python -m bench checkpoint`.
"""

import mmap
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from port.checkpoint.entries import TensorEntry
from port.checkpoint.spans import ByteSpan, span_of, whole_span
from port.errors import CheckpointError

WINDOW_BYTES = 32 << 20
_LONG_RUN_BYTES = 64 << 10
_PIECE_BYTES = 1 << 20
_READERS = 4
_Bytes = npt.NDArray[np.uint8]
_CALL_BYTES = 1 << 30  # Linux moves at most 2 GiB - 4 KiB a call


@dataclass(slots=True, kw_only=True)
class ReadStats:
    """What a reader has done so far; only grows.

    Attributes:
        asked_bytes: bytes of the slices asked for.
        read_bytes: bytes requested from the operating system, mapped gaps included.
        call_count: reads and maps issued.
        elapsed_s: time spent in them.
    """

    asked_bytes: int = 0
    read_bytes: int = 0
    call_count: int = 0
    elapsed_s: float = 0.0


class CheckpointReader:
    """Open files of one checkpoint folder; a context manager.

    Attributes:
        stats: what has been read so far.
    """

    def __init__(self, folder: Path) -> None:
        self.stats = ReadStats()
        self._folder = folder
        self._descriptors: dict[tuple[str, bool], int] = {}
        self._readers: ThreadPoolExecutor | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close every file; reading again opens them again."""
        if self._readers is not None:
            self._readers.shutdown()
            self._readers = None
        while self._descriptors:
            os.close(self._descriptors.popitem()[1])

    def read(self, entry: TensorEntry) -> Tensor:
        """Return a whole tensor, in its stored dtype."""
        return self._read_new(entry, whole_span(entry))

    def read_slice(self, entry: TensorEntry, slices: Sequence[slice | int]) -> Tensor:
        """Return a slice of a tensor, in its stored dtype.

        Args:
            entry: the tensor.
            slices: see `port.checkpoint.spans.span_of`.

        Returns:
            A contiguous tensor of its own. A packed axis counts bytes, as torch holds it.

        Raises:
            CheckpointError: slices that do not fit, or a file that is gone or has become shorter.
        """
        return self._read_new(entry, span_of(entry, slices))

    def read_into(self, out: Tensor, entry: TensorEntry, slices: Sequence[slice | int] = ()) -> Tensor:
        """Fill `out` with a tensor or a slice of one, and return it.

        Args:
            out: contiguous, on the CPU, of the shape and dtype `read_slice` would return.
            entry: the tensor.
            slices: as for `read_slice`; empty for the whole tensor.

        Raises:
            CheckpointError: an `out` of another shape, dtype or layout; nothing is converted silently.
        """
        span = span_of(entry, slices)
        if tuple(out.shape) != span.shape or out.dtype != entry.torch_dtype:
            raise CheckpointError(
                f"{entry.name}: expected an `out` of {entry.torch_dtype}{list(span.shape)}; "
                f"found {out.dtype}{list(out.shape)}. Give a tensor of the stored shape and dtype."
            )
        if not out.is_contiguous() or out.device.type != "cpu":
            raise CheckpointError(
                f"{entry.name}: expected a contiguous `out` on the CPU; found strides {out.stride()} on {out.device}."
            )
        self._read_span(entry, span, _bytes_of(out))
        return out

    def _read_new(self, entry: TensorEntry, span: ByteSpan) -> Tensor:
        buffer = torch.empty(span.nbytes, dtype=torch.uint8)
        self._read_span(entry, span, buffer.numpy())
        return buffer.view(entry.torch_dtype).view(span.shape)

    def _read_span(self, entry: TensorEntry, span: ByteSpan, out: _Bytes) -> None:
        """Fill the flat byte array `out` with the span."""
        started = time.perf_counter()
        if span.nbytes:
            self.stats.asked_bytes += span.nbytes
            gaps_are_short = bool(span.counts) and span.strides[-1] <= _LONG_RUN_BYTES
            if gaps_are_short and span.run_bytes < _LONG_RUN_BYTES:
                self._copy_mapped(self._open(entry), span, out, entry)
            else:
                partial = span.nbytes < entry.nbytes
                # Reading ahead of a part fetches what nobody asked for, and costs twice the time on a cold disk.
                descriptor, target = self._open(entry, exact=partial), out.data
                for number, offset in enumerate(_run_offsets(span)):
                    begin = number * span.run_bytes
                    run = target[begin : begin + span.run_bytes]
                    read = self._read_run if partial else _pread
                    self.stats.call_count += read(descriptor, run, offset, entry)
                self.stats.read_bytes += span.nbytes
        self.stats.elapsed_s += time.perf_counter() - started

    def _read_run(self, descriptor: int, target: memoryview, offset: int, entry: TensorEntry) -> int:
        """Fill `target` and return how many calls it took: at once from memory, in pieces side by side from a disk."""
        if len(target) < 2 * _PIECE_BYTES:
            return _pread(descriptor, target, offset, entry)
        done = _read_cached(descriptor, target, offset)
        if len(target) - done < 2 * _PIECE_BYTES:
            return 1 + _pread(descriptor, target[done:], offset + done, entry)
        if self._readers is None:
            self._readers = ThreadPoolExecutor(_READERS, thread_name_prefix="checkpoint-reader")

        def read_piece(begin: int) -> int:
            return _pread(descriptor, target[begin : begin + _PIECE_BYTES], offset + begin, entry)

        pieces = self._readers.map(read_piece, range(done, len(target), _PIECE_BYTES))
        return 1 + sum(pieces)

    def _copy_mapped(self, descriptor: int, span: ByteSpan, out: _Bytes, entry: TensorEntry) -> None:
        rows, pitch, width = span.counts[-1], span.strides[-1], span.run_bytes
        window_rows = max(1, (WINDOW_BYTES - mmap.PAGESIZE) // pitch)
        size = os.fstat(descriptor).st_size
        out_rows = torch.from_numpy(out).view(-1, width)  # pyright: ignore[reportUnknownMemberType]
        filled = 0
        for outer in _outer_offsets(span):
            for row in range(0, rows, window_rows):
                count = min(window_rows, rows - row)
                first = outer + row * pitch
                length = (count - 1) * pitch + width
                if first + length > size:
                    raise _shorter(entry, size)  # a map would let us read past the end of the file
                base = first - first % mmap.ALLOCATIONGRANULARITY
                # Private and so writable, which torch wants; nobody writes. Not a context manager: the view must be
                # dropped before the map may close.
                window = mmap.mmap(descriptor, first - base + length, access=mmap.ACCESS_COPY, offset=base)
                whole = torch.frombuffer(window, dtype=torch.uint8, count=length, offset=first - base)
                out_rows[filled : filled + count] = whole.as_strided((count, width), (pitch, 1))
                del whole
                window.close()
                filled += count
                self.stats.call_count += 1
                self.stats.read_bytes += length

    def _open(self, entry: TensorEntry, *, exact: bool = False) -> int:
        """Return a descriptor of the entry's file; an exact one reads no byte ahead of what is asked for."""
        key = entry.file, exact
        descriptor = self._descriptors.get(key)
        if descriptor is None:
            path = self._folder / entry.file
            try:
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError as error:
                raise CheckpointError(
                    f"{entry.file}: expected the shard that holds {entry.name}; {error.strerror}. "
                    "The folder has changed since it was opened; open it again."
                ) from error
            self._descriptors[key] = descriptor
            if exact:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
        return descriptor


def _pread(descriptor: int, target: memoryview, offset: int, entry: TensorEntry) -> int:
    """Fill `target` and return how many calls it took."""
    done = calls = 0
    while done < len(target):
        count = os.preadv(descriptor, [target[done : done + _CALL_BYTES]], offset + done)
        calls += 1
        if count == 0:
            raise _shorter(entry, offset + done)
        done += count
    return calls


def _read_cached(descriptor: int, target: memoryview, offset: int) -> int:
    """Return how many bytes could be filled from memory without waiting for a disk; 0 where that cannot be told."""
    at_once = getattr(os, "RWF_NOWAIT", None)  # Linux alone has it
    try:
        return 0 if at_once is None else os.preadv(descriptor, [target[:_CALL_BYTES]], offset, at_once)
    except OSError:
        # Nothing is there yet, or this file system does not answer; the read that waits says what is wrong, if it is.
        return 0


def _bytes_of(tensor: Tensor) -> _Bytes:
    return tensor.view(-1).view(torch.uint8).numpy() if tensor.numel() else np.empty(0, np.uint8)


def _outer_offsets(span: ByteSpan) -> Iterator[int]:
    """Yield the start of every innermost row of runs."""
    steps = [
        range(0, count * stride, stride) for count, stride in zip(span.counts[:-1], span.strides[:-1], strict=True)
    ]
    for position in product(*steps):
        yield span.start + sum(position)


def _run_offsets(span: ByteSpan) -> Iterator[int]:
    """Yield the start of every run."""
    if not span.counts:
        yield span.start
        return
    for outer in _outer_offsets(span):
        yield from range(outer, outer + span.counts[-1] * span.strides[-1], span.strides[-1])


def _shorter(entry: TensorEntry, at: int) -> CheckpointError:
    return CheckpointError(
        f"{entry.file}: expected {entry.nbytes} bytes of {entry.name} from byte {entry.offset}; the file ends at "
        f"byte {at}. It has become shorter since it was opened; fetch it again."
    )
