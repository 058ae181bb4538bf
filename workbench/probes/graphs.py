"""Every graph break of one call, once, with its source line: what Dynamo captures, where it stops, and why.

Each run is made on a copy (see `observed_call`), Dynamo is reset before and after, and what Dynamo says is taken from
its own log (see `break_log`). The plain run comes first; further runs look past what it left out (see `look_past`);
a last run without Dynamo counts (see `reached_lines`). Not for compiling on a device, nor for judging numbers.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
import torch._dynamo
from torch import nn

from workbench.errors import TargetCrash
from workbench.probes.break_log import BreakEvent, BreakLog
from workbench.probes.break_sites import merge_events, new_sites, with_reach
from workbench.probes.graph_capture import GraphCapture
from workbench.probes.look_past import LookPast
from workbench.probes.observed_call import ObservedCall, copy_call, quiet_process
from workbench.probes.reached_lines import watch_lines
from workbench.probes.user_code import is_library, shown_path
from workbench.records.base import Record, Stamp
from workbench.records.graphs import CapturedGraph, GraphBreak, GraphSummary, Recompile
from workbench.views.graphs import break_table

MOST_PASSES = 16
"""Runs after the plain one; each must have learned a new place, so this only bounds a very broken program."""

PIECE_RECOMPILES = 64
"""A piece of a loop meets every layer the loop goes through; the default of 8 would end its examination early."""

Sink = Callable[[Record], object]
Progress = Callable[[str], None]

_LIMIT = re.compile(r"hit config\.\w*limit")
_FILE = re.compile(r"(?<![\w./])/[^\s'\":]+\.py\b")


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
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

    def __str__(self) -> str:
        return str(break_table(self.records))

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return break_table(self.records)._repr_html_()


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
        sink: called with each record, as in `journal.append`; also with what was found before an error or Ctrl-C.
        progress: told in a line what is going on.

    Raises:
        TargetCrash: the call raises; the message says whether it does so without Dynamo too.
    """
    calls = partial(copy_call, target, args, kwargs or {}, module=module)
    more = [copy_call(target, one, kwargs or {}, module=module).args for one in more_args]
    capture = _Capture(calls, backend=backend, grad=grad, progress=progress or _tell_nobody)
    try:
        capture.plain_run(more)
        if look_past:
            capture.look_past()
        capture.count()
        capture.ended = True
    finally:
        findings = capture.findings()
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


