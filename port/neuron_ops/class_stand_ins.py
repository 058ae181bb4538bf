"""Classes that stand for classes of torch: calling one makes what CUDA stands for, `isinstance` knows the real ones.

`torch.device` is a class of C that nothing can derive from, so a class of another metaclass answers for it.
`isinstance` and equality hold on both sides; `type(x) is torch.device` does not while something is installed.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from port.neuron_ops.installation import INSTALLATION


@dataclass(frozen=True, slots=True, kw_only=True)
class _About:
    real: Any
    make: Callable[..., Any]
    accepts: Callable[[Any], bool] | None
    is_equal: bool


def _about(cls: type) -> _About | None:
    # Of the class itself: what user code derives from a stand-in is an ordinary class again.
    return vars(cls).get("_stand_in")


class _StandIn(type):
    def __call__(cls, *args: Any, **keywords: Any) -> Any:
        about = _about(cls)
        if about is None:
            return super().__call__(*args, **keywords)
        mapping = INSTALLATION.mapping
        return about.real(*args, **keywords) if mapping is None else about.make(mapping, *args, **keywords)

    def __instancecheck__(cls, instance: object) -> bool:
        about = _about(cls)
        if about is None:
            return super().__instancecheck__(instance)
        if about.accepts is not None and INSTALLATION.mapping is not None:
            return about.accepts(instance)
        return isinstance(instance, about.real)

    def __subclasscheck__(cls, subclass: type) -> bool:
        about = _about(cls)
        if super().__subclasscheck__(subclass):
            return True
        return about is not None and isinstance(about.real, type) and issubclass(subclass, about.real)

    def __eq__(cls, other: object) -> bool:
        about = _about(cls)
        return cls is other or (about is not None and about.is_equal and other is about.real)

    def __hash__(cls) -> int:
        about = _about(cls)
        return hash(about.real) if about is not None and about.is_equal else super().__hash__()

    def __repr__(cls) -> str:
        about = _about(cls)
        return super().__repr__() if about is None else repr(about.real)


def stand_in(
    real: Any,
    make: Callable[..., Any],
    *,
    name: str,
    module: str,
    accepts: Callable[[Any], bool] | None = None,
    is_equal: bool = False,
    is_base: bool = False,
    dtype: Any = None,
) -> Any:
    """Return a class that stands for `real`, and is `real` again while nothing is installed.

    Args:
        real: the class of torch.
        make: called with the mapping and the arguments while one is installed.
        name: the name of the class.
        module: where it is found by that name, for pickling.
        accepts: answers `isinstance` while a mapping is installed; None asks `real`.
        is_equal: it equals `real` and has its hash, so that Dynamo, whose tables go by class, treats both alike.
        is_base: it derives from `real`, so that user code can derive from it.
        dtype: attribute of CUDA's tensor types.
    """
    body: dict[str, Any] = {
        "_stand_in": _About(real=real, make=make, accepts=accepts, is_equal=is_equal),
        "__module__": module,
        "__doc__": real.__doc__,
    }
    if dtype is not None:
        body["dtype"] = dtype
    if is_equal and real.__init__ is not object.__init__:  # of classes of C there is none
        # Dynamo binds the arguments by it; otherwise that of the metaclass would be found.
        body["__signature__"] = inspect.signature(real)
    return _StandIn(name, (real,) if is_base else (), body)
