"""What the port says of one checkpoint folder, from the public API alone: each question asked once, then kept.

A fact may be put in several ways (as names, as records, as sentences); the case takes the one it asks for. Which key of
a case asks for which fact stands in `checkpoint_keys`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeAlias, TypeVar

import torch

from port.checkpoint.index import Checkpoint, open_checkpoint
from port.checkpoint.inspection import CheckpointReport, inspect_checkpoint
from port.checkpoint.problems import Problem
from port.checkpoint.scales import QuantizedEntry
from port.checkpoint.value_tally import ValueReport
from port.checkpoint.values import NonFinite, check_values, find_nonfinite, value_problems
from port.errors import CheckpointError
from port.kernels.exponents import decode_exponents

_Item = TypeVar("_Item")
Answer: TypeAlias = "Sequence[object]"
"""The ways one fact can be put, the plainest first."""


@dataclass(frozen=True)
class CheckpointFacts:
    """Everything asked of one folder, each question once.

    Attributes:
        report: headers, index and pairing of the folder.
    """

    report: CheckpointReport

    @classmethod
    def of(cls, folder: Path) -> CheckpointFacts:
        """Return the facts of a folder, which may be damaged in any way."""
        return cls(inspect_checkpoint(folder))

    @property
    def checkpoint(self) -> Checkpoint:
        """The readable part."""
        return self.report.checkpoint

    @cached_property
    def values(self) -> tuple[ValueReport, ...]:
        """The stored values of every quantised weight that can be read."""
        return check_values(self.checkpoint)

    @cached_property
    def nonfinite(self) -> tuple[NonFinite, ...]:
        """NaN and infinity in tensors stored as plain floats."""
        return find_nonfinite(self.checkpoint)

    @cached_property
    def problems(self) -> tuple[Problem, ...]:
        """Problems of the folder, of single tensors, and of stored values."""
        return (*self.report.problems, *value_problems(self.checkpoint, self.values, self.nonfinite))

    @cached_property
    def outcome(self) -> str:
        """What opening and reading everything comes to: refuse, refuse_tensors, warn or load."""
        if self.report.outcome in ("refuse", "refuse_tensors"):
            return self.report.outcome
        return "warn" if any(problem.severity == "warning" for problem in self.problems) else "load"

    @cached_property
    def quantized(self) -> Mapping[str, QuantizedEntry]:
        """Weights that can be dequantised."""
        return self.checkpoint.pairing.quantized

    @cached_property
    def dequantized(self) -> Mapping[str, torch.Tensor]:
        """Every one of them as float32 numbers."""
        return {name: self.checkpoint.read_quantized(name).dequantize() for name in self.quantized}

    @cached_property
    def scales(self) -> Mapping[str, torch.Tensor]:
        """The scales of every quantised weight as float32 numbers, on the grid of its tiles."""
        return {name: scale_numbers(self.checkpoint, pair) for name, pair in self.quantized.items()}

    def of_kind(self, *kinds: str) -> Answer:
        """Return the problems of some kinds: their tensors, their files, records, sentences, and these by tensor."""
        found = [problem for problem in self.problems if problem.kind in kinds]
        records = [problem_record(problem) for problem in found]
        tensors = [problem.tensor for problem in found if problem.tensor]
        files = [problem.file for problem in found if problem.file]
        by_name = {problem.tensor or problem.file or "": problem for problem in found}
        return (
            tensors or files,
            unique(files),
            unique(tensors),
            records,
            [str(problem) for problem in found],
            {name: problem_record(problem) for name, problem in by_name.items()},
            {name: str(problem) for name, problem in by_name.items()},
        )

    @property
    def leading(self) -> list[Problem]:
        """The problems that decide the outcome: errors, else warnings, else notes."""
        for severity in ("error", "warning", "note"):
            if found := [problem for problem in self.problems if problem.severity == severity]:
                return found
        return []

    @cached_property
    def lost_tensors(self) -> list[str]:
        """Tensors that cannot be read or cannot be dequantised."""
        return sorted({*self.checkpoint.damaged, *self.checkpoint.pairing.refused})

    def message(self) -> str:
        """Return what strict opening says, "" when it opens."""
        try:
            open_checkpoint(self.report.contents.path)
        except CheckpointError as error:
            return str(error)
        return ""


def problem_record(problem: Problem) -> dict[str, object]:
    """Return a problem under the names different authors give its parts."""
    return {
        "kind": problem.kind,
        "problem": problem.kind.replace("_", " "),
        "tensor": problem.tensor,
        "name": problem.tensor,
        "file": problem.file,
        "shard": problem.file,
        "expected": problem.expected,
        "declared": problem.expected,
        "found": problem.found,
        "actual": problem.found,
        "dtype": problem.found,
        "shape": problem.found,
        "remedy": problem.remedy,
        "severity": problem.severity,
    }


def unique(items: Iterable[_Item]) -> list[_Item]:
    """Return the items without repetition, in order."""
    return list(dict.fromkeys(items))


def scale_numbers(checkpoint: Checkpoint, pair: QuantizedEntry) -> torch.Tensor:
    """Return the scales of a weight as float32 numbers, on the grid of its tiles."""
    scale = checkpoint.read_quantized(pair.name).scale
    return scale.to(torch.float32) if pair.scale_kind == "number" else decode_exponents(scale.contiguous())
