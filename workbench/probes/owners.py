"""Who runs: the path of the module whose `forward` is executing, also for operations of a backward pass.

Kept by global module hooks that are there only inside the context. A method of a module that is called directly, and
not through the module, is found on Python's stack where no call of a named module is under way. An operation of a
backward pass belongs to the module and the line of its forward operation; autograd numbers its nodes in the order they
were made, and that number is what the two are matched by.
"""

from __future__ import annotations

import inspect
import itertools
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import FrameType

import torch
from torch import nn
from torch.nn.modules import module as nn_module
from torch.utils.hooks import RemovableHandle

from workbench.user_lines import UserLine

Crossing = Callable[[object], None]
Leaving = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Place:
    """Where an operation belongs.

    Attributes:
        owner: path of the module, "" for the root and outside of any module.
        scope: number of that module's call, from 1; 0 outside of any.
        is_named: the root leads to that module.
    """

    owner: str
    scope: int
    is_named: bool = True


_OUTSIDE = Place("", 0)


class Owners:
    """Follows module calls while it is entered.

    Args:
        root: its descendants are named by their path in it; other modules by the class they are of, in brackets.
        crossing: called with what is handed into and out of a module.
        leaving: called with the number of a module call that ends.
    """

    def __init__(self, root: nn.Module | None, *, crossing: Crossing, leaving: Leaving) -> None:
        self._names: dict[int, str] = {}
        if root is not None:
            self._names = {id(child): name for name, child in root.named_modules()}
        self._crossing = crossing
        self._leaving = leaving
        self._stacks = threading.local()
        self._numbers = itertools.count(1)
        self._forward: dict[int, tuple[Place, UserLine | None]] = {}
        self._handles: list[RemovableHandle] = []

    def __enter__(self) -> Owners:
        self._handles = [
            nn_module.register_module_forward_pre_hook(self._enter_module),
            nn_module.register_module_forward_hook(self._leave_module, always_call=True),
        ]
        return self

    def __exit__(self, *_: object) -> None:
        while self._handles:
            self._handles.pop().remove()

    @property
    def names(self) -> Mapping[int, str]:
        """Path of each module of the root, by its id."""
        return self._names

    def now(self) -> Place:
        """Return where the operation that is running belongs, by the modules being called."""
        stack = self._stack()
        top = stack[-1] if stack else _OUTSIDE
        if top.scope and top.is_named:
            return top
        path = self._path_by_frame()
        return top if path is None else Place(path, top.scope)

    def remember(self, line: UserLine | None) -> None:
        """Note place and line of a forward operation, for its backward; only with gradients enabled."""
        self._forward[torch._C._autograd._get_sequence_nr() - 1] = (self.now(), line)  # pyright: ignore[reportAttributeAccessIssue]

    def of_backward(self) -> tuple[Place, UserLine | None] | None:
        """Return place and line of the forward operation whose backward is running; None outside of a backward."""
        node = torch._C._current_autograd_node()
        if node is None:
            return None
        place, line = self._forward.get(node._sequence_nr(), (_OUTSIDE, None))
        # That module's call is over; what a backward makes lives in no call.
        return Place(place.owner, 0), line

    def _path_by_frame(self) -> str | None:
        """Return the path of the innermost module one of whose methods is running, called directly or not."""
        frame: FrameType | None = sys._getframe(2)
        while frame is not None:
            if frame.f_code.co_varnames[:1] == ("self",) and frame.f_code.co_flags & inspect.CO_NEWLOCALS:
                local_values = frame.f_locals
                path = self._names.get(id(local_values.get("self")))
                if type(local_values) is dict:
                    # Before Python 3.13 this is a copy the frame keeps: it would hold tensors the code let go of.
                    local_values.clear()
                if path is not None:
                    return path
            frame = frame.f_back
        return None

    def _stack(self) -> list[Place]:
        stack = getattr(self._stacks, "places", None)
        if stack is None:
            stack = self._stacks.places = []
        return stack

    def _enter_module(self, module: nn.Module, args: object) -> None:
        self._crossing(args)
        name = self._names.get(id(module))
        shown = f"({type(module).__name__})" if name is None else name
        self._stack().append(Place(shown, next(self._numbers), name is not None))

    def _leave_module(self, module: nn.Module, args: object, output: object) -> None:
        self._crossing(output)
        stack = self._stack()
        # A module whose pre-hook raised was never entered.
        if stack:
            self._leaving(stack.pop().scope)
