"""Two implementations of one function, or of a stack of layers, compared on inputs of their own.

Each side gets its own copy of every input, strides kept, so that a side that changes its input cannot help or hurt the
other; what was changed is reported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from workbench.compare.search import Found, culprit, first_difference
from workbench.compare.tensors import compare_tensors
from workbench.plan import Tolerance
from workbench.records import Stamp, TensorDiff
from workbench.records.tensors import Verdict
from workbench.trees import clone_tensors, named_tensors

Inputs = tuple[object, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SideRun:
    """What one side did.

    Attributes:
        outputs: tensors by name (`out`, `out.0`, ...), on the device they were made on.
        value: what the callable returned, None when it raised.
        mutated: inputs whose values changed during the call, by name.
        error: type and message of what it raised, None when it returned.
    """

    outputs: dict[str, Tensor]
    value: object
    mutated: tuple[str, ...]
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CallableComparison:
    """A pair of callables compared.

    Attributes:
        reference, candidate: what each side did.
        diffs: one per output name of either side.
        missing: output names that only one side has.
    """

    reference: SideRun
    candidate: SideRun
    diffs: tuple[TensorDiff, ...]
    missing: tuple[str, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """`match` only when both returned the same outputs and every one of them matches."""
        if self.reference.error or self.candidate.error or self.missing:
            return "differ" if bool(self.reference.error) != bool(self.candidate.error) else "incomparable"
        return worst_verdict(diff.verdict for diff in self.diffs)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayersComparison:
    """A stack of layers compared.

    Attributes:
        accumulated: one per layer, the candidate fed by itself.
        isolated: one per layer, the candidate fed the reference's input.
        culprit: the layer whose isolated error is out of tolerance and stands out from the others, None when none.
        first: the first layer after which the accumulated error is out of tolerance.
    """

    accumulated: tuple[TensorDiff, ...]
    isolated: tuple[TensorDiff, ...]
    culprit: int | None
    first: Found = field(default_factory=lambda: Found(index=None, comparisons=0))


def worst_verdict(verdicts: Iterable[Verdict]) -> Verdict:
    """Return `incomparable` where any is, else `differ` where any is, else `match`."""
    seen = set(verdicts)
    if "incomparable" in seen:
        return "incomparable"
    return "differ" if "differ" in seen else "match"


def run_side(function: Callable[..., object], inputs: Inputs) -> SideRun:
    """Call `function` on its own copy of `inputs` and return what came; an exception becomes `error`."""
    own = clone_tensors(inputs)
    assert isinstance(own, tuple), "copies of a tuple are a tuple"
    before = {name: tensor.clone() for name, tensor in named_tensors(own, "").items()}
    error, value = None, None
    try:
        with torch.no_grad():
            value = function(*own)
    except Exception as problem:
        error = f"{type(problem).__name__}: {problem}"
    after = named_tensors(own, "")
    mutated = tuple(name for name, old in before.items() if not _same(old, after[name]))
    # An output may alias an input; the copy keeps what the call returned.
    return SideRun(outputs=named_tensors(clone_tensors(value), "out"), value=value, mutated=mutated, error=error)


def compare_callables(
    reference: Callable[..., object],
    candidate: Callable[..., object],
    inputs: Callable[[], Inputs],
    *,
    tolerance: Tolerance | None = None,
) -> CallableComparison:
    """Call both on copies of the same inputs and compare every output tensor.

    Args:
        reference: the side that is trusted.
        candidate: the side under test.
        inputs: makes the arguments; called once.
        tolerance: the rule, None for the default of each pair of outputs.
    """
    handed = inputs()
    one, two = run_side(reference, handed), run_side(candidate, handed)
    common = [name for name in one.outputs if name in two.outputs]
    diffs = tuple(
        compare_tensors(name, one.outputs[name], two.outputs[name], tolerance=tolerance, error="isolated")
        for name in common
    )
    missing = tuple(name for name in dict.fromkeys([*one.outputs, *two.outputs]) if name not in common)
    return CallableComparison(reference=one, candidate=two, diffs=diffs, missing=missing)


def compare_layers(
    reference: Callable[[int, Tensor], Tensor],
    candidate: Callable[[int, Tensor], Tensor],
    layers: int,
    hidden_states: Tensor,
    *,
    tolerance: Tolerance | None = None,
    names: Sequence[str] | None = None,
) -> LayersComparison:
    """Run two stacks of layers on the same input and tell the error each layer makes from the error it inherits.

    Args:
        reference: `(layer, hidden_states) -> hidden_states`, the side that is trusted.
        candidate: the same for the side under test.
        layers: how many.
        hidden_states: what enters layer 0.
        tolerance: the rule, None for the default of each pair.
        names: of the layers, for the records.
    """
    labels = list(names or (f"layers.{layer}" for layer in range(layers)))
    accumulated: list[TensorDiff] = []
    isolated: list[TensorDiff] = []
    trusted, drifting = hidden_states.clone(), hidden_states.clone()
    with torch.no_grad():
        for layer in range(layers):
            alone = candidate(layer, trusted.clone())
            trusted = reference(layer, trusted.clone())
            drifting = candidate(layer, drifting.clone())
            pairs: tuple[tuple[list[TensorDiff], Tensor, Literal["isolated", "accumulated"]], ...] = (
                (isolated, alone, "isolated"),
                (accumulated, drifting, "accumulated"),
            )
            for diffs, found, error in pairs:
                stamp = Stamp(step=layer, module=labels[layer])
                diffs.append(
                    compare_tensors(labels[layer], trusted, found, tolerance=tolerance, error=error, stamp=stamp)
                )
    return LayersComparison(
        accumulated=tuple(accumulated),
        isolated=tuple(isolated),
        culprit=find_culprit(isolated),
        first=first_difference(layers, lambda layer: accumulated[layer].verdict != "match"),
    )


def find_culprit(isolated: Sequence[TensorDiff]) -> int | None:
    """Return the position of the step whose isolated error stands out, None when none does.

    A step stands out when its error is more than five times the median of the others, or when it alone is out of
    tolerance.
    """
    wrong = [number for number, diff in enumerate(isolated) if diff.verdict != "match"]
    if len(wrong) == 1:
        return wrong[0]
    errors = [_size(diff) for diff in isolated]
    standing_out = culprit(errors)
    return standing_out if not wrong or standing_out in wrong else None


def _size(diff: TensorDiff) -> float:
    if diff.verdict == "incomparable" or diff.max_abs is None or diff.rel_l2 is None:
        return float("inf")
    return float("inf") if diff.max_abs != diff.max_abs else diff.rel_l2


def _same(one: Tensor, two: Tensor) -> bool:
    if one.shape != two.shape or one.dtype != two.dtype:
        return False
    return bool(((one == two) | ((one != one) & (two != two))).all()) if one.numel() else True
