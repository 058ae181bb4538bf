"""Every graph break of one call, once, with its source line: what Dynamo captures, where it stops, and why.

The call is made on a copy (see `observed_call`), Dynamo is reset before and after, and what Dynamo says is taken from
its own log (see `break_log`). Not for compiling on a device, nor for judging numbers.
"""

from __future__ import annotations

import contextlib
import linecache
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
import torch._dynamo
from torch import nn

from workbench.errors import TargetCrash
from workbench.probes.break_classes import INTENTIONAL, reason_class
from workbench.probes.break_log import BreakEvent, BreakFrame, BreakLog
from workbench.probes.break_registry import find_entry
from workbench.probes.graph_capture import GraphCapture
from workbench.probes.look_past import LookPast
from workbench.probes.observed_call import ObservedCall, copy_call, quiet_process
from workbench.probes.user_code import is_library, shown_path
from workbench.records.base import Record, Stamp
from workbench.records.graphs import CapturedGraph, GraphBreak, GraphSummary, Recompile, SourceFrame

MOST_PASSES = 16
"""Runs after the plain one; each must have learned a new place, so this only bounds a very broken program."""

PIECE_RECOMPILES = 64
"""A piece of a loop meets every layer the loop goes through; the default of 8 would end its examination early."""

_OF_PIECES = frozenset({"reconstruction", "recompile_limit"})
"""Classes that cutting a function can cause by itself: a value handed between pieces, a piece compiled many times."""

Sink = Callable[[Record], object]
Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphFindings:
    """What one capture found.

    Attributes:
        graphs: graphs handed to the backend, in order of compilation.
        breaks: one per source site, in order of appearance.
        recompiles: frames compiled more than once.
        summary: totals, warnings, and whether every reached line was examined.
    """

    graphs: tuple[CapturedGraph, ...]
    breaks: tuple[GraphBreak, ...]
    recompiles: tuple[Recompile, ...]
    summary: GraphSummary

    @property
    def records(self) -> tuple[Record, ...]:
        """All records, in the order they go into a journal."""
        return (*self.graphs, *self.breaks, *self.recompiles, self.summary)


def find_graph_breaks(
    target: Callable[..., object],
    args: Sequence[object] = (),
    kwargs: Mapping[str, object] | None = None,
    *,
    module: nn.Module | None = None,
    backend: str = "eager",
    grad: bool = False,
    look_past: bool = True,
    more_args: Sequence[Sequence[object]] = (),
    sink: Sink | None = None,
    progress: Progress | None = None,
) -> GraphFindings:
    """Return the graphs, graph breaks and recompiles of one call of `target`.

    Args:
        target: a module, a bound method, or any callable.
        args: positional arguments.
        kwargs: keyword arguments.
        module: root of the module paths; None for the target itself or the owner of the bound method.
        backend: Dynamo backend; "eager" captures and runs the operations as they are.
        grad: run with gradients enabled, as a plain call of a model does; off for inference.
        look_past: examine also what Dynamo leaves out after a break it cannot resume from.
        more_args: positional arguments of further calls of the same compiled target, to see recompiles.
        sink: called with each record, as in `journal.append`.
        progress: told in a line what is going on.

    Raises:
        TargetCrash: the target itself raises, without Dynamo too.
    """
    copies = partial(copy_call, target, args, kwargs or {}, module=module)
    more = [copy_call(target, one, kwargs or {}, module=module).args for one in more_args]
    seen = _observe(copies(), more, backend=backend, grad=grad)
    breaks = merge_events(seen.events)
    search = LookPast()
    skips = any(event.skipped or event.rest_skipped for event in seen.events)
    events, found = seen.events, 0
    while look_past and search.learn(events) and found < MOST_PASSES:
        found += 1
        if progress is not None:
            progress(f"graph breaks: {len(breaks)} so far; looking past them, pass {found}")
        with search.installed(), torch._dynamo.config.patch(recompile_limit=PIECE_RECOMPILES):
            events = _observe(copies(), (), backend=backend, grad=grad, echo=False).events
        breaks.extend(_new_sites(breaks, events, search, pass_index=found))
    summary = GraphSummary(
        backend=backend,
        graph_count=len(seen.graphs),
        break_sites=len(breaks),
        recompile_count=len(seen.recompiles),
        skipped_frames=len({event.code for event in seen.events if event.skipped}),
        warnings=(*seen.warnings, *(f"not looked past: {one}" for one in search.obstacles)),
        complete=not search.obstacles if look_past else not skips,
    )
    findings = GraphFindings(
        graphs=tuple(seen.graphs), breaks=tuple(breaks), recompiles=tuple(seen.recompiles), summary=summary
    )
    if sink is not None:
        for record in findings.records:
            sink(record)
    return findings


