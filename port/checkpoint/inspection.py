"""Everything that can be said about a checkpoint folder without refusing it: for tools that list problems."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from port.checkpoint.folder import FolderContents, read_folder
from port.checkpoint.index import Checkpoint, checkpoint_of
from port.checkpoint.problems import Problem, errors_in

Outcome = Literal["load", "warn", "refuse_tensors", "refuse"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointReport:
    """What a folder holds and everything wrong with it.

    Attributes:
        contents: folder, index and shards as found.
        checkpoint: the readable part, as `open_checkpoint(..., strict=False)` gives it.
    """

    contents: FolderContents
    checkpoint: Checkpoint

    @property
    def problems(self) -> tuple[Problem, ...]:
        """All problems: of the folder first, then of single tensors."""
        return self.checkpoint.problems

    @property
    def outcome(self) -> Outcome:
        """What opening does: "refuse" the folder, "refuse_tensors" on use, "warn" and go on, or simply "load"."""
        if errors_in(self.contents.problems):
            return "refuse"
        if errors_in(self.problems):
            return "refuse_tensors"
        return "warn" if any(problem.severity == "warning" for problem in self.problems) else "load"


def inspect_checkpoint(path: str | Path) -> CheckpointReport:
    """Return a report on a checkpoint folder; raises for nothing the folder contains.

    Args:
        path: the folder, or a single `.safetensors` file.
    """
    contents = read_folder(path)
    return CheckpointReport(contents=contents, checkpoint=checkpoint_of(contents))
