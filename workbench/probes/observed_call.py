"""A call made for observation only: on a copy of the model and its inputs, with the process left as it was.

What a copy cannot protect is said in `copy_call`. Not for recording anything; the probes do that.
"""

from __future__ import annotations

import bdb
import contextlib
import copy
import io
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MethodType

import torch
from torch import Tensor, nn


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedCall:
    """One target with its arguments, independent of the user's own objects.

    Attributes:
        target: what is called.
        args, kwargs: its arguments.
        names: id of each module to its path from the root module; "" is the root itself.
    """

    target: Callable[..., object]
    args: tuple[object, ...]
    kwargs: Mapping[str, object]
    names: Mapping[int, str]

    def run(self) -> object:
        """Make the call."""
        return self.target(*self.args, **self.kwargs)


def copy_call(
    target: Callable[..., object],
    args: Sequence[object],
    kwargs: Mapping[str, object],
    *,
    module: nn.Module | None = None,
    own_gradients: bool = False,
) -> ObservedCall:
    """Return the call on copies, so that making it leaves the user's model, caches and inputs as they are.

    Buffers, plain tensor attributes, Python state and arguments are copied; parameters are shared, since a forward
    pass reads them and a copy could exceed memory. What cannot be copied (a lock, an open file) is shared. State that
    is reached by neither the module nor the arguments (globals, closures of a plain function) is the user's own and
    does change: the caller keeps the number of calls low.

    Args:
        target: a module, a bound method, a `functools.partial` that holds one, or any callable.
        args: positional arguments.
        kwargs: keyword arguments.
        module: root of the module paths; None for the target itself or the owner of the bound method.
        own_gradients: give each parameter a gradient of its own beside the shared numbers, for a call that goes
            backward.
    """
    target = getattr(target, "_orig_mod", target)
    root = module if module is not None else _owner(target)
    memo: dict[int, object] = {}
    if root is not None:
        memo.update((id(one), _shared(one) if own_gradients else one) for one in root.parameters())
    copied_root = _copy(root, memo)
    copied_target = _copy(target, memo) if isinstance(target, (nn.Module, MethodType, partial)) else target
    names: dict[int, str] = {}
    if isinstance(copied_root, nn.Module):
        names = {id(child): name for name, child in copied_root.named_modules()}
    if not callable(copied_target):
        raise TypeError(f"graph breaks: expected a callable target, got {type(target).__name__}")
    return ObservedCall(
        target=copied_target,
        args=tuple(_copy(value, memo) for value in args),
        kwargs={name: _copy(value, memo) for name, value in kwargs.items()},
        names=names,
    )


@contextlib.contextmanager
def quiet_process(*, echo: bool) -> Iterator[list[warnings.WarningMessage]]:
    """Within it warnings are collected, a debugger asked for by the model does not stop, and random state is kept.

    Args:
        echo: let the model's own output through; without it, it is dropped (for a repeated call).

    Yields:
        The warnings, filled as they come, whatever filters are set.
    """
    hook, debug = sys.breakpointhook, bdb.Bdb.set_trace
    with contextlib.ExitStack() as stack:
        caught = stack.enter_context(warnings.catch_warnings(record=True))
        warnings.simplefilter("always")
        stack.enter_context(torch.random.fork_rng(devices=[]))
        if not echo:
            stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
        sys.breakpointhook = _go_on
        bdb.Bdb.set_trace = _go_on
        try:
            yield caught
        finally:
            sys.breakpointhook, bdb.Bdb.set_trace = hook, debug


def _go_on(*_args: object, **_kwargs: object) -> None:
    return None


def _shared(parameter: nn.Parameter) -> nn.Parameter:
    shared = nn.Parameter(parameter.detach(), requires_grad=parameter.requires_grad)
    shared.grad = None if parameter.grad is None else parameter.grad.clone()
    return shared


def _owner(target: object) -> nn.Module | None:
    if isinstance(target, nn.Module):
        return target
    owner = getattr(target, "__self__", None)
    return owner if isinstance(owner, nn.Module) else None


def _copy(value: object, memo: dict[int, object]) -> object:
    if id(value) in memo:
        return memo[id(value)]
    if isinstance(value, Tensor) and not value.is_leaf:
        copied = value.detach().clone().requires_grad_(value.requires_grad)
        memo[id(value)] = copied
        return copied
    if isinstance(value, nn.Module):
        return _copy_module(value, memo)
    if isinstance(value, MethodType):
        return MethodType(value.__func__, _copy(value.__self__, memo))
    try:
        return copy.deepcopy(value, memo)
    except (TypeError, RuntimeError, NotImplementedError, AttributeError):
        memo[id(value)] = value
        return value


def _copy_module(module: nn.Module, memo: dict[int, object]) -> nn.Module:
    # Attribute by attribute, since one that refuses (a lock) must not keep the others from being copied.
    copied = type(module).__new__(type(module))
    memo[id(module)] = copied
    state: dict[str, object] = {}
    copied.__dict__ = state
    for name, value in module.__dict__.items():
        if name == "_modules":
            state[name] = {key: _copy(child, memo) for key, child in module._modules.items()}
        else:
            state[name] = _copy(value, memo)
    return copied
