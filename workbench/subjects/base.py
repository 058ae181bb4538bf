"""The seam between a session and what it runs: one side, advanced one step at a time.

A side owns its model and its position. It never looks at the other side except through a `Feed`, the input of a step
as the other side saw it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from workbench.devices.base import Device
from workbench.stepper import StepPoint


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """What one step showed.

    Attributes:
        tensors: intermediates by name, in the order they were made; copies.
        outputs: names among them that are handed to the next step.
        weight_bytes: read from the checkpoint for this step, 0 when resident.
    """

    tensors: Mapping[str, Tensor]
    outputs: tuple[str, ...]
    weight_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A part of a subject as a plain call: what the memory, graph and compile probes look at.

    Attributes:
        name: what it is, in words.
        function: to be called with `args`; works on copies of its arguments too.
        args: positional arguments.
        kwargs: keyword arguments.
        module: root for module paths, None where there is none.
        cache: what among the arguments is cache by design.
    """

    name: str
    function: Callable[..., object]
    args: tuple[object, ...]
    kwargs: Mapping[str, object]
    module: nn.Module | None
    cache: object = ()


class Side(Protocol):
    """One side of a session."""

    @property
    def points(self) -> tuple[StepPoint, ...]:
        """The program, in order."""
        ...

    @property
    def position(self) -> int:
        """Points already run."""
        ...

    @property
    def has_numbers(self) -> bool:
        """False for a dry side: shapes only."""
        ...

    @property
    def device(self) -> Device | None:
        """Where the side runs; None for data from files."""
        ...

    @property
    def precision(self) -> torch.dtype | None:
        """Coarsest format the side computes in; None for that of the tensors it shows."""
        ...

    def advance(self) -> Observed:
        """Run the next point."""
        ...

    def feed(self, index: int) -> object | None:
        """Return the input of a point that has run, for another side's `alone`; None where it is not known."""
        ...

    def alone(self, index: int, feed: object) -> Observed:
        """Run one point on another side's input and leave the own run as it was; the point must have run here."""
        ...

    def rewind(self, position: int) -> None:
        """Go back, as if only the first `position` points had run; edits made after it are gone."""
        ...

    def tensors(self) -> Mapping[str, Tensor]:
        """Return what the next point will read, by name; these can be edited."""
        ...

    def edit(self, name: str, tensor: Tensor) -> None:
        """Put a tensor in the place of one of `tensors()`, or of an intermediate still to come."""
        ...

    def call(self, module: str, phase: str) -> Call:
        """Return the part called `module` ("" for everything) as a plain call, in a state of its own."""
        ...

    def close(self) -> None:
        """Give back what the side holds; it cannot be advanced after that."""
        ...
