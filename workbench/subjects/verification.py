"""The model of a text side held against golden data, as records."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

from workbench.errors import StepError
from workbench.records import CheckRow
from workbench.subjects.base import Side
from workbench.subjects.text_side import TextSide


def verify_side(
    side: Side, golden: Path, mode: str, prompts: tuple[str, ...], progress: Callable[[str], None] | None = None
) -> Iterator[CheckRow]:
    """Yield a record per check, as they are made.

    Args:
        side: a side that runs the text model with numbers.
        golden: folder in the golden format.
        mode: which of its modes.
        prompts: names of golden prompts, all when empty.
        progress: told after every prompt.

    Raises:
        StepError: the side runs something else, or has no numbers.
        PortError: no such folder, mode or prompt.
    """
    from port.verify import Mode, verify

    if not isinstance(side, TextSide) or not side.has_numbers:
        raise StepError("verify needs a side that runs the text model with numbers; this one does not.")

    def told(done: int, most: int, name: str) -> None:
        if progress is not None:
            progress(f"verify: {done} of {most} prompts ({name})")

    with side.whole_model() as text_model:
        for row in verify(text_model, golden, mode=cast("Mode", mode), prompts=prompts, progress=told):
            yield CheckRow(
                subject=row.prompt,
                check=row.check,
                passed=row.passed,
                worst=row.worst,
                limit=row.limit,
                note=row.note,
            )
