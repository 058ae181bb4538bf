"""What stands in `torch` and on `torch.Tensor` while a mapping is installed: everything that takes a device.

Each stand-in maps its device arguments and calls the real function, so that tables of torch which go by function (the
constructors of `with torch.device(...)`, overrides, FX) see the real one.
"""

from __future__ import annotations

import copyreg
import functools
import inspect
import logging
from collections.abc import Callable
from typing import Any

import torch
import torch.utils._device

from port.neuron_ops.class_stand_ins import stand_in
from port.neuron_ops.cuda_streams import HostStream
from port.neuron_ops.device_mapping import DeviceMapping, real_device
from port.neuron_ops.installation import INSTALLATION, Replacements
from port.neuron_ops.torch_neuron import is_asked_by_compiler

_logger = logging.getLogger(__name__)

_LIKE = ("empty_like", "full_like", "ones_like", "rand_like", "randint_like", "randn_like", "zeros_like")
_OTHER = ("from_dlpack", "from_file", "normal")
_NEW = ("new_empty", "new_empty_strided", "new_full", "new_ones", "new_tensor", "new_zeros")
_DRAWS_FROM = ("bernoulli", "multinomial")
_DRAWS_INTO = (
    "bernoulli_",
    "cauchy_",
    "exponential_",
    "geometric_",
    "log_normal_",
    "normal_",
    "random_",
    "uniform_",
)
_ASKS_AUTOCAST = ("get_autocast_dtype", "is_autocast_enabled", "set_autocast_dtype", "set_autocast_enabled")


_TABLES = (
    "torch.utils._device._device_constructors",
    "torch._weights_only_unpickler._get_allowed_globals",
    "torch.jit._builtins._get_builtin_table",
    "torch.overrides.get_default_nowrap_functions",
    "torch.overrides.get_ignored_functions",
    "torch.overrides.get_overridable_functions",
    "torch.overrides.get_testing_overrides",
    "torch.overrides._get_tensor_methods",
    "torch._dynamo.guards._get_closure_vars",
    "torch._dynamo.trace_rules.get_tensor_method",
    "torch._dynamo.trace_rules.get_torch_obj_rule_map",
    "torch._dynamo.variables.TorchInGraphFunctionVariable._get_handlers",
    "torch._dynamo.variables.UserDefinedClassVariable._constant_fold_classes",
    "torch._dynamo.variables.UserDefinedClassVariable._in_graph_classes",
)
"""Functions of torch that fill a table of its own functions or classes when first called, and keep it."""


@functools.cache
def fill_tables() -> None:
    """Have torch fill its tables from the real functions and classes: later they would keep ours for ever."""
    import torch._dynamo.variables
    import torch.jit._builtins

    for path in _TABLES:
        table: Any = torch
        for name in path.split(".")[1:]:
            table = getattr(table, name, None)
        if table is not None:  # another version of torch may have no such table
            table()


def torch_replacements(mapping: DeviceMapping) -> Replacements:
    """Return what stands in `torch` while a mapping is installed."""
    yield torch, "device", _device()
    yield copyreg.dispatch_table, real_device, _reduce_device
    yield torch, "Generator", _generator()
    for owner, name, function in _creators():
        yield owner, name, _creator(function)
    for name in _NEW:
        yield torch.Tensor, name, _creator(getattr(torch.Tensor, name))
    yield torch.Tensor, "to", _to(torch.Tensor.to)
    yield torch.nn.Module, "to", _to(torch.nn.Module.to)
    yield torch.Tensor, "cuda", _cuda(torch.Tensor.cuda, torch.Tensor.to)
    yield torch.Tensor, "type", _type(torch.Tensor.type)
    yield torch.Tensor, "is_cuda", property(_is_cuda(torch.Tensor.is_cuda))
    yield torch.Tensor, "pin_memory", _pin_memory(torch.Tensor.pin_memory)
    yield torch.Tensor, "record_stream", _record_stream(torch.Tensor.record_stream)
    if not mapping.host:
        for name in _DRAWS_FROM:
            yield torch, name, _draw(getattr(torch, name))
        for name in (*_DRAWS_FROM, *_DRAWS_INTO):
            yield torch.Tensor, name, _draw(getattr(torch.Tensor, name))
    autocast = _autocast(torch.amp.autocast)
    for owner in (torch, torch.amp, torch.amp.autocast_mode):
        yield owner, "autocast", autocast
    # Compiled graphs enter autocast by this one.
    yield torch.amp.autocast_mode, "_UnmanagedAutocast", _autocast(torch.amp.autocast_mode._UnmanagedAutocast)
    for owner in (torch.cuda.amp, torch.cuda.amp.autocast_mode):
        yield owner, "autocast", _cuda_autocast()
    yield torch.amp.autocast_mode, "_cast", _cast(torch.amp.autocast_mode._cast)
    for name in _ASKS_AUTOCAST:
        yield torch, name, _ask_autocast(getattr(torch, name))
    yield torch, "load", _load(torch.load)
    yield torch, "set_default_device", _first(torch.set_default_device)
    yield torch, "set_default_tensor_type", _set_default_tensor_type(torch.set_default_tensor_type)
    yield torch, "get_device_module", _get_device_module(torch.get_device_module)


