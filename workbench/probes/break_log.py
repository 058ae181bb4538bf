"""Listens to Dynamo's graph-break log while a call is compiled, and keeps what it says as structured events.

Dynamo raises one exception per break and reports it to the `graph_breaks` artifact logger while it handles it. So a
handler on that logger sees every break, also those `torch._dynamo.explain` never shows (in loops, in skipped frames,
before the first operation), and can read kind, message and user stack from the exception rather than from the text.
Nothing of Dynamo is replaced; handlers and levels are restored on leaving.
"""

from __future__ import annotations

import logging
import re
import sys
import traceback
from dataclasses import dataclass
from types import CodeType, FrameType, TracebackType

from torch._logging._internal import getArtifactLogger

LOGGERS: tuple[str, ...] = ("torch._dynamo.symbolic_convert", "torch._dynamo.convert_frame")
"""Modules of Dynamo that report breaks. `torch._dynamo.exc` repeats some of them in another form and is left out."""

NOTICES = "torch._dynamo"
"""Logger whose handlers print Dynamo's advice to the terminal; kept as `notices` instead."""

_LOOP = "graph break in loop"
_SECOND = "*** While handling this graph break, another graph break occurred: ***"
_PLACE = re.compile(r"in user code at (?P<file>.+):(?P<line>\d+)$", re.MULTILINE)
_RESUMED = re.compile(r"torch_dynamo_resume_in_(?P<name>.+)_at_\d+$")


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakFrame:
    """One frame of the traced program.

    Attributes:
        file: path as the code object has it.
        line: from 1.
        function: name; a frame that goes on after a break has the name of the function it continues.
    """

    file: str
    line: int
    function: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakEvent:
    """One record of Dynamo's log.

    Attributes:
        message: what the exception says: reason, explanation, hints, debug context.
        frames: the traced program's frames, outermost first; empty when Dynamo gives none.
        code: the code object that was being compiled, None when it could not be seen.
        skipped: this code runs eagerly as a whole.
        rest_skipped: what comes after the break in this code runs eagerly, the part before is compiled.
        in_loop: skipped because the break sits in a loop.
    """

    message: str
    frames: tuple[BreakFrame, ...]
    code: CodeType | None
    skipped: bool
    rest_skipped: bool
    in_loop: bool

    @property
    def reason(self) -> str:
        """Dynamo's words for the kind: first line of the message."""
        return self.message.strip().partition("\n")[0].strip()

    @property
    def explanation(self) -> str:
        """Dynamo's explanation of the first break the message tells of; the whole rest where it has no such part."""
        first = self.message.partition(_SECOND)[0]
        found = re.search(r"^  Explanation: (.*?)(?=^  Hint: |^\s*Developer debug context:|\Z)", first, re.M | re.S)
        if found is None:
            return _unwrap(first.strip().partition("\n")[2])
        return _unwrap(found.group(1))

    @property
    def hints(self) -> tuple[str, ...]:
        """Dynamo's hints for the first break the message tells of."""
        first = self.message.partition(_SECOND)[0].partition("Developer debug context:")[0]
        return tuple(_unwrap(part) for part in re.split(r"^  Hint: ", first, flags=re.M)[1:])


class BreakLog(logging.Handler):
    """Context manager that collects `events` and Dynamo's printed `notices`; a logging handler while it is entered."""

    def __init__(self) -> None:
        super().__init__(level=logging.DEBUG)
        self.events: list[BreakEvent] = []
        self.notices: list[str] = []
        self._levels: list[tuple[logging.Logger, int, bool]] = []
        self._muted: list[logging.Handler] = []

    def __enter__(self) -> BreakLog:
        for name in LOGGERS:
            logger = getArtifactLogger(name, "graph_breaks")
            self._levels.append((logger, logger.level, logger.propagate))
            if not logger.isEnabledFor(logging.DEBUG):
                # The user did not ask for this log, so it must not reach the handlers further up.
                logger.propagate = False
                logger.setLevel(logging.DEBUG)
            logger.addHandler(self)
        self._muted = list(logging.getLogger(NOTICES).handlers)
        for handler in self._muted:
            handler.addFilter(self._keep_notice)
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _where: TracebackType | None
    ) -> None:
        for handler in self._muted:
            handler.removeFilter(self._keep_notice)
        for logger, level, propagate in self._levels:
            logger.removeHandler(self)
            logger.setLevel(level)
            logger.propagate = propagate
        self._levels.clear()
        self._muted.clear()

    def _keep_notice(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING:
            return True
        text = record.getMessage()
        if text not in self.notices:
            self.notices.append(text)
        return False

    def emit(self, record: logging.LogRecord) -> None:
        """Turn one log record into an event."""
        error = record.exc_info[1] if record.exc_info else sys.exc_info()[1]
        caller = _caller(("log_graph_break", "__call__"))
        if error is None and caller is not None and isinstance(caller.f_locals.get("exc"), BaseException):
            # A break at a jump is reported after its exception was handled.
            error = caller.f_locals["exc"]
        text = record.getMessage()
        message = str(getattr(error, "msg", "")) or _message_of_text(text)
        whole = (
            record.name.startswith("torch._dynamo.convert_frame") or "Skipping the function and falling back" in text
        )
        self.events.append(
            BreakEvent(
                message=message,
                frames=_frames(error, text),
                code=_code(caller),
                skipped=whole,
                rest_skipped="then skipping the rest of the function" in text,
                in_loop=_LOOP in message,
            )
        )


def original_name(function: str) -> str:
    """Return the name of the user's function a traced frame belongs to."""
    found = _RESUMED.match(function)
    while found is not None:
        function = found.group("name")
        found = _RESUMED.match(function)
    return function


def _caller(names: tuple[str, ...]) -> FrameType | None:
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        if frame.f_code.co_name in names and "_dynamo" in frame.f_code.co_filename:
            return frame
        frame = frame.f_back
    return None


def _code(caller: FrameType | None) -> CodeType | None:
    if caller is None:
        return None
    owner = caller.f_locals.get("self")
    root = getattr(getattr(owner, "output", None), "root_tx", None)
    for code in (getattr(root, "f_code", None), getattr(caller.f_locals.get("frame"), "f_code", None)):
        if isinstance(code, CodeType):
            return code
    return None


def _frames(error: BaseException | None, text: str) -> tuple[BreakFrame, ...]:
    stack = getattr(error, "real_stack", None)
    if stack:
        return tuple(
            BreakFrame(file=item.filename, line=item.lineno or 0, function=original_name(item.name))
            for item in stack
            if isinstance(item, traceback.FrameSummary)
        )
    found = _PLACE.search(text)
    if found is None:
        return ()
    return (BreakFrame(file=found.group("file"), line=int(found.group("line")), function=""),)


def _message_of_text(text: str) -> str:
    body = text.partition("Graph Break Reason: ")[2] or text
    head, gap, rest = body.partition("\n\n")
    return rest if gap and head.rstrip().endswith(":") else body


def _unwrap(text: str) -> str:
    return " ".join(text.split())
