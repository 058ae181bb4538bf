"""The order in which sub-layers run: the seam at which a workbench can stop, look, edit and go on."""

from dataclasses import dataclass
from typing import Literal

from port.schedule import LayerSchedule

StepKind = Literal["embed", "engram", "attention", "ffn", "head"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One sub-layer.

    Attributes:
        index: place in the program, from 0.
        module: name of the module that runs, in checkpoint spelling.
        kind: what it is.
        layer: index of the layer; None for the embedding and the head.
        weights: names or name prefixes of the tensors the step needs, in checkpoint spelling.
    """

    index: int
    module: str
    kind: StepKind
    layer: int | None
    weights: tuple[str, ...]


def step_program(schedule: LayerSchedule) -> tuple[Step, ...]:
    """Return every step of a forward pass in order: embedding, the sub-layers of each layer, head."""
    parts: list[tuple[str, StepKind, int | None, tuple[str, ...]]] = [("embed", "embed", None, ("embed",))]
    for role in schedule.roles:
        base = f"layers.{role.layer}"
        if role.has_engram:
            parts.append((f"{base}.engram", "engram", role.layer, (f"{base}.engram",)))
        for part, kind in (("attn", "attention"), ("ffn", "ffn")):
            mixes = tuple(f"{base}.hc_{part}_{name}" for name in ("fn", "base", "scale"))
            weights = (f"{base}.{part}", f"{base}.{part}_norm", *mixes)
            parts.append((f"{base}.{part}", kind, role.layer, weights))  # pyright: ignore[reportArgumentType]
    parts.append(("head", "head", None, ("norm", "head")))
    return tuple(
        Step(index=index, module=module, kind=kind, layer=layer, weights=weights)
        for index, (module, kind, layer, weights) in enumerate(parts)
    )
