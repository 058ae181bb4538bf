"""CUDA-written code on a NeuronCore, or on the CPU: `cuda` means the device of this process while this is installed.

    with transfer_to_neuron():
        x = torch.zeros(4, device="cuda")      # on neuron:0; on the CPU in host mode

`torch.device`, the functions and methods that take a device, `torch.autocast`, generators, `torch.load` and the
functions of `torch.cuda` are replaced, in every thread, and put back by the last one out: installing is counted, so
that nested and concurrent uses are one. Importing this module changes nothing.

`torch.device` is replaced by a stand-in that makes real devices: `isinstance` and equality work on both, a device keeps
its own repr, and generated code that names `device` finds one. While a graph is compiled CUDA is hidden, so that
compilers do not take their CUDA paths. Not covered: code that took a function out of `torch` before the installation
(`from torch import zeros`), CUDA graphs, and CUDA's tensor types by name; the last two raise.
"""

from __future__ import annotations

import contextlib
import copyreg
import functools
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils._device

from port.neuron_ops.cuda_names import WITHOUT_COUNTERPART, CudaNames, refusal
from port.neuron_ops.device_mapping import DeviceMapping, Devices, real_device
from port.platform import PLATFORM

_LIKE = ("empty_like", "full_like", "ones_like", "rand_like", "randint_like", "randn_like", "zeros_like")
_NEW = ("new_empty", "new_empty_strided", "new_full", "new_ones", "new_tensor", "new_zeros")
_RANDOM = ("bernoulli", "multinomial", "normal", "rand", "randint", "randn", "randperm")
_ABSENT = object()


@dataclass(slots=True)
class _Replacement:
    owner: Any
    name: str
    original: Any
    own: Any