def _creators() -> list[tuple[Any, str, Any]]:
    constructors = torch.utils._device._device_constructors()
    found = []
    for owner in (torch, torch.fft, torch.nested):
        found += [
            (owner, name, one) for name, one in vars(owner).items() if inspect.isroutine(one) and one in constructors
        ]
    found += [(torch, name, getattr(torch, name)) for name in (*_LIKE, *_OTHER)]
    return [*found, (torch.nested, "as_nested_tensor", torch.nested.as_nested_tensor)]


def _device() -> Any:
    def make(mapping: DeviceMapping, *args: Any, **keywords: Any) -> Any:
        if len(args) == 1 and not keywords and isinstance(args[0], int) and not isinstance(args[0], bool):
            return mapping.number(args[0])
        return mapping.device(real_device(*args, **keywords))

    return stand_in(real_device, make, name="device", module="torch", is_equal=True)


def _reduce_device(device: Any) -> tuple[Any, tuple[Any, ...]]:
    # By `torch.device` as it is found by name; the class itself is another object while it is replaced.
    return torch.device, (device.type,) if device.index is None else (device.type, device.index)


def _generator() -> Any:
    real = torch.Generator

    def make(mapping: DeviceMapping, device: Any = None) -> Any:
        wanted = mapping.number(device)
        if wanted is None or mapping.host or real_device(wanted).type != "neuron":
            return real() if wanted is None else real(wanted)
        try:
            return real(wanted)
        except RuntimeError as error:
            # So in early builds (source), whose random operations run on the host as well.
            _logger.warning("no generator on %s, its numbers are drawn on the host: %s", wanted, error)
            return real("cpu")

    return stand_in(real, make, name="Generator", module="torch", is_equal=True)


