"""Any module or callable as one side of a session: it stops after every leaf module and once more at its end.

Which leaves run, and in what order, is learnt from one call that is thrown away; a call that raises is stepped up to
where it does. The inputs are copied for every
call and buffers are put back before it, so that a call which changes either can be made again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn

from workbench.errors import PlanError, StepError, TargetCrash
from workbench.stepper import StepPoint, nearest
from workbench.subjects.base import Call, Observed
from workbench.subjects.buffers import HeldBuffers
from workbench.subjects.pause import Finished, LeafCall, PausedCall, leaf_names
from workbench.trees import clone_tensors, map_tensors, named_tensors, with_tensors

if TYPE_CHECKING:
    from workbench.devices.base import Device


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleFeed:
    """What a leaf was called with.

    Attributes:
        args: positional arguments; for the last point those of the whole call.
        kwargs: keyword arguments.
    """

    args: tuple[object, ...]
    kwargs: Mapping[str, object]


class ModuleSide:
    """A module or callable, stepped.

    Args:
        target: what is called: a module, a method of one, or any callable.
        args: positional arguments; copied, never changed.
        kwargs: keyword arguments; copied, never changed.
        device: where it runs.
        seed: of everything random, at the start of the call.
        dtype: floating inputs and parameters are converted to it, None to leave them.
        backend: Dynamo backend every leaf is compiled with, None for eager.
        fullgraph: refuse graph breaks when compiling.
        shared: the other side calls the same module; one with buffers is copied then, but for its parameters.

    Attributes:
        precision: see `Side`.
        failure: what the call raises at the last of its points, None where it returns.
    """

    def __init__(
        self,
        target: Callable[..., object],
        args: tuple[object, ...],
        kwargs: Mapping[str, object],
        *,
        device: Device,
        seed: int = 0,
        dtype: torch.dtype | None = None,
        backend: str | None = None,
        fullgraph: bool = False,
        shared: bool = False,
    ) -> None:
        self.device, self._seed = device, seed
        self.precision = dtype
        self.failure: str | None = None
        self._root = owner_module(target)
        self._target = target
        changed = dtype is not None or backend is not None or not device.has_numbers
        if changed and self._root is not None:
            self._root, self._target = _own_copy(self._root, target, dtype)
            self._root = cast("nn.Module", device.place(self._root))
            self._target = _rebound(self._target, self._root)
        elif shared and self._root is not None and any(module._buffers for module in self._root.modules()):
            # Both calls are under way at once: each needs buffers, and other state, of its own.
            self._root, self._target = _own_copy(self._root, target, None, share_parameters=True)
        self._args = cast("tuple[object, ...]", device.place(_as_dtype(clone_tensors(args), dtype)))
        self._kwargs = cast("dict[str, object]", device.place(_as_dtype(clone_tensors(dict(kwargs)), dtype)))
        self._leaves = leaf_names(self._root) if self._root is not None else {}
        self._modules = {name: module for module, name in self._leaves.items()}
        if backend is not None:
            self._compile(backend, fullgraph)
        self._buffers = self._hold_buffers()
        self._call: PausedCall | None = None
        self._random: Tensor | None = None
        self._feeds: list[ModuleFeed] = []
        self._edits: dict[int, dict[str, Tensor]] = {}
        self._position = 0
        self._interrupted = False
        self._points = self._learn()

    @property
    def points(self) -> tuple[StepPoint, ...]:
        """Every leaf call in order, then the whole call."""
        return self._points

    @property
    def position(self) -> int:
        """Points already run."""
        return self._position

    @property
    def has_numbers(self) -> bool:
        """False for a dry side."""
        return self.device.has_numbers

    def advance(self) -> Observed:
        """Run to the end of the next leaf, or to the end of the call.

        Raises:
            StepError: the call is over, or took another way than when its steps were learnt.
            TargetCrash: it raised.
        """
        if self._position >= len(self._points):
            raise StepError("the call is over; use session.rewind(...) to go back.")
        if self._interrupted:
            # A leaf was left running, with the random numbers of whoever ran meanwhile: this call is worth nothing.
            self.rewind(self._position)
        point = self._points[self._position]
        held = self._next()
        if isinstance(held, Finished):
            if point.kind != "call":
                raise StepError(f"expected {point} to run, found the call at its end: it took another way this time.")
            output = _named_outputs(held.output, "out")
            self._feeds.append(ModuleFeed(args=self._args, kwargs=self._kwargs))
        else:
            if (held.name, held.number) != (point.module, point.call):
                raise StepError(
                    f"expected {point} to run, found {held.name} call {held.number + 1}: the call took another way."
                )
            # What was fed is copied now: the call may write to its own inputs later.
            feed = ModuleFeed(
                args=cast("tuple[object, ...]", clone_tensors(held.args)),
                kwargs=cast("dict[str, object]", clone_tensors(dict(held.kwargs))),
            )
            self._feeds.append(feed)
            edits = {name: tensor for name, tensor in self._pending().items() if name in self._outputs(held)}
            if edits:
                held.output = with_tensors(held.output, _label(held.name, held.number), edits)
            output = self._outputs(held)
        self._position += 1
        kept = {name: tensor.detach().clone() for name, tensor in output.items()}
        return Observed(tensors=kept, outputs=tuple(kept))

    def feed(self, index: int) -> ModuleFeed | None:
        """Return what a leaf that has run was called with."""
        return self._feeds[index]

    def alone(self, index: int, feed: object) -> Observed:
        """Call one leaf (or the whole) on another side's input."""
        if not isinstance(feed, ModuleFeed):
            raise StepError(f"expected the input of a module's call, found {type(feed).__name__}.")
        point = self._points[index]
        own = self._feeds[index]
        args = cast("tuple[object, ...]", _like(clone_tensors(feed.args), own.args))
        kwargs = cast("dict[str, object]", _like(clone_tensors(dict(feed.kwargs)), dict(own.kwargs)))
        function = self._target if point.kind == "call" else self._modules[point.module]
        name = "out" if point.kind == "call" else _label(point.module, point.call)
        kept = self._hold_buffers()
        state = torch.get_rng_state()
        try:
            with self.device.active(), torch.no_grad():
                output = _named_outputs(function(*args, **kwargs), name)
        finally:
            torch.set_rng_state(state)
            kept.put_back()
        return Observed(tensors=output, outputs=tuple(output))

    def rewind(self, position: int) -> None:
        """Go back: the call is begun again and run, unwatched, to where it shall stand."""
        edits = {index: tensors for index, tensors in self._edits.items() if index < position}
        self._begin_again()
        self._edits = edits
        for _ in range(position):
            self.advance()

    def tensors(self) -> Mapping[str, Tensor]:
        """Return the output of the leaf the call waits at: its caller reads it next."""
        held = None if self._call is None else self._call.held
        return self._outputs(held) if isinstance(held, LeafCall) else {}

    def edit(self, name: str, tensor: Tensor) -> None:
        """Replace the output the call waits at, or one still to come.

        Raises:
            StepError: another shape or dtype than what is replaced.
        """
        held = None if self._call is None else self._call.held
        if isinstance(held, LeafCall) and name in self._outputs(held):
            old = self._outputs(held)[name]
            if old.shape != tensor.shape or old.dtype != tensor.dtype:
                raise StepError(
                    f"edit of {name}: expected {old.dtype}{list(old.shape)}, found {tensor.dtype}{list(tensor.shape)}."
                )
            held.output = with_tensors(held.output, _label(held.name, held.number), {name: tensor.to(old.device)})
            self._edits.setdefault(self._position - 1, {})[name] = tensor
            return
        index = next((p.index for p in self._points if _label(p.module, p.call) == name.split(":")[0]), None)
        if index is None:
            raise StepError(f"edit: expected the output of a module of this run, found {name!r}.")
        self._edits.setdefault(index, {})[name] = tensor

    def call(self, module: str, phase: str) -> Call:
        """Return the whole target, or one of its modules with the input it got, as a plain call.

        Raises:
            StepError: no such module, or it has not run.
        """
        if not module:
            return Call(name="the call", function=self._target, args=self._args, kwargs=self._kwargs, module=self._root)
        if self._root is None:
            raise StepError(f"expected no module name for a plain callable, found {module!r}.")
        known = dict(self._root.named_modules())
        if module not in known:
            raise StepError(f"expected a module of this target, found {module!r}.{nearest(self._points, module)}")
        feed = self._input_of(known[module], module)
        return Call(name=module, function=known[module], args=feed.args, kwargs=feed.kwargs, module=known[module])

    def close(self) -> None:
        """End the call where it stands; buffers are as they were before the first call."""
        if self._call is not None:
            self._call.close()
            self._call = None
            self._buffers.put_back()

    def _input_of(self, module: nn.Module, name: str) -> ModuleFeed:
        """Return the first input of a module, from one more call of the whole."""
        seen: list[ModuleFeed] = []

        def before(_: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
            if not seen:
                seen.append(
                    ModuleFeed(
                        args=cast("tuple[object, ...]", clone_tensors(args)),
                        kwargs=cast("dict[str, object]", clone_tensors(kwargs)),
                    )
                )

        args, kwargs = self._fresh()
        handle = module.register_forward_pre_hook(before, with_kwargs=True)
        kept = self._hold_buffers()
        try:
            with self.device.active(), torch.no_grad(), torch.random.fork_rng(devices=[]):
                torch.manual_seed(self._seed)
                self._target(*args, **kwargs)
        finally:
            handle.remove()
            kept.put_back()
        if not seen:
            raise StepError(f"{name} does not run in this call; there is no input to look at it with.")
        return seen[0]

    def _learn(self) -> tuple[StepPoint, ...]:
        """Return the leaves one call runs; where it raises, the program ends with the leaf it raised in."""
        points: list[StepPoint] = []
        try:
            while isinstance(held := self._next(), LeafCall):
                points.append(StepPoint(index=len(points), module=held.name, kind="module", call=held.number))
        except TargetCrash as error:
            self.failure = str(error)
            held = None if self._call is None else self._call.held
            if isinstance(held, Finished) and held.failed_in is not None:
                name, number = held.failed_in
                return (*points, StepPoint(index=len(points), module=name, kind="module", call=number))
        finally:
            self._begin_again()
        return (*points, StepPoint(index=len(points), module="", kind="call"))

    def _next(self) -> LeafCall | Finished:
        if self._call is None:
            self._buffers.put_back()
            args, kwargs = self._fresh()
            self._call = PausedCall(self._target, args, kwargs, leaves=self._leaves, context=self.device.active)
        try:
            with self._own_random():
                held = self._call.advance()
        except KeyboardInterrupt:
            self._interrupted = True
            raise
        if isinstance(held, Finished) and held.error is not None:
            error = held.error
            raise TargetCrash(f"the target raised {type(error).__name__}: {error}") from error
        return held

    def _begin_again(self) -> None:
        self.close()
        self._feeds.clear()
        self._random, self._position, self._interrupted = None, 0, False

    @contextlib.contextmanager
    def _own_random(self) -> Iterator[None]:
        """Give each side random numbers of its own, from the same seed; the caller's stay untouched."""
        outside = torch.get_rng_state()
        if self._random is None:
            torch.manual_seed(self._seed)
        else:
            torch.set_rng_state(self._random)
        try:
            yield
        finally:
            self._random = torch.get_rng_state()
            torch.set_rng_state(outside)

    def _hold_buffers(self) -> HeldBuffers:
        return HeldBuffers(self._root, values=self.device.has_numbers)

    def _fresh(self) -> tuple[tuple[object, ...], dict[str, object]]:
        """Return copies of the call's arguments, so that a call which changes them can be made again."""
        with self.device.active():
            args = cast("tuple[object, ...]", clone_tensors(self._args))
            return args, cast("dict[str, object]", clone_tensors(self._kwargs))

    def _pending(self) -> Mapping[str, Tensor]:
        return self._edits.get(self._position, {})

    def _outputs(self, held: LeafCall) -> dict[str, Tensor]:
        return _named_outputs(held.output, _label(held.name, held.number))

    def _compile(self, backend: str, fullgraph: bool) -> None:
        if self._root is None:
            self._target = torch.compile(self._target, backend=backend, fullgraph=fullgraph)
            return
        for module in self._leaves:
            # The forward alone: hooks stay outside the graph, since they hold the call.
            module.forward = torch.compile(module.forward, backend=backend, fullgraph=fullgraph)


def owner_module(target: Callable[..., object]) -> nn.Module | None:
    """Return the module whose leaves a call of `target` runs: itself, or the owner of the method."""
    if isinstance(target, nn.Module):
        return target
    owner = getattr(target, "__self__", None)
    return owner if isinstance(owner, nn.Module) else None


def _own_copy(
    root: nn.Module, target: Callable[..., object], dtype: torch.dtype | None, *, share_parameters: bool = False
) -> tuple[nn.Module, Callable[..., object]]:
    import copy

    shared = {id(parameter): parameter for parameter in root.parameters()} if share_parameters else {}
    try:
        twin = copy.deepcopy(root, cast("dict[int, object]", shared))
    except Exception as error:
        raise PlanError(
            f"this side needs a copy of {type(root).__name__} of its own; expected a module that copy.deepcopy takes, "
            f"found one for which it raises {type(error).__name__}: {error}. Hand over a second one: candidate_target."
        ) from error
    if dtype is not None:
        twin = twin.to(dtype)
    return twin, twin if target is root else getattr(twin, target.__name__)


def _rebound(target: Callable[..., object], root: nn.Module) -> Callable[..., object]:
    return root if isinstance(target, nn.Module) else getattr(root, target.__name__)


def _as_dtype(value: object, dtype: torch.dtype | None) -> object:
    if dtype is None:
        return value
    return map_tensors(value, "", lambda _, tensor: tensor.to(dtype) if tensor.is_floating_point() else tensor)


def _like(value: object, own: object) -> object:
    """Return `value` with each tensor on the device and in the dtype of the tensor of the same name in `own`."""
    held = named_tensors(own, "")

    def convert(name: str, tensor: Tensor) -> Tensor:
        return tensor.to(device=held[name].device, dtype=held[name].dtype) if name in held else tensor

    return map_tensors(value, "", convert)


def _named_outputs(value: object, name: str) -> dict[str, Tensor]:
    return named_tensors(value, name)


def _label(module: str, call: int) -> str:
    name = module or "out"
    return f"{name}#{call + 1}" if call else name
