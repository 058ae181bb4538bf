"""Which line of the user's code is running, or was running when an error came.

The user's is every line that belongs to neither torch, nor the standard library, nor this package; the model of the
port counts as the user's.
"""

from __future__ import annotations

import linecache
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType, TracebackType

from workbench.probes.user_code import is_library, shown_path

_OURS = str(Path(__file__).parent) + os.sep
_known: dict[CodeType, bool] = {}


@dataclass(frozen=True, slots=True)
class UserLine:
    """One line of source.

    Attributes:
        file: absolute path, or a name such as `<ipython-input-3>`.
        line: from 1.
        function: that holds it.
    """

    file: str
    line: int
    function: str

    @property
    def text(self) -> str:
        """The line's text without its indent, "" where it cannot be read."""
        return linecache.getline(self.file, self.line).strip()

    def __str__(self) -> str:
        return f"{shown_path(self.file)}:{self.line} {self.function}"


def running_line(*, depth: int = 1) -> UserLine | None:
    """Return the innermost line of the user's that is running now; None where none is.

    Args:
        depth: frames to leave out, the caller's own counted as 1.
    """
    frame: FrameType | None = sys._getframe(depth)
    while frame is not None:
        code = frame.f_code
        mine = _known.get(code)
        if mine is None:
            mine = _known.setdefault(code, is_user_code(code.co_filename))
        if mine:
            return UserLine(code.co_filename, frame.f_lineno, code.co_name)
        frame = frame.f_back
    return None


def failing_line(traceback: TracebackType | None) -> UserLine | None:
    """Return the innermost line of the user's in a traceback; None where there is none."""
    found = None
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if is_user_code(code.co_filename):
            found = UserLine(code.co_filename, traceback.tb_lineno, code.co_name)
        traceback = traceback.tb_next
    return found


def is_user_code(file: str) -> bool:
    """Say whether a file is the user's."""
    return not file.startswith(_OURS) and not is_library(file)
