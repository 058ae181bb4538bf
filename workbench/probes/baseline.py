"""What is there before a run: weights, buffers, tensors that objects hold, and inputs, each with owner and name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import FunctionType, MethodType, ModuleType

from torch import Tensor, nn

from workbench.probes.storage_watch import StorageWatch
from workbench.probes.tensor_storages import tensors_in

_NO_TENSORS = (str, bytes, int, float, complex, type(None), type, FunctionType, ModuleType)
_TABLES = frozenset({"_parameters", "_buffers", "_modules"})


def enter_baseline(
    watch: StorageWatch,
    root: nn.Module | None,
    args: Sequence[object],
    kwargs: Mapping[str, object],
    *,
    cache: object = (),
) -> None:
    """Enter everything that can be reached before the run; a storage reached twice is what it was first.

    Args:
        watch: takes them.
        root: its parameters and buffers are weights; buffers the run writes are caches.
        args: positional arguments; tensors in them are inputs, those that objects in them hold are caches when the
            run writes them.
        kwargs: keyword arguments, alike.
        cache: tensors that are caches by the caller's word.
    """
    for tensor in _reached(cache):
        watch.found(tensor, role="cache")
    if root is not None:
        _enter_module(watch, root)
    for value in (*args, *kwargs.values()):
        for tensor in tensors_in(value):
            watch.found(tensor, role="input")
        for tensor in _reached(value):
            watch.found(tensor, role="input", kept=True)


def _enter_module(watch: StorageWatch, root: nn.Module) -> None:
    for path, module in root.named_modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                watch.found(parameter, role="weight", owner=path, key=_joined(path, name))
        for name, buffer in module._buffers.items():
            if buffer is not None:
                watch.found(buffer, role="weight", owner=path, key=_joined(path, name), kept=True)
    for path, module in root.named_modules():
        for name, value in vars(module).items():
            if name not in _TABLES and not isinstance(value, (*_NO_TENSORS, nn.Module)):
                for tensor in _reached(value):
                    watch.found(tensor, role="weight", owner=path, key=_joined(path, name), kept=True)


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _reached(value: object) -> Iterator[Tensor]:
    """Give every tensor that `value` leads to, through containers and attributes; not through functions."""
    seen: set[int] = set()
    # Holds what was seen: an id is only unique among living objects.
    alive: list[object] = []
    todo = [value]
    while todo:
        one = todo.pop()
        if isinstance(one, _NO_TENSORS) or id(one) in seen:
            continue
        seen.add(id(one))
        alive.append(one)
        if isinstance(one, Tensor):
            yield one
        else:
            todo.extend(reversed(_parts(one)))


def _parts(value: object) -> list[object]:
    if isinstance(value, (tuple, list, set, frozenset)):
        return list(value)
    if isinstance(value, Mapping):
        return list(value.values())
    if isinstance(value, MethodType):
        return [value.__self__]
    slots = [name for kind in type(value).__mro__ for name in _names(getattr(kind, "__slots__", ()))]
    return [*vars(value).values()] if hasattr(value, "__dict__") else [getattr(value, name, None) for name in slots]


def _names(slots: object) -> tuple[str, ...]:
    return (slots,) if isinstance(slots, str) else tuple(slots) if isinstance(slots, (tuple, list)) else ()
