"""Tensors inside nested tuples, lists and mappings: listed by name, replaced by name, copied.

Names are the path: `out`, `out.0`, `out.hidden_states`. Anything that is no tensor is left as it is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import cast

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor


def named_tensors(value: object, name: str) -> dict[str, Tensor]:
    """Return every tensor in `value`, in order, by path; `name` is the path of `value` itself."""
    found: dict[str, Tensor] = {}
    map_tensors(value, name, lambda path, tensor: found.setdefault(path, tensor))
    return found


def with_tensors(value: object, name: str, replacements: Mapping[str, Tensor]) -> object:
    """Return `value` with some of its tensors replaced, by the paths of `named_tensors`."""
    return map_tensors(value, name, lambda path, tensor: replacements.get(path, tensor))


def clone_tensors(value: object) -> object:
    """Return `value` with every tensor copied, strides kept, so that in-place changes reach no other holder."""
    return map_tensors(value, "", lambda _, tensor: clone_tensor(tensor))


def clone_tensor(tensor: Tensor) -> Tensor:
    """Return a detached copy with the same strides and storage offset, gaps of the storage included.

    `clone` alone makes a strided view dense; code that reads by stride would then see another memory.
    """
    source = tensor.detach()
    if source.layout is not torch.strided or source.is_contiguous() or source.is_meta:
        return source.clone()
    if isinstance(source, FakeTensor):
        # Its device exists inside the tensor's own mode alone, and there are no gaps to keep.
        return source.new_empty_strided(source.shape, source.stride())
    storage = source.untyped_storage().clone()
    copy = torch.empty(0, dtype=source.dtype, device=source.device)
    return copy.set_(storage, source.storage_offset(), source.shape, source.stride())


def map_tensors(value: object, name: str, function: Callable[[str, Tensor], Tensor]) -> object:
    """Return `value` with `function(path, tensor)` in place of each tensor; the same object where none changed."""
    if isinstance(value, Tensor):
        return function(name, value)
    if isinstance(value, (tuple, list)):
        items = cast("list[object] | tuple[object, ...]", value)
        fields = cast("Sequence[object]", getattr(value, "_fields", None) or range(len(items)))
        parts = [
            map_tensors(item, f"{name}.{key}" if name else str(key), function)
            for key, item in zip(fields, items, strict=True)
        ]
        if all(part is item for part, item in zip(parts, items, strict=True)):
            return value
        if isinstance(value, list):
            return parts
        make = cast("Callable[..., object]", type(value))
        return make(*parts) if hasattr(value, "_fields") else tuple(parts)
    if isinstance(value, Mapping):
        mapping = cast("Mapping[object, object]", value)
        changed = {
            key: map_tensors(item, f"{name}.{key}" if name else str(key), function) for key, item in mapping.items()
        }
        if all(changed[key] is item for key, item in mapping.items()):
            return value
        if type(value) is dict:
            return changed
        rebuilt = type(value)
        return rebuilt(changed)  # pyright: ignore[reportCallIssue] - mappings we meet are built from a mapping
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [field.name for field in dataclasses.fields(value) if field.init]
        old = {field: getattr(value, field) for field in fields}
        new = {field: map_tensors(item, f"{name}.{field}" if name else field, function) for field, item in old.items()}
        if all(new[field] is old[field] for field in fields):
            return value
        return dataclasses.replace(value, **new)
    return value
