"""A call seen by the CPU's allocator: every request and return of memory, in order, with the operation it was made in.

This is torch's own profiler, which works below tensors: it also sees the numbers torch wraps for an operation and the
scratch memory of kernels. Only where tensors lie on the CPU.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd import profiler

_FACTORIES = frozenset(
    {"aten::empty", "aten::empty_strided", "aten::empty_like", "aten::resize_", "aten::zeros", "aten::arange"}
)
_ALLOCATION, _OPERATION = "_EventType.Allocation", "_EventType.TorchOp"
_TOLD_ALWAYS = (b"USDT:", b"STAGE:")


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatorEvent:
    """One request or return.

    Attributes:
        nbytes: as requested (not rounded); negative for a return.
        address: of the memory.
        op: innermost operation it was made in, factories such as `aten::empty` left out; outside of
            any, the next operation, whose numbers torch wraps there.
        inside: names of all operations it was made in, each with the number of the outermost call of that name.
        call: number of the outermost of them, counted over the run; -1 outside of any.
    """

    nbytes: int
    address: int
    op: str
    inside: Mapping[str, int]
    call: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatorRun:
    """What one call did to the allocator.

    Attributes:
        events: in order of time, while the call ran and its result was held.
        result: what the call returned.
    """

    events: tuple[AllocatorEvent, ...]
    result: object


def run_with_allocator(call: Callable[[], object]) -> AllocatorRun:
    """Make a call under the profiler and return what the CPU's allocator was asked for.

    Raises:
        RuntimeError: a profiler is active already.
        Exception: whatever the call raises.
    """
    profile = profiler.profile(profile_memory=True)
    with _without_banner():
        profile.__enter__()
    try:
        result = call()
    finally:
        with _without_banner():
            profile.__exit__(*sys.exc_info())
    assert profile.kineto_results is not None, "a profiler that was left has results"
    return AllocatorRun(events=tuple(_events(profile.kineto_results.experimental_event_tree())), result=result)


def is_profiling() -> bool:
    """Say whether a profiler is active, so that a second one cannot be."""
    return torch._C._autograd._profiler_enabled()  # pyright: ignore[reportAttributeAccessIssue]


def _events(tree: Any) -> list[AllocatorEvent]:
    found: list[tuple[int, AllocatorEvent]] = []
    # (event, calls around it by name, innermost of their names, number of the outermost)
    todo: list[tuple[Any, dict[str, int], str, int]] = []
    upcoming = ""
    for event in reversed(tree):
        upcoming = event.name if _is_operation(event) else upcoming
        # Outside of any operation torch wraps the numbers of the next one.
        todo.append((event, {}, "" if _is_operation(event) else upcoming, -1))
    calls = 0
    while todo:
        event, inside, innermost, call = todo.pop()
        kind, fields = event.typed
        if str(kind) == _ALLOCATION:
            if fields.device.type == "cpu":
                one = AllocatorEvent(
                    nbytes=fields.alloc_size, address=fields.ptr, op=innermost, inside=inside, call=call
                )
                found.append((event.start_time_ns, one))
            continue
        if str(kind) == _OPERATION:
            calls += 1
            inside = {event.name: calls, **inside}
            # A factory says nothing of what the memory is for; the operation that called it does.
            innermost = innermost if innermost and event.name in _FACTORIES else event.name
            call = calls if call < 0 else call
        todo.extend((child, inside, innermost, call) for child in reversed(event.children))
    # The tree is in order of time per thread; several threads are brought into one order.
    return [event for _, event in sorted(found, key=lambda one: one[0])]


def _is_operation(event: Any) -> bool:
    return str(event.typed[0]) == _OPERATION


@contextlib.contextmanager
def _without_banner() -> Iterator[None]:
    """Keep the two lines the profiler's library writes to the error stream from the user; anything else passes."""
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as said:
        os.dup2(said.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)
            said.seek(0)
            for line in said.read().splitlines(keepends=True):
                if not line.startswith(_TOLD_ALWAYS):
                    os.write(2, line)
