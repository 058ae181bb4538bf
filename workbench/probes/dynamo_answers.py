"""What torch's own tools say of a call: `torch._dynamo.explain` and `fullgraph=True`, to be set beside our list.

Both miss breaks: `explain` those in loops, in skipped frames and before the first operation, `fullgraph=True` those it
can capture in its own way (reading a number off a tensor). Not for finding breaks; see `graphs`.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch._dynamo

from workbench.probes.break_log import BreakFrame, BreakLog
from workbench.probes.break_sites import user_frames
from workbench.probes.observed_call import ObservedCall, quiet_process


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedBreak:
    """One entry of `explain`'s list of break reasons.

    Attributes:
        reason: first line of it.
        frame: the user's innermost line, None where it gives none.
    """

    reason: str
    frame: BreakFrame | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """What `torch._dynamo.explain` says.

    Attributes:
        graph_count, graph_break_count, op_count: as it gives them; the second is the first less one.
        breaks: its list of break reasons.
    """

    graph_count: int
    graph_break_count: int
    op_count: int
    breaks: tuple[ExplainedBreak, ...]

    @property
    def lines(self) -> frozenset[tuple[str, int]]:
        """File and line of every break it lists."""
        return frozenset((one.frame.file, one.frame.line) for one in self.breaks if one.frame is not None)


def explain(call: ObservedCall) -> Explained:
    """Return the answer of `torch._dynamo.explain`; the call is made."""
    with _quiet():
        answer = torch._dynamo.explain(call.target)(*call.args, **call.kwargs)
    breaks: list[ExplainedBreak] = []
    for one in answer.break_reasons:
        frames = [
            BreakFrame(file=item.filename, line=item.lineno or 0, function=item.name)
            for item in one.user_stack
            if isinstance(item, traceback.FrameSummary)
        ]
        reason = str(one.reason).strip().partition("\n")[0]
        breaks.append(ExplainedBreak(reason=reason, frame=user_frames(frames)[0] if frames else None))
    return Explained(
        graph_count=answer.graph_count,
        graph_break_count=answer.graph_break_count,
        op_count=answer.op_count,
        breaks=tuple(breaks),
    )


def fullgraph_error(call: ObservedCall) -> Exception | None:
    """Return what `torch.compile(fullgraph=True)` raises, None when it compiles and runs."""
    with _quiet():
        compiled = torch.compile(call.target, backend="eager", fullgraph=True)
        try:
            compiled(*call.args, **call.kwargs)
        except Exception as error:
            return error
    return None


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    torch._dynamo.reset()
    with quiet_process(echo=False), BreakLog():
        try:
            yield
        finally:
            torch._dynamo.reset()
