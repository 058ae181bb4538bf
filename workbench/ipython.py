"""The notebook face: `%load_ext workbench.ipython` gives the line magic `%wb`, and widgets show their views here.

    %load_ext workbench.ipython
    %wb plan fixtures/tiny_v41 --world-size 2

The one module that may import IPython. It adds no way of its own to do anything: `%wb` is the command line.
"""

from __future__ import annotations

import contextlib
import io
import shlex
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TextIO

from workbench.cli import main
from workbench.exit_codes import MEANING, ExitCode
from workbench.views.base import View

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class _Shell(Protocol):
    """What this module needs of an IPython shell."""

    def register_magic_function(self, func: Callable[[str], None], magic_kind: str, magic_name: str) -> None:
        """Make a function a magic."""
        ...


class Picture(View, Protocol):
    """A view that can be drawn."""

    def figure(self) -> Figure:
        """Return it as a matplotlib figure."""
        ...


def load_ipython_extension(shell: _Shell) -> None:
    """Register `%wb`; called by `%load_ext workbench.ipython`."""
    shell.register_magic_function(wb, "line", "wb")


def wb(line: str) -> None:
    """Run one `workbench` command in this process: `%wb COMMAND ...`, as on the command line.

    Its text is printed; progress is shown in one line that does not stay. An exit code other than 0 is told of with its
    meaning, below the last thing the command said.
    """
    progress = _OneLine(sys.stdout)
    with contextlib.redirect_stderr(progress), contextlib.redirect_stdout(_Answer(sys.stdout, progress)):
        try:
            code = main(shlex.split(line))
        except SystemExit as ended:
            # argparse ends with this after --help and after wrong arguments; the kernel goes on.
            code = ended.code if isinstance(ended.code, int) else ExitCode.WRONG_USE
    progress.erase()
    if code:
        meaning = MEANING[ExitCode(code)] if code in list(ExitCode) else "interrupted"
        sys.stderr.write(f"{progress.last}exit code {int(code)}: {meaning}\n")


class _Answer(io.TextIOBase):
    """A stream that takes the progress line away before it writes."""

    def __init__(self, stream: TextIO, progress: _OneLine) -> None:
        self._stream = stream
        self._progress = progress

    def write(self, text: str) -> int:
        """Write `text`."""
        self._progress.erase()
        return self._stream.write(text)


class _OneLine(io.TextIOBase):
    """A stream whose every text replaces the one before, as a notebook's cell shows it."""

    def __init__(self, stream: TextIO) -> None:
        self.last = ""
        self._stream = stream
        self._width = 0

    def write(self, text: str) -> int:
        """Show the last line of `text` in place of what is shown."""
        lines = text.splitlines()
        if lines:
            self.last = text
            self.erase()
            self._width = len(lines[-1])
            self._stream.write(lines[-1])
            self._stream.flush()
        return len(text)

    def erase(self) -> None:
        """Leave an empty line to write on."""
        if self._width:
            self._stream.write("\r" + " " * self._width + "\r")
            self._width = 0


def show_live(widget: object, table: View, picture: Picture) -> Callable[[View, Picture], None]:
    """Show a widget with two views below it, and return what replaces them with newer ones.

    The views are ordinary outputs of the cell, so that a saved notebook shows the last ones without a kernel.
    """
    from IPython.display import display

    display(widget)
    below = display(table, display_id=True)
    drawn = display(_drawing(picture), raw=True, display_id=True)
    assert below is not None, "display returns a handle where an id was asked for"
    assert drawn is not None, "display returns a handle where an id was asked for"

    def replace(table: View, picture: Picture) -> None:
        below.update(table)
        drawn.update(_drawing(picture), raw=True)

    return replace


def _drawing(picture: Picture) -> dict[str, object]:
    drawn = io.BytesIO()
    picture.figure().savefig(drawn, format="png", dpi=80)
    return {"image/png": drawn.getvalue(), "text/plain": str(picture)}
