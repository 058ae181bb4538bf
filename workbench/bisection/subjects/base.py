"""The seam between the search and what it narrows: items that can be kept or left out, and a file for a compiler."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

SubjectKind = Literal["lines", "program"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenSubject:
    """What a compiler is given.

    Attributes:
        kind: "lines", a text file with one operation a line; "program", a Python file as `program_source` writes it.
        file: where it stands.
        operations: names of the operations in it, in order.
        values: safetensors file with the inputs of a program, None for lines.
    """

    kind: SubjectKind
    file: Path
    operations: tuple[str, ...]
    values: Path | None = None


class Subject(Protocol):
    """Something that fails to compile, as items in order."""

    @property
    def kind(self) -> SubjectKind:
        """What is written."""
        ...

    @property
    def level(self) -> str:
        """Rung of the ladder, as in `BisectionResult.level`."""
        ...

    @property
    def items(self) -> tuple[str, ...]:
        """Names, in order; the search speaks of them by index."""
        ...

    def content(self, kept: Sequence[int]) -> str:
        """Return all that decides how a compiler answers; the key of the trial cache is made of it."""
        ...

    def write(self, kept: Sequence[int], folder: Path) -> WrittenSubject:
        """Write what is left when only these items are kept into an existing folder."""
        ...

    def refined(self, level: str, kept: Sequence[int]) -> Subject:
        """Return what these items consist of, at a finer level.

        Raises:
            PlanError: this subject has no such level.
        """
        ...