class _Capture:
    """The runs of one search, and what they have found so far."""

    def __init__(self, calls: Callable[[], ObservedCall], *, backend: str, grad: bool, progress: Progress) -> None:
        self.ended = False
        self._calls = calls
        self._backend = backend
        self._grad = grad
        self._progress = progress
        self._seen = _Run()
        self._breaks: list[GraphBreak] = []
        self._search = LookPast()
        self._obstacles: list[str] = []
        self._modules: tuple[str, ...] = ()
        self._looked_past = False

    def plain_run(self, more: Iterable[Sequence[object]]) -> None:
        """Run as Dynamo runs it."""
        self._run(self._seen, more, echo=True)
        self._breaks = merge_events(self._seen.events)
        if self._seen.error is not None:
            raise self._crash(self._seen.error) from self._seen.error

    def look_past(self) -> None:
        """Run again as long as a run shows places that another can look past."""
        self._looked_past = True
        seen = self._seen
        for index in range(1, MOST_PASSES + 1):
            if not self._search.learn(seen.events) and not (seen.limited and index == 1):
                break
            self._progress(f"graph breaks: {len(self._breaks)} so far; looking past them, run {index}")
            seen = _Run()
            with self._search.installed(), torch._dynamo.config.patch(recompile_limit=PIECE_RECOMPILES):
                self._run(seen, (), echo=False)
            self._breaks.extend(new_sites(self._breaks, seen.events, self._search, pass_index=index))
            if seen.error is not None:
                self._obstacles.append(f"run {index}, in pieces, raised {_in_words(seen.error)}")
                break
        else:
            self._obstacles.append(f"new places in each of {MOST_PASSES} runs; the search was ended")
        if seen is not self._seen and seen.limited:
            self._obstacles.append(f"a function was compiled {PIECE_RECOMPILES} times; it ran eagerly from then on")

    def count(self) -> None:
        """Run once without Dynamo, to see how often and through which modules each break is reached."""
        if not self._breaks:
            return
        self._progress(f"graph breaks: {len(self._breaks)}; counting how often each is reached")
        with quiet_process(echo=False), self._grad_mode():
            reached = watch_lines(self._calls(), {(one.file, one.line) for one in self._breaks})
        self._breaks = with_reach(self._breaks, reached.places)
        self._modules = reached.modules

    def findings(self) -> GraphFindings:
        """Return what there is, marked as incomplete where a run is missing."""
        seen = self._seen
        obstacles = [*self._search.obstacles, *self._obstacles]
        left_out = seen.limited or any(event.skipped or event.rest_skipped for event in seen.events)
        whole = not obstacles if self._looked_past else not left_out
        summary = GraphSummary(
            backend=self._backend,
            graph_count=len(seen.graphs),
            break_sites=len(self._breaks),
            recompile_count=len(seen.recompiles),
            skipped_frames=len({event.code for event in seen.events if event.skipped}),
            warnings=(*self._warnings(), *(f"not looked past: {one}" for one in obstacles)),
            complete=self.ended and whole,
            modules=self._modules,
        )
        return GraphFindings(
            graphs=tuple(seen.graphs), breaks=tuple(self._breaks), recompiles=tuple(seen.recompiles), summary=summary
        )

    def _warnings(self) -> list[str]:
        # What a break's own explanation says already is left out.
        explained = [_one_line(one.explanation) for one in self._breaks]
        texts = dict.fromkeys(_FILE.sub(lambda found: shown_path(found.group()), one) for one in self._seen.warnings)
        return [one for one in texts if not any(text and _one_line(one).startswith(text) for text in explained)]

    def _run(self, run: _Run, more: Iterable[Sequence[object]], *, echo: bool) -> None:
        call = self._calls()
        capture = GraphCapture(self._backend, call.names)
        log = BreakLog()
        caught = []
        torch._dynamo.reset()
        try:
            with contextlib.ExitStack() as stack:
                stack.callback(torch._dynamo.reset)
                caught = stack.enter_context(quiet_process(echo=echo))
                stack.enter_context(log)
                stack.enter_context(self._grad_mode())
                compiled = torch._dynamo.optimize(
                    capture, guard_export_fn=capture.count_guards, guard_fail_fn=capture.note_failure
                )(call.target)
                try:
                    compiled(*call.args, **call.kwargs)
                    for args in more:
                        compiled(*args, **call.kwargs)
                except Exception as error:
                    run.error = error
        finally:
            run.events = log.events
            # A function that ran into a limit runs eagerly from then on, and no break is logged for it.
            run.limited = any(_LIMIT.search(one) for one in log.notices)
            run.graphs, run.recompiles = capture.graphs(), capture.recompiles()
            run.warnings = [
                *(str(one.message) for one in caught if is_library(one.filename) or "Dynamo" in str(one.message)),
                # What torch says of breaks is in their records, and how it logs is no matter here.
                *(one.partition("\nTo log all")[0] for one in log.notices if not one.startswith("Graph break")),
            ]

    def _grad_mode(self) -> contextlib.AbstractContextManager[object]:
        return torch.enable_grad() if self._grad else torch.no_grad()

    def _crash(self, error: Exception) -> TargetCrash:
        try:
            with quiet_process(echo=False), self._grad_mode():
                self._calls().run()
        except Exception as plain:
            return TargetCrash(
                f"graph breaks: expected a call that runs; without Dynamo, too, it raises {_in_words(plain)}. "
                "Make a plain call work first."
            )
        return TargetCrash(
            f"graph breaks: the call runs by itself, and under Dynamo (backend {self._backend!r}) it raises "
            f"{_in_words(error)}. Narrow it down with `workbench bisect`."
        )


@dataclass(slots=True)
class _Run:
    events: Sequence[BreakEvent] = ()
    graphs: Sequence[CapturedGraph] = ()
    recompiles: Sequence[Recompile] = ()
    warnings: Sequence[str] = ()
    error: Exception | None = None
    limited: bool = False


def _in_words(error: Exception) -> str:
    # Torch adds paragraphs of advice below what went wrong.
    return f"{type(error).__name__}: {_one_line(str(error).strip().partition(chr(10) * 2)[0])}"


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _tell_nobody(_text: str) -> None:
    return None