class _Installation:
    """What is replaced now, and how often it was asked for."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.count = 0
        self.mapping: DeviceMapping | None = None
        self.replacements: list[_Replacement] = []
        self.reducer: Any = _ABSENT

    def install(self, mapping: DeviceMapping) -> None:
        with self.lock:
            if self.mapping is not None and self.mapping != mapping:
                raise RuntimeError(
                    f"transfer_to_neuron: expected the mapping that is installed, CUDA as {self.mapping}; found "
                    f"{mapping}. Leave the other one first."
                )
            self.count += 1
            if self.count > 1:
                return
            self.mapping = mapping
            try:
                _fill_tables()
                self.reducer = copyreg.dispatch_table.get(real_device, _ABSENT)
                copyreg.pickle(real_device, _reduce_device)
                for owner, name, own in _replacements(mapping):
                    self._replace(owner, name, own)
            except BaseException:
                self.count = 0
                self._put_back()
                raise

    def remove(self) -> None:
        with self.lock:
            if not self.count:
                return
            self.count -= 1
            if not self.count:
                self._put_back()

    def _replace(self, owner: Any, name: str, own: Any) -> None:
        original = vars(owner).get(name, _ABSENT)
        self.replacements.append(_Replacement(owner, name, original, own))
        setattr(owner, name, own)

    def _put_back(self) -> None:
        while self.replacements:
            one = self.replacements.pop()
            if one.original is _ABSENT:
                delattr(one.owner, one.name)
            else:
                setattr(one.owner, one.name, one.original)
        copyreg.dispatch_table.pop(real_device, None)
        if self.reducer is not _ABSENT:
            copyreg.dispatch_table[real_device] = self.reducer
        self.reducer = _ABSENT
        self.mapping = None


_installation = _Installation()


@contextlib.contextmanager
def transfer_to_neuron(host: bool | None = None, *, devices: Devices = "one") -> Iterator[DeviceMapping]:
    """Have CUDA names mean the device of this process.

    Args:
        host: the CPU instead of a core; None asks `PLATFORM.is_host`, so `DEEPINFER_NEURON_DEVICE=cpu`.
        devices: every CUDA number is the "one" core, or the core of the "same_index".

    Raises:
        RuntimeError: another mapping is installed already.
    """
    install(host, devices=devices)
    try:
        yield _installed()
    finally:
        remove()


def install(host: bool | None = None, *, devices: Devices = "one") -> None:
    """Install the mapping until `remove` was called as often; arguments as for `transfer_to_neuron`."""
    _installation.install(DeviceMapping(host=PLATFORM.is_host if host is None else host, devices=devices))


def remove() -> None:
    """Undo one `install`; the last one puts everything back. Without an installation it does nothing."""
    _installation.remove()


def _fill_tables() -> None:
    """Have torch fill the tables it keeps of its own functions, from the real ones: later it would keep ours for ever."""
    from torch._dynamo import trace_rules

    torch.utils._device._device_constructors()
    trace_rules.get_torch_obj_rule_map()
    trace_rules.get_tensor_method()


def is_installed() -> bool:
    """Say whether CUDA names are mapped now."""
    return _installation.count > 0


def _installed() -> DeviceMapping:
    assert _installation.mapping is not None, "asked for inside an installation"
    return _installation.mapping


def _reduce_device(device: Any) -> tuple[Any, tuple[Any, ...]]:
    # By `torch.device` as it is found by name; the class itself is another object while it is replaced.
    return torch.device, (device.type,) if device.index is None else (device.type, device.index)


class _DeviceStandInType(type):
    """Answers for the class of devices; the same object every time, since Dynamo knows classes by identity."""

    def __call__(cls, *args: Any, **keywords: Any) -> Any:
        mapping = _installed()
        if len(args) == 1 and not keywords and isinstance(args[0], int):
            return mapping.number(args[0]) if not isinstance(args[0], bool) else real_device(args[0])
        return mapping.device(real_device(*args, **keywords))

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, real_device)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, real_device)

    def __eq__(cls, other: object) -> bool:
        return other is real_device or other is cls

    def __hash__(cls) -> int:
        return hash(real_device)

    def __repr__(cls) -> str:
        return repr(real_device)


_DeviceStandIn = _DeviceStandInType("device", (), {"__module__": "torch", "__doc__": real_device.__doc__})


def _replacements(mapping: DeviceMapping) -> Iterator[tuple[Any, str, Any]]:
    yield torch, "device", _DeviceStandIn
    constructors = {function.__name__ for function in torch.utils._device._device_constructors()}
    for name in sorted(constructors | set(_LIKE) | set(_RANDOM)):
        function = getattr(torch, name, None)
        if function is not None:
            yield torch, name, _creator(function, mapping)
    for name in _NEW:
        yield torch.Tensor, name, _creator(getattr(torch.Tensor, name), mapping)
    yield torch.Tensor, "to", _to(torch.Tensor.to, mapping)
    yield torch.Tensor, "cuda", _cuda(torch.Tensor.to, mapping)
    yield torch.Tensor, "is_cuda", property(_is_on(torch.Tensor.is_cuda, mapping))
    yield torch.Tensor, "pin_memory", _pin(torch.Tensor.pin_memory)
    yield torch, "Generator", _generator(torch.Generator, mapping)
    for owner in (torch, torch.amp, torch.amp.autocast_mode):
        yield owner, "autocast", _autocast(torch.autocast, mapping)
    yield torch.cuda.amp, "autocast", _cuda_autocast(torch.autocast, mapping)
    yield torch, "load", _load(torch.load, mapping)
    yield torch, "set_default_device", _first(torch.set_default_device, mapping)
    yield torch.random, "fork_rng", _fork_rng(torch.random.fork_rng, mapping)
    names = CudaNames(mapping)
    public = [name for name in dir(names) if not name.startswith("_")]
    for name in (*public, "_is_in_bad_fork", "_lazy_init"):
        yield torch.cuda, name, getattr(names, name)
    for name in ("manual_seed", "manual_seed_all", "get_rng_state", "set_rng_state"):
        yield torch.cuda.random, name, getattr(names, name)
    for name in WITHOUT_COUNTERPART:
        if hasattr(torch.cuda, name):
            yield torch.cuda, name, refusal(name)


def _creator(function: Callable[..., Any], mapping: DeviceMapping) -> Callable[..., Any]:
    @functools.wraps(function)
    def create(*args: Any, **keywords: Any) -> Any:
        mapped = mapping.keywords(keywords)
        generator, device = mapped.get("generator"), mapped.get("device")
        if generator is not None and device is not None and _differ(generator.device, device):
            # Early builds have no generator of the device: numbers are drawn where the generator is, then moved.
            return function(*args, **{**mapped, "device": generator.device}).to(device)
        return function(*args, **mapped)

    return create


def _differ(one: Any, other: Any) -> bool:
    return one.type != (real_device(other) if isinstance(other, str) else other).type


def _to(function: Callable[..., Any], mapping: DeviceMapping) -> Callable[..., Any]:
    @functools.wraps(function)
    def to(self: torch.Tensor, *args: Any, **keywords: Any) -> torch.Tensor:
        first = (mapping.number(args[0]), *args[1:]) if args else args
        return function(self, *first, **mapping.keywords(keywords))

    return to


def _cuda(to: Callable[..., Any], mapping: DeviceMapping) -> Callable[..., Any]:
    def cuda(
        self: torch.Tensor, device: Any = None, non_blocking: bool = False, memory_format: Any = torch.preserve_format
    ) -> torch.Tensor:
        target = mapping.device(real_device("cuda")) if device is None else mapping.number(device)
        return to(self, target, non_blocking=non_blocking, memory_format=memory_format)

    return cuda


def _is_on(original: Any, mapping: DeviceMapping) -> Callable[[torch.Tensor], bool]:
    def is_cuda(self: torch.Tensor) -> bool:
        return bool(original.__get__(self)) or self.device.type == mapping.type

    return is_cuda


def _pin(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def pin_memory(self: torch.Tensor, device: Any = None) -> torch.Tensor:
        return self

    return pin_memory


def _generator(real: Any, mapping: DeviceMapping) -> Any:
    class GeneratorStandIn(type):
        def __call__(cls, device: Any = None) -> Any:
            if device is None:
                return real()
            # No generator of the device in early builds (source): the host's draws for it.
            named = mapping.device(device if isinstance(device, (str, real_device)) else real_device("cuda", device))
            return real("cpu" if str(named).startswith("neuron") else named)

        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, real)

        def __eq__(cls, other: object) -> bool:
            return other is real or other is cls

        def __hash__(cls) -> int:
            return hash(real)

    return GeneratorStandIn("Generator", (), {"__module__": "torch"})


def _autocast(real: Any, mapping: DeviceMapping) -> Any:
    class autocast(real):
        def __init__(self, device_type: str, *args: Any, **keywords: Any) -> None:
            super().__init__(mapping.type if device_type == "cuda" else device_type, *args, **keywords)

    autocast.__module__ = real.__module__
    return autocast


def _cuda_autocast(real: Any, mapping: DeviceMapping) -> Any:
    class autocast(real):
        def __init__(self, enabled: bool = True, dtype: Any = torch.bfloat16, cache_enabled: bool = True) -> None:
            super().__init__(mapping.type, enabled=enabled, dtype=dtype, cache_enabled=cache_enabled)

    return autocast


def _load(function: Callable[..., Any], mapping: DeviceMapping) -> Callable[..., Any]:
    @functools.wraps(function)
    def load(f: Any, map_location: Any = None, *args: Any, **keywords: Any) -> Any:
        return function(f, mapping.location(map_location), *args, **keywords)

    return load


def _first(function: Callable[..., Any], mapping: DeviceMapping) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(device: Any) -> Any:
        return function(mapping.number(device))

    return call


def _fork_rng(function: Callable[..., Any], mapping: DeviceMapping) -> Callable[..., Any]:
    @functools.wraps(function)
    def fork_rng(devices: Any = None, enabled: bool = True, *args: Any, **keywords: Any) -> Any:
        if keywords.get("device_type", "cuda") != "cuda":
            return function(devices, enabled, *args, **keywords)
        # The device has no random numbers of its own: those of the host are what must be kept.
        return function([], enabled, *args, **keywords)

    return fork_rng
