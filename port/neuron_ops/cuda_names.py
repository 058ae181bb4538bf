"""What stands in `torch.cuda` while `transfer_to_neuron` is installed: the same names over `torch.neuron` or the host.

`torch.neuron` is asked when a name is called, never before, so that nothing starts the runtime by being installed. In
host mode there is one device, the CPU; streams and events do nothing but keep their protocol, since every operation has
ended when it returns.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import torch

from port.errors import PlatformError
from port.neuron_ops.device_mapping import DeviceMapping, real_device

WITHOUT_COUNTERPART: tuple[str, ...] = (
    "CUDAGraph",
    "CUDAPluggableAllocator",
    "ExternalStream",
    "MemPool",
    "caching_allocator_alloc",
    "caching_allocator_delete",
    "cudart",
    "current_blas_handle",
    "get_stream_from_external",
    "graph",
    "graph_pool_handle",
    "make_graphed_callables",
    "use_mem_pool",
)
"""Names that mean something to CUDA only; calling one raises, with what to use instead."""

_INSTEAD = {
    "CUDAGraph": "compile the step with torch.compile(dynamic=False), one graph per batch size",
    "graph": "compile the step with torch.compile(dynamic=False), one graph per batch size",
    "make_graphed_callables": "compile the callable with torch.compile(dynamic=False)",
}


class HostStream:
    """A stream of the CPU: everything put on it has ended already."""

    def __init__(self, device: Any = None, priority: int = 0, **more: Any) -> None:
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

    def __enter__(self) -> HostStream:
        return self

    def __exit__(self, *error: object) -> None:
        return None


class HostEvent:
    """A moment on the CPU; two recorded ones tell the wall time between them."""

    def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> None:
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

    def elapsed_time(self, end: HostEvent) -> float:
        """Return the milliseconds from this event to another.

        Raises:
            RuntimeError: one of them was not recorded.
        """
        if self._at_s is None or end._at_s is None:
            raise RuntimeError("elapsed_time: expected two recorded events; call record() on both first.")
        return (end._at_s - self._at_s) * 1e3


class CudaNames:
    """The functions by their name in `torch.cuda`.

    Args:
        mapping: which device CUDA stands for.
    """

    def __init__(self, mapping: DeviceMapping) -> None:
        self._mapping = mapping
        self.Stream = HostStream if mapping.host else self._class("Stream")
        self.Event = HostEvent if mapping.host else self._class("Event")
        self._stream = HostStream()

    def is_available(self) -> bool:
        """True, except while a graph is compiled: compilers would take their CUDA paths."""
        return not is_compiling() and (self._mapping.host or bool(self._ask("is_available", default=True)))

    def is_initialized(self) -> bool:
        """The device starts by itself."""
        return True

    def init(self) -> None:
        """Nothing: the device starts by itself."""

    def device_count(self) -> int:
        """Return the devices CUDA code sees: one, or all cores with `same_index`; none while a graph is compiled."""
        if is_compiling():
            return 0
        if self._mapping.host or self._mapping.devices == "one":
            return 1
        return int(self._ask("device_count"))

    def current_device(self) -> int:
        """Return the number of the current core."""
        return 0 if self._mapping.host else int(self._ask("current_device"))

    def set_device(self, device: Any) -> None:
        """Make a core the current one."""
        target = self._mapping.number(device)
        if not self._mapping.host and target is not None:
            self._ask("set_device", target.index or 0)

    @contextlib.contextmanager
    def device(self, device: Any) -> Iterator[None]:
        """Make a core the current one for a while."""
        if self._mapping.host:
            yield
            return
        before = self.current_device()
        if device is not None and not (isinstance(device, int) and device < 0):
            self.set_device(device)
        try:
            yield
        finally:
            self._ask("set_device", before)

    def device_of(self, tensor: torch.Tensor) -> contextlib.AbstractContextManager[None]:
        """Make the core of a tensor the current one for a while."""
        return self.device(tensor.device if tensor.device.type == "neuron" else None)

    def synchronize(self, device: Any = None) -> None:
        """Wait for what is queued on a core."""
        if not self._mapping.host:
            self._ask("synchronize", *self._one(device))

    def current_stream(self, device: Any = None) -> Any:
        """Return the stream that work goes to."""
        return self._stream if self._mapping.host else self._ask("current_stream", *self._one(device))

    def default_stream(self, device: Any = None) -> Any:
        """Return the stream that work goes to at first."""
        return self._stream if self._mapping.host else self._ask("default_stream", *self._one(device))

    def set_stream(self, stream: Any) -> None:
        """Make a stream the current one; on the host they are all the same."""
        if not self._mapping.host:
            self._ask("set_stream", stream)

    def stream(self, stream: Any) -> contextlib.AbstractContextManager[Any]:
        """Make a stream the current one for a while."""
        if self._mapping.host or stream is None:
            return contextlib.nullcontext(stream)
        return self._ask("stream", stream)

    def is_current_stream_capturing(self) -> bool:
        """Nothing is captured: graphs are compiled."""
        return False

    def memory_allocated(self, device: Any = None) -> int:
        """Return bytes held by tensors; 0 on the host."""
        return self._bytes("memory_allocated", device)

    def max_memory_allocated(self, device: Any = None) -> int:
        """Return the most bytes held by tensors; 0 on the host."""
        return self._bytes("max_memory_allocated", device)

    def memory_reserved(self, device: Any = None) -> int:
        """Return bytes taken from the runtime; 0 on the host."""
        return self._bytes("memory_reserved", device)

    def max_memory_reserved(self, device: Any = None) -> int:
        """Return the most bytes taken from the runtime; 0 on the host."""
        return self._bytes("max_memory_reserved", device)

    def memory_stats(self, device: Any = None) -> dict[str, Any]:
        """Return the device's statistics, in its own layout; empty on the host, which keeps none."""
        return {} if self._mapping.host else dict(self._ask("memory_stats", *self._one(device)))

    def memory_summary(self, device: Any = None, abbreviated: bool = False) -> str:
        """Return the device's own summary as text."""
        if self._mapping.host:
            return "the CPU keeps no counters"
        return str(self._ask("memory_summary", *self._one(device)))

    def reset_peak_memory_stats(self, device: Any = None) -> None:
        """Begin the highest figures anew."""
        if not self._mapping.host:
            self._ask("reset_peak_memory_stats", *self._one(device))

    def empty_cache(self) -> None:
        """Give memory that nothing uses back to the runtime."""
        if not self._mapping.host:
            self._ask("empty_cache")

    def ipc_collect(self) -> None:
        """Nothing: memory is not shared between processes."""

    def mem_get_info(self, device: Any = None) -> tuple[int, int]:
        """Return free and total bytes of the core, or of the host.

        Raises:
            PlatformError: the build of torch-neuronx tells neither.
        """
        if self._mapping.host:
            import psutil

            memory = psutil.virtual_memory()
            return memory.available, memory.total
        one = self._one(device)
        found = self._ask("mem_get_info", *one, default=None)
        if found is not None:
            free, total = found
            return int(free), int(total)
        total = int(getattr(self._ask("get_device_properties", *one), "total_memory", 0))
        if not total:
            raise PlatformError("torch.cuda.mem_get_info: this build of torch-neuronx tells no total memory.")
        return max(total - self._bytes("memory_reserved", device), 0), total

    def get_device_properties(self, device: Any = None) -> Any:
        """Return the name and the total memory of a core, or of the host."""
        if self._mapping.host:
            return HostProperties()
        return self._ask("get_device_properties", *self._one(device))

    def get_device_name(self, device: Any = None) -> str:
        """Return the name of a core, `cpu` on the host."""
        return "cpu" if self._mapping.host else str(self._ask("get_device_name", *self._one(device)))

    def get_device_capability(self, device: Any = None) -> tuple[int, int]:
        """Return (0, 0): no compute capability, so that code for one of CUDA's is not chosen."""
        return (0, 0)

    def is_bf16_supported(self, including_emulation: bool = True) -> bool:
        """The device has bfloat16 (documented)."""
        return True

    def is_tf32_supported(self) -> bool:
        """There is no such mode."""
        return False

    def can_device_access_peer(self, device: Any, peer: Any) -> bool:
        """Cores do not read each other's memory."""
        return False

    def manual_seed(self, seed: int) -> None:
        """Seed the device; on the host the CPU's generator, directly, since `torch.manual_seed` calls this."""
        if self._mapping.host:
            torch.default_generator.manual_seed(seed)
        else:
            self._ask("manual_seed", seed)

    def manual_seed_all(self, seed: int) -> None:
        """Seed every core; on the host the CPU's generator, see `manual_seed`."""
        if self._mapping.host:
            torch.default_generator.manual_seed(seed)
        else:
            self._ask("manual_seed_all", seed)

    def initial_seed(self) -> int:
        """Return the seed the generator began with."""
        return torch.default_generator.initial_seed() if self._mapping.host else int(self._ask("initial_seed"))

    def get_rng_state(self, device: Any = None) -> torch.Tensor:
        """Return the state of the generator."""
        return torch.default_generator.get_state() if self._mapping.host else self._ask("get_rng_state")

    def set_rng_state(self, new_state: torch.Tensor, device: Any = None) -> None:
        """Put a state of `get_rng_state` back."""
        if self._mapping.host:
            torch.default_generator.set_state(new_state)
        else:
            self._ask("set_rng_state", new_state)

    def get_rng_state_all(self) -> list[torch.Tensor]:
        """Return the state of the one generator, in a list."""
        return [self.get_rng_state()]

    def set_rng_state_all(self, new_states: list[torch.Tensor]) -> None:
        """Put the states of `get_rng_state_all` back."""
        for state in new_states:
            self.set_rng_state(state)

    def _is_in_bad_fork(self) -> bool:
        return False

    def _lazy_init(self) -> None:
        """Nothing: the device starts by itself."""

    def _one(self, device: Any) -> tuple[Any, ...]:
        return () if device is None else (self._mapping.number(device),)

    def _bytes(self, name: str, device: Any) -> int:
        return 0 if self._mapping.host else int(self._ask(name, *self._one(device)))

    def _ask(self, name: str, *args: Any, **default: Any) -> Any:
        """Call a function of `torch.neuron`, or of `torch.accelerator` where a build has it there."""
        for place in (getattr(torch, "neuron", None), torch.accelerator):
            found = getattr(place, name, None)
            if found is not None:
                return found(*args)
        if "default" in default:
            return default["default"]
        raise PlatformError(
            f"torch.cuda.{name}: torch.neuron has no counterpart of it here. Is torch-neuronx installed, and imported? "
            "DEEPINFER_NEURON_DEVICE=cpu runs the same code on the host."
        )

    def _class(self, name: str) -> Any:
        # A function where CUDA has a class: `torch.neuron` is asked for it when one is made.
        def make(*args: Any, **keywords: Any) -> Any:
            mapped = {key: self._mapping.number(value) if key == "device" else value for key, value in keywords.items()}
            return self._make(name, args, mapped)

        make.__name__ = name
        return make

    def _make(self, name: str, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        found = getattr(getattr(torch, "neuron", None), name, None) or getattr(torch, name)
        return found(*(self._mapping.device(value) for value in args), **keywords)


class HostProperties:
    """What CUDA code asks of a device, answered for the CPU."""

    name = "cpu"
    major = 0
    minor = 0
    multi_processor_count = 1

    @property
    def total_memory(self) -> int:
        """Bytes of the host."""
        import psutil

        return psutil.virtual_memory().total


def refusal(name: str) -> Any:
    """Return what stands for a name that means something to CUDA only."""

    def refuse(*args: Any, **keywords: Any) -> Any:
        instead = _INSTEAD.get(name, "there is nothing of the kind on Neuron")
        raise NotImplementedError(f"torch.cuda.{name} has no counterpart on Neuron: {instead}.")

    refuse.__name__ = name
    return refuse


def is_compiling() -> bool:
    """Say whether a graph is being traced or compiled in this thread."""
    if torch.compiler.is_compiling():
        return True
    guards = getattr(torch, "_guards", None)
    return guards is not None and guards.TracingContext.try_get() is not None