def _creator(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def create(*args: Any, **keywords: Any) -> Any:
        mapping = INSTALLATION.mapping
        if mapping is None:
            return function(*args, **keywords)
        mapped = mapping.keywords(keywords)
        generator, device = mapped.get("generator"), mapped.get("device")
        if generator is not None and device is not None and real_device(device).type != generator.device.type:
            return function(*args, **{**mapped, "device": generator.device}).to(device)
        return function(*args, **mapped)

    return create


def _draw(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a random function that draws on the host where its generator is there and the tensor is not."""
    in_place = function.__name__.endswith("_")

    @functools.wraps(function)
    def draw(self: torch.Tensor, *args: Any, **keywords: Any) -> torch.Tensor:
        generator = keywords.get("generator")
        if INSTALLATION.mapping is None or generator is None or generator.device.type == self.device.type:
            return function(self, *args, **keywords)
        drawn = function(self.detach().to(generator.device), *args, **keywords)
        return self.copy_(drawn) if in_place else drawn.to(self.device)

    return draw


def _to(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def to(self: Any, *args: Any, **keywords: Any) -> Any:
        mapping = INSTALLATION.mapping
        if mapping is None:
            return function(self, *args, **keywords)
        first = (mapping.number(args[0]), *args[1:]) if args else args
        return function(self, *first, **mapping.keywords(keywords))

    return to


def _cuda(function: Callable[..., Any], to: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def cuda(
        self: torch.Tensor, device: Any = None, non_blocking: bool = False, memory_format: Any = torch.preserve_format
    ) -> torch.Tensor:
        mapping = INSTALLATION.mapping
        if mapping is None:
            return function(self, device, non_blocking, memory_format)
        target = mapping.default() if device is None else mapping.number(device)
        return to(self, target, non_blocking=non_blocking, memory_format=memory_format)

    return cuda


def _type(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def type_(self: torch.Tensor, dtype: Any = None, non_blocking: bool = False, **keywords: Any) -> Any:
        mapping = INSTALLATION.mapping
        if mapping is not None and dtype is not None:
            named = dtype.removeprefix("torch.cuda.") if isinstance(dtype, str) else getattr(dtype, "__name__", "")
            if dtype == f"torch.cuda.{named}" or getattr(torch.cuda, named, None) is dtype:
                return self.to(mapping.default(), getattr(torch, named).dtype, non_blocking=non_blocking)
        return function(self, dtype, non_blocking, **keywords)

    return type_


def _is_cuda(original: Any) -> Callable[[torch.Tensor], bool]:
    def is_cuda(self: torch.Tensor) -> bool:
        mapping = INSTALLATION.mapping
        if mapping is None or is_asked_by_compiler():
            return bool(original.__get__(self))
        return bool(original.__get__(self)) or self.device.type == mapping.type

    return is_cuda


def _pin_memory(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def pin_memory(self: torch.Tensor, device: Any = None) -> torch.Tensor:
        return function(self, device) if INSTALLATION.mapping is None else self

    return pin_memory


def _record_stream(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def record_stream(self: torch.Tensor, stream: Any) -> None:
        if not isinstance(stream, HostStream):  # on the host nothing is freed while it is used
            function(self, stream)

    return record_stream


def _autocast(real: Any) -> Any:
    dtype_of = torch.get_autocast_dtype

    def make(mapping: DeviceMapping, device_type: str, dtype: Any = None, *args: Any, **keywords: Any) -> Any:
        if device_type == "cuda":
            # What CUDA code leaves out is CUDA's, float16 unless it was set; the CPU's would be bfloat16.
            return real(mapping.type, dtype_of("cuda") if dtype is None else dtype, *args, **keywords)
        return real(device_type, dtype, *args, **keywords)

    return stand_in(real, make, name=real.__name__, module="torch.amp.autocast_mode", is_equal=True, is_base=True)


def _cuda_autocast() -> Any:
    of_device = torch.amp.autocast

    def make(
        mapping: DeviceMapping, enabled: bool = True, dtype: Any = torch.float16, cache_enabled: bool = True
    ) -> Any:
        return of_device(mapping.type, dtype, enabled, cache_enabled)

    return stand_in(
        torch.cuda.amp.autocast,
        make,
        name="autocast",
        module="torch.cuda.amp.autocast_mode",
        accepts=lambda instance: isinstance(instance, of_device),
        is_equal=True,
    )


def _cast(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return what `torch.amp.custom_fwd` casts by: it goes by the type of device it was told, long before maybe."""

    @functools.wraps(function)
    def cast(value: Any, device_type: str, dtype: Any) -> Any:
        mapping = INSTALLATION.mapping
        return function(value, mapping.type if mapping is not None and device_type == "cuda" else device_type, dtype)

    return cast


def _ask_autocast(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any) -> Any:
        mapping = INSTALLATION.mapping
        if mapping is None:
            return function(*args)
        if not args or isinstance(args[0], bool):  # without a device it is about CUDA
            return function(mapping.type, *args)
        return function(mapping.type if args[0] == "cuda" else args[0], *args[1:])

    return call


def _load(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def load(f: Any, map_location: Any = None, *args: Any, **keywords: Any) -> Any:
        mapping = INSTALLATION.mapping
        return function(f, map_location if mapping is None else mapping.location(map_location), *args, **keywords)

    return load


def _set_default_tensor_type(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(t: Any) -> None:
        if INSTALLATION.mapping is not None and (str(t).startswith("torch.cuda.") or "'torch.cuda." in str(t)):
            raise NotImplementedError(
                f"torch.set_default_tensor_type({t}) has no counterpart on Neuron: use torch.set_default_dtype and "
                "torch.set_default_device."
            )
        function(t)

    return call


def _get_device_module(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(device: Any = None) -> Any:
        mapping = INSTALLATION.mapping
        if mapping is not None and isinstance(device, str) and mapping.device(device) is not device:
            # Not by the real function: it keeps its answers, and would keep this one.
            return torch.cuda
        return function(device)

    return call


def _first(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(device: Any) -> Any:
        mapping = INSTALLATION.mapping
        return function(device if mapping is None else mapping.number(device))

    return call