def record_graph_breaks(
    target: Callable[..., object],
    args: Sequence[object] = (),
    kwargs: Mapping[str, object] | None = None,
    *,
    module: nn.Module | None = None,
    sink: Sink | None = None,
    phase: str = "",
    progress: Progress | None = None,
) -> GraphFindings:
    """Return `find_graph_breaks` of an inference call, its records stamped with `phase` on their way to `sink`."""

    def stamp(record: Record) -> object:
        return None if sink is None else sink(replace(record, stamp=Stamp(phase=phase)))

    return find_graph_breaks(target, args, kwargs, module=module, sink=stamp, progress=progress)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    events: list[BreakEvent]
    graphs: list[CapturedGraph]
    recompiles: list[Recompile]
    warnings: tuple[str, ...]


def _observe(
    call: ObservedCall, more: Iterable[Sequence[object]], *, backend: str, grad: bool, echo: bool = True
) -> _Seen:
    capture = GraphCapture(backend, call.names)
    log = BreakLog()
    mode = torch.enable_grad() if grad else torch.no_grad()
    torch._dynamo.reset()
    with contextlib.ExitStack() as stack:
        stack.callback(torch._dynamo.reset)
        caught = stack.enter_context(quiet_process(echo=echo))
        stack.enter_context(log)
        stack.enter_context(mode)
        compiled = torch._dynamo.optimize(
            capture, guard_export_fn=capture.count_guards, guard_fail_fn=capture.note_failure
        )(call.target)
        try:
            compiled(*call.args, **call.kwargs)
            for args in more:
                compiled(*args, **call.kwargs)
        except Exception as error:
            raise TargetCrash(f"the observed call raised {type(error).__name__}: {error}") from error
    dynamo = [str(item.message) for item in caught if is_library(item.filename) or "Dynamo" in str(item.message)]
    return _Seen(
        events=log.events,
        graphs=capture.graphs(),
        recompiles=capture.recompiles(),
        warnings=tuple(dict.fromkeys(dynamo)),
    )


def merge_events(events: Iterable[BreakEvent], *, pass_index: int = 0) -> list[GraphBreak]:
    """Return one record per source site and reason, in order of appearance.

    Args:
        events: Dynamo's records; those without a place in the program are left out.
        pass_index: pass of the search the events come from.
    """
    groups: dict[tuple[str, int, str], list[BreakEvent]] = {}
    for event in events:
        if event.frames:
            leaf = user_frames(event.frames)[0]
            groups.setdefault((leaf.file, leaf.line, event.reason), []).append(event)
    return [_site(group, pass_index) for group in groups.values()]


def _new_sites(
    known: Sequence[GraphBreak], events: Iterable[BreakEvent], search: LookPast, *, pass_index: int
) -> list[GraphBreak]:
    places = {(one.file, one.line) for one in known}
    fresh: list[GraphBreak] = []
    for one in merge_events(events, pass_index=pass_index):
        if (one.file, one.line) in places or one.reason_class in _OF_PIECES:
            continue
        block, loop = search.in_block(one.frames[0].file, one.line)
        fresh.append(replace(one, frame_skipped=one.frame_skipped or block, in_loop=one.in_loop or loop))
    return fresh


def _site(group: Sequence[BreakEvent], pass_index: int) -> GraphBreak:
    deepest = max(group, key=lambda event: len(event.frames))
    frames = user_frames(deepest.frames)
    entry = find_entry(deepest.reason)
    kind = reason_class(deepest.reason)
    leaf = frames[0]
    return GraphBreak(
        file=shown_path(leaf.file),
        line=leaf.line,
        function=leaf.function,
        text=_source_line(leaf),
        reason=deepest.reason,
        reason_class=kind,
        registry_id=entry.registry_id if entry else None,
        explanation=deepest.explanation or (entry.explanation if entry else ""),
        hints=deepest.hints or (entry.hints if entry else ()),
        frames=tuple(
            SourceFrame(file=shown_path(one.file), line=one.line, function=one.function, text=_source_line(one))
            for one in frames
        ),
        modules=(),
        frame_skipped=any(event.skipped for event in group),
        in_loop=any(event.in_loop for event in group),
        intentional=kind in INTENTIONAL,
        log_records=len(group),
        pass_index=pass_index,
    )


def user_frames(frames: Sequence[BreakFrame]) -> list[BreakFrame]:
    """Return the frames leaf first, without those of torch and of the standard library below the user's last line."""
    ordered = list(reversed(frames))
    first = next((index for index, one in enumerate(ordered) if not is_library(one.file)), 0)
    return ordered[first:]


def _source_line(frame: BreakFrame) -> str:
    return linecache.getline(frame.file, frame.line).strip()
