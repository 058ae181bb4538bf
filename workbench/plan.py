"""What a session will do, as a value: which model, which inputs, where each side runs, what counts as equal.

JSON in, JSON out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

from workbench.errors import PlanError
from workbench.records.base import Json, from_plain, to_plain

if TYPE_CHECKING:
    from port.checkpoint.index import Checkpoint

DeviceName = Literal["host", "dry", "virtual", "neuron"]
Residency = Literal["stream", "resident"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where and how one side runs.

    Attributes:
        device: "host" (CPU, real numbers), "dry" (fake tensors on `neuron:i`, no numbers), "virtual" or "neuron".
        index: logical core.
        profile: name of the numeric profile (`fp32`, `fp32kv`, `fp32q`, `bf16`, `D`), for models that have profiles.
        compile: Dynamo backend, None for eager.
        fullgraph: with `compile`, refuse graph breaks.
        moe: which experts a mixture walks: "hit" only those chosen (reads ids on the host), "all" every one, with fixed
            shapes; None for "all" where shapes must be fixed (dry or compiled) and "hit" elsewhere. The bits are the
            same.
    """

    device: DeviceName = "host"
    index: int = 0
    profile: str = "fp32"
    compile: str | None = None
    fullgraph: bool = False
    moe: Literal["hit", "all"] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """Enough to rebuild the input tensors.

    Attributes:
        prompt: text, tokenised with the checkpoint's tokenizer; or
        token_ids: one tuple of ids per sequence.
        seed: of everything random.
        max_tokens: decode steps after the prefill.
    """

    prompt: str | None = None
    token_ids: tuple[tuple[int, ...], ...] | None = None
    seed: int = 0
    max_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """When two tensors count as equal; without a reason it does not construct.

    Attributes:
        reason: why these figures.
        atol: absolute part.
        rtol: part relative to the reference element.
        rel_l2: limit on the norm of the difference over the norm of the reference, None for no such rule.
        steps: limit in steps (ULP) of the coarser dtype, None for no such rule.
        names: pattern (`fnmatch`) of the tensors it holds for.
    """

    reason: str
    atol: float = 0.0
    rtol: float = 0.0
    rel_l2: float | None = None
    steps: float | None = None
    names: str = "*"

    def __post_init__(self) -> None:
        if not self.reason.strip():
            raise PlanError("Tolerance: expected a reason in words, got an empty one; say why these figures are right")
        limits = {"atol": self.atol, "rtol": self.rtol, "rel_l2": self.rel_l2, "steps": self.steps}
        bad = {name: value for name, value in limits.items() if value is not None and not value >= 0}
        if bad:
            raise PlanError(f"Tolerance: expected figures of at least 0, got {bad}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything a session needs to run, and a replay to run again.

    Attributes:
        model: name in `workbench.models` ("deepseek_v41") or "module" for a user's own module.
        checkpoint: folder of the checkpoint, None for a user's module.
        source: for "module": `file.py` holding `build_model()` and `example_inputs()`, None when the object
            was handed over.
        inputs: what is fed.
        reference, candidate: the two sides; a session without candidate only steps and observes.
        golden: folder with golden data that takes the reference's part, None otherwise.
        tolerances: the first whose pattern fits holds; exact where none fits.
        layers: half-open range of layers to run, None for all.
        residency: "stream" keeps one step's weights at a time, "resident" all.
    """

    model: str = "deepseek_v41"
    checkpoint: str | None = None
    source: str | None = None
    inputs: Inputs = field(default_factory=Inputs)
    reference: Placement = field(default_factory=Placement)
    candidate: Placement | None = None
    golden: str | None = None
    tolerances: tuple[Tolerance, ...] = ()
    layers: tuple[int, int] | None = None
    residency: Residency = "resident"

    def to_json(self) -> dict[str, Json]:
        """Return the plan as JSON-able values."""
        return cast("dict[str, Json]", to_plain(self))

    def check(self, checkpoint: Checkpoint | None = None) -> None:
        """Raise where the plan cannot be carried out, before anything is loaded.

        Args:
            checkpoint: opened already; opened here when None.

        Raises:
            PlanError: with every problem found, one a line.
        """
        if self.model != "deepseek_v41":
            return
        from workbench.models import checkpoint_of
        from workbench.plan_check import plan_problems

        opened = checkpoint if checkpoint is not None else checkpoint_of(self)
        if problems := plan_problems(self, opened.model_config()):
            raise PlanError("\n".join(problems))

    @classmethod
    def from_json(cls, body: Mapping[str, object]) -> Plan:
        """Return the plan a JSON object stands for.

        Raises:
            JournalError: a field is missing or of the wrong type.
        """
        return from_plain(cls, body, where="plan: ")

    @classmethod
    def load(cls, path: str | Path) -> Plan:
        """Return the plan stored as JSON at `path`.

        Raises:
            PlanError: the file is unreadable or not a JSON object.
        """
        try:
            body = json.loads(Path(path).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise PlanError(f"cannot read the plan {path}: {error}") from error
        if not isinstance(body, dict):
            raise PlanError(f"plan {path}: expected a JSON object, found {type(body).__name__}")
        return cls.from_json(cast("Mapping[str, object]", body))
