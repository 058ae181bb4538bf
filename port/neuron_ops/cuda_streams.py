"""Streams, events and ranges of a profile, by their names in `torch.cuda`.

On the host streams and events keep their protocol and wait for nothing: every operation has ended when it returns.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Any

import torch

from port.neuron_ops.device_mapping import DeviceMapping, real_device
from port.neuron_ops.torch_neuron import ask_neuron, is_compiling, one_core


class HostStream:
    """A stream of the CPU: everything put on it has ended already.

    Attributes:
        device: the CPU.
        priority: as given.
        cuda_stream: 0, CUDA's number of the default stream.
    """

    cuda_stream = 0

    def __init__(self, device: Any = None, priority: int = 0) -> None:
        self.device = real_device("cpu")
        self.priority = priority

    def synchronize(self) -> None:
        """Wait for nothing."""

    def wait_stream(self, stream: object) -> None:
        """Wait for nothing."""

    def wait_event(self, event: object) -> None:
        """Wait for nothing."""

    def query(self) -> bool:
        """Everything has ended."""
        return True

    def record_event(self, event: HostEvent | None = None) -> HostEvent:
        """Return an event recorded now."""
        event = event or HostEvent()
        event.record(self)
        return event


class HostEvent:
    """A moment on the CPU; two that were made with `enable_timing` and recorded tell the wall time between them."""

    def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> None:
        self._has_timing = enable_timing
        self._at_s: float | None = None

    def record(self, stream: object = None) -> None:
        """Take the time."""
        self._at_s = time.perf_counter()

    def wait(self, stream: object = None) -> None:
        """Wait for nothing."""

    def query(self) -> bool:
        """Everything has ended."""
        return True

    def synchronize(self) -> None:
        """Wait for nothing."""

    def elapsed_time(self, end_event: HostEvent) -> float:
        """Return the milliseconds from this event to another.

        Raises:
            RuntimeError: one of them was made without `enable_timing`, or not recorded.
        """
        if not (self._has_timing and end_event._has_timing):
            raise RuntimeError("elapsed_time: expected two events made with enable_timing=True.")
        if self._at_s is None or end_event._at_s is None:
            raise RuntimeError("elapsed_time: expected two recorded events; call record() on both first.")
        return (end_event._at_s - self._at_s) * 1e3


class CudaStreams:
    """Functions of `torch.cuda`; each asks `torch.neuron` when it is called.

    Args:
        mapping: which device CUDA stands for.
    """

    def __init__(self, mapping: DeviceMapping) -> None:
        self._mapping = mapping
        self._default = HostStream()
        self._thread = threading.local()

    def current_stream(self, device: Any = None) -> Any:
        """Return the stream that work of this thread goes to."""
        if self._mapping.host:
            return getattr(self._thread, "stream", self._default)
        return ask_neuron("current_stream", *one_core(self._mapping, device))

    def default_stream(self, device: Any = None) -> Any:
        """Return the stream that work goes to at first."""
        return self._default if self._mapping.host else ask_neuron("default_stream", *one_core(self._mapping, device))

    def set_stream(self, stream: Any) -> None:
        """Make a stream the current one of this thread."""
        if self._mapping.host:
            self._thread.stream = stream
        else:
            ask_neuron("set_stream", stream)

    def stream(self, stream: Any) -> contextlib.AbstractContextManager[Any]:
        """Make a stream the current one for a while; None changes nothing, as with CUDA."""
        if stream is None or (self._mapping.host and is_compiling()):
            return contextlib.nullcontext()
        return self._on_host(stream) if self._mapping.host else ask_neuron("stream", stream)

    def StreamContext(self, stream: Any) -> contextlib.AbstractContextManager[Any]:
        """Make a stream the current one for a while."""
        return self.stream(stream)

    def is_current_stream_capturing(self) -> bool:
        """Nothing is captured: graphs are compiled."""
        return False

    @contextlib.contextmanager
    def _on_host(self, stream: Any) -> Iterator[None]:
        before = self.current_stream()
        self._thread.stream = stream
        try:
            yield
        finally:
            self._thread.stream = before


class ProfileRanges:
    """Functions of `torch.cuda.nvtx`: the ranges are those of torch's own profiler, which sees them on any device.

    A compiled graph has none: its operations are not run one by one.
    """

    def __init__(self, mapping: DeviceMapping) -> None:
        self._thread = threading.local()

    def range_push(self, msg: str) -> int:
        """Open a range in this thread; return how many were open."""
        if is_compiling():
            return 0
        opened = self._opened()
        opened.append(torch.autograd.profiler.record_function(msg))
        opened[-1].__enter__()
        return len(opened) - 1

    def range_pop(self) -> int:
        """Close the last range of this thread; return how many stay open, -1 where none was open."""
        if is_compiling():
            return -1
        opened = self._opened()
        if not opened:
            return -1
        opened.pop().__exit__(None, None, None)
        return len(opened)

    def mark(self, msg: str) -> None:
        """Note a moment: a range that ends at once."""
        with self.range("{}", msg):
            pass

    def range(self, msg: str, *args: Any, **keywords: Any) -> contextlib.AbstractContextManager[Any]:
        """Return a context that is a range; `msg` is formatted with the arguments."""
        if is_compiling():
            return contextlib.nullcontext()
        return torch.autograd.profiler.record_function(msg.format(*args, **keywords))

    def _opened(self) -> list[Any]:
        if not hasattr(self._thread, "opened"):
            self._thread.opened = []
        return self._thread.opened
