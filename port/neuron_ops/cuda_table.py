"""What becomes of every public name of `torch.cuda`: it has a counterpart, it stays, or it is refused by name.

A name that is in neither table and has no counterpart is refused: what a later torch adds is not called on a device
that is not there. Aliases in `torch.cuda.memory`, `.random`, `.streams` and `.graphs` follow their name.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch

from port.neuron_ops.class_stand_ins import stand_in
from port.neuron_ops.cuda_devices import CudaDevices, CudaRandom
from port.neuron_ops.cuda_memory import CudaMemory
from port.neuron_ops.cuda_streams import CudaStreams, HostEvent, HostStream, ProfileRanges
from port.neuron_ops.device_mapping import DeviceMapping
from port.neuron_ops.installation import INSTALLATION, Replacements
from port.neuron_ops.torch_neuron import is_asked_by_compiler

STAYS = frozenset({
    "CudaError",
    "DeferredCudaCallError",
    "cudaStatus",
    "max_memory_cached",
    "memory_cached",
    "reset_max_memory_allocated",
    "reset_max_memory_cached",
})  # fmt: skip
"""Errors, and old names that torch itself forwards to names with a counterpart. What cannot be called stays too."""

_COMPILE = "compile the step with torch.compile(dynamic=False), one graph per batch size"
_MONITOR = "neuron-monitor tells how a core is used; port.deep_cluster.neuron_monitor reads it"
_SNAPSHOT = "torch.neuron has snapshots of its own where the build offers them; memory_stats is mapped"
INSTEAD: Mapping[str, str] = {
    "CUDAGraph": _COMPILE,
    "graph": _COMPILE,
    "graph_pool_handle": _COMPILE,
    "make_graphed_callables": _COMPILE,
    "clock_rate": _MONITOR,
    "device_memory_used": _MONITOR,
    "list_gpu_processes": _MONITOR,
    "memory_usage": _MONITOR,
    "power_draw": _MONITOR,
    "temperature": _MONITOR,
    "utilization": _MONITOR,
    "memory_snapshot": _SNAPSHOT,
    "memory._dump_snapshot": _SNAPSHOT,
    "memory._record_memory_history": _SNAPSHOT,
    "memory._snapshot": _SNAPSHOT,
    "nvtx.range_end": "ranges of one thread are mapped: range_push and range_pop",
    "nvtx.range_start": "ranges of one thread are mapped: range_push and range_pop",
    "profiler.start": "use torch.profiler, or Neuron's own",
    "profiler.stop": "use torch.profiler, or Neuron's own",
    "set_sync_debug_mode": "synchronising operations are not reported",
}
"""What to do in place of a name that is refused."""

_OF_CUDA_ITSELF = (
    "_lazy_init",
    "get_arch_list",
    "get_device_capability",
    "get_device_name",
    "get_device_properties",
    "is_initialized",
)
"""Left to CUDA when a compiler asks: Inductor reads what it finds there without asking whether there is a CUDA."""

_TENSOR_TYPES = (
    "BFloat16Tensor",
    "BoolTensor",
    "ByteTensor",
    "CharTensor",
    "DoubleTensor",
    "FloatTensor",
    "HalfTensor",
    "IntTensor",
    "LongTensor",
    "ShortTensor",
)


def cuda_functions(mapping: DeviceMapping) -> Mapping[str, Callable[..., Any]]:
    """Return the functions that have a counterpart, by their name in `torch.cuda`."""
    found = _methods(CudaDevices(mapping)) | _methods(CudaRandom(mapping))
    found |= _methods(CudaMemory(mapping)) | _methods(CudaStreams(mapping))
    return found | {f"nvtx.{name}": method for name, method in _methods(ProfileRanges(mapping)).items()}


def _methods(of: object) -> dict[str, Callable[..., Any]]:
    own = (name for name in vars(type(of)) if not name.startswith("_") or hasattr(torch.cuda, name))
    return {name: method for name in own if inspect.ismethod(method := getattr(of, name)) and name != "__init__"}


def cuda_replacements(mapping: DeviceMapping) -> Replacements:
    """Return what stands in `torch.cuda` and its modules while a mapping is installed."""
    for name, own in _in_cuda(mapping).items():
        original = vars(torch.cuda)[name]
        yield torch.cuda, name, own
        for owner in (torch.cuda.memory, torch.cuda.random, torch.cuda.streams, torch.cuda.graphs):
            if vars(owner).get(name) is original:
                yield owner, name, own
    for path in (*cuda_functions(mapping), *INSTEAD):
        owner, _, name = path.rpartition(".")
        place = getattr(torch.cuda, owner, None)
        if owner and hasattr(place, name):
            original = getattr(place, name)
            yield place, name, _refusal(path, original) if path in INSTEAD else _mapped(path, original)


def _in_cuda(mapping: DeviceMapping) -> dict[str, Any]:
    own: dict[str, Any] = {
        "Stream": _device_class("Stream", HostStream),
        "Event": _device_class("Event", HostEvent),
        **{name: _tensor_type(name) for name in _TENSOR_TYPES},
    }
    for name in cuda_functions(mapping):
        if "." not in name:
            own[name] = _mapped(name, getattr(torch.cuda, name))
    others = {name: getattr(torch.cuda, name) for name in torch.cuda.__all__ if name not in own and name not in STAYS}
    return own | {name: _refusal(name, original) for name, original in others.items() if callable(original)}


def _mapped(path: str, original: Any) -> Any:
    """Return what stands for a name with a counterpart: a class for a class, for `isinstance` and annotations."""
    if isinstance(original, type):
        return _context(path, original)

    def call(*args: Any, **keywords: Any) -> Any:
        names = INSTALLATION.names
        if path not in names or (path in _OF_CUDA_ITSELF and is_asked_by_compiler()):
            return original(*args, **keywords)
        return names[path](*args, **keywords)

    return functools.wraps(original)(call)


def _context(path: str, original: Any) -> Any:
    """Return a class of contexts; an ordinary one, which Dynamo reads."""

    class Context:
        def __init__(self, *args: Any, **keywords: Any) -> None:
            names = INSTALLATION.names
            self._context = names[path](*args, **keywords) if path in names else original(*args, **keywords)

        def __enter__(self) -> Any:
            return self._context.__enter__()

        def __exit__(self, *error: Any) -> Any:
            return self._context.__exit__(*error)

    Context.__name__ = Context.__qualname__ = path
    Context.__module__, Context.__doc__ = "torch.cuda", original.__doc__
    return Context


def _refusal(path: str, original: Any) -> Any:
    """Return what stands for a name without a counterpart: a class for a class, so that annotations still work."""
    text = f"torch.cuda.{path} has no counterpart on Neuron: {INSTEAD.get(path, 'there is nothing of the kind')}."

    def refuse(*args: Any, **keywords: Any) -> Any:
        if INSTALLATION.mapping is None or is_asked_by_compiler():
            return original(*args, **keywords)
        raise NotImplementedError(text)

    if not isinstance(original, type):
        return functools.wraps(original)(refuse) if inspect.isroutine(original) else refuse
    return stand_in(original, lambda mapping, *args, **keywords: refuse(), name=path, module="torch.cuda")


def _device_class(name: str, on_host: type) -> Any:
    def make(mapping: DeviceMapping, *args: Any, **keywords: Any) -> Any:
        if mapping.host:
            return on_host(*args, **keywords)
        if "device" in keywords:
            keywords["device"] = mapping.number(keywords["device"])
        elif name == "Stream" and args:
            args = (mapping.number(args[0]), *args[1:])
        return _of_neuron(name)(*args, **keywords)

    def accepts(instance: Any) -> bool:
        return isinstance(instance, (on_host, _of_neuron(name)))

    return stand_in(getattr(torch.cuda, name), make, name=name, module="torch.cuda", accepts=accepts)


def _of_neuron(name: str) -> Any:
    return getattr(getattr(torch, "neuron", None), name, None) or getattr(torch, name)


def _tensor_type(name: str) -> Any:
    on_cpu = getattr(torch, name)

    def make(mapping: DeviceMapping, *args: Any) -> Any:
        return on_cpu(*args).to(mapping.default())

    def accepts(instance: Any) -> bool:
        mapping = INSTALLATION.mapping
        if mapping is None or not isinstance(instance, torch.Tensor):
            return False
        return instance.dtype is on_cpu.dtype and instance.device.type == mapping.type

    return stand_in(
        getattr(torch.cuda, name), make, name=name, module="torch.cuda", accepts=accepts, dtype=on_cpu.dtype
    )
