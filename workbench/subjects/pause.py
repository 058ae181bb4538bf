"""A call that stops after every leaf module and waits: the module runs in a thread of its own, hooks hold it.

The thread alone runs the module; whoever drives it waits meanwhile, so the two never run at once. Modes that belong
to a thread (no gradients, fake tensors) are entered in that thread. The hooks are the module's own and are removed
when the call ends, fails or is closed.
"""

from __future__ import annotations

import contextlib
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import nn

Context = Callable[[], contextlib.AbstractContextManager[object]]


@dataclass(slots=True, kw_only=True)
class LeafCall:
    """A leaf module that just ran, held before its output goes back to its caller.

    Attributes:
        name: fully qualified name.
        number: how many times it ran before in this call.
        args, kwargs: what it was called with.
        output: what it returned; a replacement put here goes back to the caller.
    """

    name: str
    number: int
    args: tuple[object, ...]
    kwargs: Mapping[str, object]
    output: object


@dataclass(slots=True, kw_only=True)
class Finished:
    """The call is over.

    Attributes:
        output: what it returned, None where it raised.
        error: what it raised, None where it returned.
        failed_in: name and number of the leaf that was running when it raised, None outside of any.
    """

    output: object = None
    error: BaseException | None = None
    failed_in: tuple[str, int] | None = None


class _Closed(BaseException):
    """Unwinds the held call; no user code catches it as an Exception."""


def leaf_names(module: nn.Module) -> dict[nn.Module, str]:
    """Return the modules without children, each under its first name; a module without any is its own leaf."""
    leaves = {one: name for name, one in module.named_modules() if not any(True for _ in one.children())}
    return leaves or {module: ""}


@dataclass(slots=True)
class _Baton:
    """Whose turn it is: exactly one of the two threads runs."""

    to_call: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    to_driver: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))


class PausedCall:
    """One call of `function`, advanced from leaf to leaf.

    Args:
        function: what is called.
        args: positional arguments, used as they are.
        kwargs: keyword arguments, used as they are.
        leaves: the modules to stop after, with their names.
        context: entered in the call's thread for its whole length.
    """

    def __init__(
        self,
        function: Callable[..., object],
        args: tuple[object, ...],
        kwargs: Mapping[str, object],
        *,
        leaves: Mapping[nn.Module, str],
        context: Context,
    ) -> None:
        self._function, self._args, self._kwargs = function, args, kwargs
        self._leaves, self._context = leaves, context
        self._baton = _Baton()
        self._held: LeafCall | Finished | None = None
        self._closing = False
        self._counts: dict[str, int] = {}
        self._running: list[str] = []
        # A daemon: a user who leaves a session open can still leave Python.
        self._thread = threading.Thread(target=self._body, name="workbench-step", daemon=True)
        self._started = False

    @property
    def held(self) -> LeafCall | Finished | None:
        """What the call waits at; None before the first `advance`."""
        return self._held

    def advance(self) -> LeafCall | Finished:
        """Let the call run to the end of its next leaf, or to its end."""
        if isinstance(self._held, Finished):
            return self._held
        if not self._started:
            self._started = True
            self._thread.start()
        else:
            self._baton.to_call.release()
        self._baton.to_driver.acquire()
        assert self._held is not None, "the call hands over something whenever it waits"
        return self._held

    def close(self) -> None:
        """End the call where it is."""
        if self._started and not isinstance(self._held, Finished):
            self._closing = True
            self._baton.to_call.release()
        if self._started:
            self._thread.join()

    def _body(self) -> None:
        finished = Finished()
        try:
            with self._hooks(), self._context(), torch.no_grad():
                finished = Finished(output=self._function(*self._args, **self._kwargs))
        except _Closed:
            pass
        except BaseException as error:
            name = self._leaf_of(error)
            failed_in = None if name is None else (name, self._counts.get(name, 0))
            finished = Finished(error=error, failed_in=failed_in)
        self._held = finished
        self._baton.to_driver.release()

    def _leaf_of(self, error: BaseException) -> str | None:
        """Return the innermost leaf that was running, of those the error came through."""
        passed: set[str] = set()
        for frame, _ in traceback.walk_tb(error.__traceback__):
            owner = frame.f_locals.get("self")
            if isinstance(owner, nn.Module) and owner in self._leaves:
                passed.add(self._leaves[owner])
        # A leaf whose error the code caught is still listed as running, and no part of this error.
        return next((name for name in reversed(self._running) if name in passed), None)

    def _before(self, module: nn.Module, _: object) -> None:
        if threading.current_thread() is self._thread:
            self._leave_if_closing()
            self._running.append(self._leaves[module])

    def _after(self, module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object], output: object) -> object:
        if threading.current_thread() is not self._thread:
            return output
        self._leave_if_closing()
        name = self._leaves[module]
        self._running.pop()
        number = self._counts.get(name, 0)
        self._counts[name] = number + 1
        call = LeafCall(name=name, number=number, args=args, kwargs=kwargs, output=output)
        self._held = call
        self._baton.to_driver.release()
        self._baton.to_call.acquire()
        self._leave_if_closing()
        return call.output

    def _leave_if_closing(self) -> None:
        # Also where the code caught this once (a bare `except:`) and goes on: nobody waits for it any more.
        if self._closing:
            raise _Closed

    @contextlib.contextmanager
    def _hooks(self) -> Iterator[None]:
        handles = [module.register_forward_pre_hook(self._before) for module in self._leaves]
        handles += [module.register_forward_hook(self._after, with_kwargs=True) for module in self._leaves]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
