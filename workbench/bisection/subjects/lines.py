"""A graph file with one operation a line: any subset of the lines is a smaller graph."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from workbench.bisection.subjects.base import Subject, SubjectKind, WrittenSubject
from workbench.errors import PlanError


class LineSubject:
    """The lines of a text; empty ones are left out, the others stay word for word.

    Attributes:
        items: the lines without the white space around them.
    """

    kind: SubjectKind = "lines"
    level = "lines"

    def __init__(self, lines: Sequence[str], *, name: str = "graph.txt") -> None:
        self._lines = [line for line in lines if line.strip()]
        self._name = name
        self.items = tuple(line.strip() for line in self._lines)

    @classmethod
    def read(cls, path: str | Path) -> LineSubject:
        """Return the lines of a file.

        Raises:
            PlanError: the file cannot be read or holds no line.
        """
        file = Path(path)
        try:
            lines = file.read_text(encoding="utf-8").splitlines()
        except (OSError, ValueError) as error:
            raise PlanError(
                f"cannot read the graph file {file}: {error}; expected text, one operation a line"
            ) from error
        subject = cls(lines, name=file.name)
        if not subject.items:
            raise PlanError(f"{file}: expected at least one line to narrow, found none")
        return subject

    def content(self, kept: Sequence[int]) -> str:
        """Return the lines kept."""
        return "".join(self._lines[index] + "\n" for index in kept)

    def write(self, kept: Sequence[int], folder: Path) -> WrittenSubject:
        """Write the lines kept, under the name the file had."""
        file = folder / self._name
        file.write_text(self.content(kept), encoding="utf-8")
        return WrittenSubject(kind="lines", file=file, operations=tuple(self.items[index] for index in kept))

    def refined(self, level: str, kept: Sequence[int]) -> Subject:
        """Lines have nothing below them.

        Raises:
            PlanError: any other level than "lines" is asked for.
        """
        if level != self.level:
            raise PlanError(f"level: expected 'lines' for a graph file, found {level!r}")
        return LineSubject([self._lines[index] for index in kept], name=self._name)
