"""Values rebuilt with other tensors in place of theirs: containers, objects and modules, without copying numbers.

Two rules keep a model the same model: a tensor met twice is replaced once, so tied weights stay tied; and an object is
rebuilt only where it reaches a tensor that changed. Functions are left alone, with what they close over.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Callable, Mapping
from types import FunctionType, MethodType, ModuleType
from typing import TypeVar, cast

from torch import Tensor, nn

T = TypeVar("T")

_WHOLE = (str, bytes, int, float, complex, type(None), type, FunctionType, ModuleType)


class Placing:
    """One replacement of tensors, for one or more values that may share some.

    Args:
        replace: gives the tensor to use instead; the same one to keep it. Called once for each tensor.
    """

    def __init__(self, replace: Callable[[Tensor], Tensor]) -> None:
        self._replace = replace
        self._done: dict[int, object] = {}
        self._looked_at: set[int] = set()
        self._changing: set[int] = set()
        # Everything whose id is kept above stays alive, since an id is only unique among living objects.
        self._alive: list[object] = []

    def of(self, value: T) -> T:
        """Return `value` with its tensors replaced; the same object where none of them changed."""
        return cast("T", self._of(value))

    def _of(self, value: object) -> object:
        if isinstance(value, _WHOLE) or not self._changes(value):
            return value
        if id(value) in self._done:
            return self._done[id(value)]
        if isinstance(value, (tuple, list)):
            return self._keep(value, self._sequence(value))
        if isinstance(value, Mapping):
            return self._keep(value, self._mapping(cast("Mapping[object, object]", value)))
        if isinstance(value, (set, frozenset)):
            items = [self._of(item) for item in cast("set[object]", value)]
            return self._keep(value, frozenset(items) if isinstance(value, frozenset) else set(items))
        if isinstance(value, MethodType):
            return self._keep(value, MethodType(value.__func__, self._of(value.__self__)))
        if isinstance(value, functools.partial):
            part = cast("functools.partial[object]", value)
            keywords = {name: self._of(item) for name, item in part.keywords.items()}
            rebuilt = functools.partial(cast("Callable[..., object]", self._of(part.func)), **keywords)
            return self._keep(value, functools.partial(rebuilt, *(self._of(item) for item in part.args)))
        return self._object(value)

    def _keep(self, value: object, replacement: object) -> object:
        self._done[id(value)] = replacement
        return replacement

    def _tensor(self, value: Tensor) -> Tensor:
        replacement = self._replace(value)
        self._done[id(value)] = replacement
        if replacement is not value and value.is_leaf and value.grad is not None:
            replacement.grad = cast("Tensor", self._of(value.grad))
        return replacement

    def _sequence(self, value: tuple[object, ...] | list[object]) -> object:
        items = [self._of(item) for item in value]
        make = cast("Callable[..., object]", type(value))
        return make(*items) if hasattr(value, "_fields") else make(items)

    def _mapping(self, value: Mapping[object, object]) -> object:
        items = {key: self._of(item) for key, item in value.items()}
        if type(value) is dict:
            return items
        empty = copy.copy(value)
        if isinstance(empty, dict):
            cast("dict[object, object]", empty).update(items)
            return empty
        return type(value)(items)  # pyright: ignore[reportCallIssue] - mappings we meet are built from a mapping

    def _object(self, value: object) -> object:
        # Registered before its parts are looked at: a child may point back at its parent.
        rebuilt = copy.copy(value) if not isinstance(value, nn.Module) else type(value).__new__(type(value))
        self._done[id(value)] = rebuilt
        if isinstance(value, nn.Module):
            # Own tables throughout, so that a hook or a child added to one of the two is not added to the other.
            for name, item in value.__dict__.items():
                own = item if isinstance(item, dict) and not item else self._of(item)
                rebuilt.__dict__[name] = item.copy() if own is item and isinstance(item, dict) else own
            return rebuilt
        for name, item in _parts(value).items():
            replacement = self._of(item)
            if replacement is not item:
                object.__setattr__(rebuilt, name, replacement)
        return rebuilt

    def _changes(self, value: object) -> bool:
        """Say whether `value` reaches a tensor that is replaced by another one."""
        if id(value) not in self._looked_at:
            self._look_at(value)
        return id(value) in self._changing

    def _look_at(self, value: object) -> None:
        # A walk with its own list, since module trees are as deep as their authors like; and marks that go from the
        # tensors back to what holds them, since objects may point at each other in circles.
        holders: dict[int, list[object]] = {}
        found: list[object] = []
        self._looked_at.add(id(value))
        todo = [value]
        while todo:
            holder = todo.pop()
            self._alive.append(holder)
            if isinstance(holder, Tensor) and self._tensor(holder) is not holder:
                found.append(holder)
            for part in () if isinstance(holder, Tensor) else _children(holder):
                if isinstance(part, _WHOLE) or (isinstance(part, (dict, list, tuple)) and not part):
                    continue
                if id(part) in self._changing:
                    found.append(holder)
                holders.setdefault(id(part), []).append(holder)
                if id(part) not in self._looked_at:
                    self._looked_at.add(id(part))
                    todo.append(part)
        while found:
            one = found.pop()
            if id(one) not in self._changing or isinstance(one, Tensor):
                self._changing.add(id(one))
                found.extend(above for above in holders.pop(id(one), ()) if id(above) not in self._changing)


def _children(value: object) -> list[object]:
    if isinstance(value, (tuple, list, set, frozenset)):
        return list(cast("tuple[object, ...]", value))
    if isinstance(value, Mapping):
        return list(cast("Mapping[object, object]", value).values())
    if isinstance(value, MethodType):
        return [value.__self__]
    if isinstance(value, functools.partial):
        part = cast("functools.partial[object]", value)
        return [part.func, *part.args, *part.keywords.values()]
    if isinstance(value, _WHOLE):
        return []
    return list(_parts(value).values())


def _parts(value: object) -> dict[str, object]:
    """Return the attributes of an object, slots of dataclasses included."""
    parts = dict(getattr(value, "__dict__", {}))
    if dataclasses.is_dataclass(value):
        parts |= {
            spec.name: getattr(value, spec.name) for spec in dataclasses.fields(value) if hasattr(value, spec.name)
        }
    return parts
