"""Everything that can be said of two sides of one computation, by the names people give it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from types import ModuleType
from typing import cast

import torch
from torch import Tensor

from workbench.captures import as_float64
from workbench.compare import (
    CallableComparison,
    Figures,
    LayersComparison,
    compare_callables,
    compare_layers,
    flipped_rows,
    measure,
    step_size,
)
from workbench.errors import PlanError
from workbench.records import TensorDiff
from workbench.trees import clone_tensors, named_tensors
from workbench.units import number_text

_FORMATS = {
    "bf16": torch.bfloat16,
    "bfloat16": torch.bfloat16,
    "fp16": torch.float16,
    "f16": torch.float16,
    "float16": torch.float16,
    "fp32": torch.float32,
    "f32": torch.float32,
    "float32": torch.float32,
    "ulp": None,
}
_MOST_LAYERS = 1024


@dataclass(frozen=True, kw_only=True)
class NumericFacts:
    """Two sides, compared.

    Attributes:
        module: the case's program.
        pair: comparison of two functions, None for a stack of layers.
        stack: comparison of two stacks, None for functions.
        inputs_shared: the inputs handed out were changed by a side, so the two did not get copies.
    """

    module: ModuleType
    pair: CallableComparison | None
    stack: LayersComparison | None
    inputs_shared: bool

    @property
    def diffs(self) -> tuple[TensorDiff, ...]:
        """The comparisons that decide."""
        if self.pair is not None:
            return self.pair.diffs
        assert self.stack is not None, "one of the two was compared"
        return self.stack.isolated

    @property
    def agrees(self) -> bool:
        """Whether the two sides agree under the default rule of their formats."""
        if self.pair is not None:
            return self.pair.verdict == "match"
        return self.culprit is None and all(diff.verdict == "match" for diff in self.diffs)

    @property
    def culprit(self) -> int | None:
        """The layer that is wrong by itself."""
        return None if self.stack is None else self.stack.culprit

    @property
    def largest_accumulated(self) -> int | None:
        """The layer with the largest accumulated error."""
        return None if self.stack is None else _largest(self.stack.accumulated)

    @property
    def largest_isolated(self) -> int | None:
        """The layer with the largest isolated error."""
        return None if self.stack is None else _largest(self.stack.isolated)

    @property
    def failed_by_absolute_limit_alone(self) -> bool:
        """Whether a verdict rests on nothing but an absolute limit."""
        return any(diff.verdict == "differ" and "steps" not in diff.tolerance + diff.note for diff in self.diffs)

    @property
    def judged_beyond_cosine(self) -> bool:
        """Whether figures other than the cosine were made for every tensor, steps included where there are any."""
        return all(diff.rel_l2 is not None and "cosine" not in diff.tolerance for diff in self.diffs)

    @property
    def values_compared(self) -> bool:
        """Whether values, and not shapes alone, were compared."""
        return bool(self.diffs) and all(diff.max_abs is not None for diff in self.diffs)

    @property
    def nonfinite(self) -> bool:
        """Whether NaN or infinity stands on either side."""
        return any(not bool(torch.isfinite(as_float64(tensor)).all()) for pair in self._outputs for tensor in pair)

    @property
    def flipped_rows(self) -> int:
        """Rows whose choice differs: of integer outputs as sets, of others the argmax."""
        return sum(int(_choice_differs(one, two).sum()) for one, two in self._outputs if one.shape == two.shape)

    @cached_property
    def _outputs(self) -> tuple[tuple[Tensor, Tensor], ...]:
        """Outputs of both sides by name, reference first."""
        if self.pair is None:
            return ()
        one, two = self.pair.reference.outputs, self.pair.candidate.outputs
        return tuple((one[name], two[name]) for name in one if name in two)

    @cached_property
    def _figures(self) -> tuple[Figures, ...]:
        return tuple(measure(one, two) for one, two in self._outputs if one.shape == two.shape)

    def said(self) -> str:
        """Return the answer in a sentence."""
        if self.stack is not None:
            if self.culprit is None:
                return "no layer stands out when both sides are fed the same input"
            later = [n for n, diff in enumerate(self.stack.accumulated) if diff.verdict != "match"]
            return (
                f"with the same input fed to both sides only layer {self.culprit} stands out; "
                f"with accumulated inputs layers {later} are out of tolerance"
            )
        assert self.pair is not None, "one of the two was compared"
        parts = [
            f"{diff.name}: {diff.verdict}, max abs {number_text(diff.max_abs)}, "
            f"relative L2 {number_text(diff.rel_l2)}, {number_text(diff.max_steps)} steps; "
            f"held to {diff.tolerance}; {diff.note}"
            for diff in self.pair.diffs
        ]
        for side in (self.pair.reference, self.pair.candidate):
            parts += [side.error] if side.error else []
        if self.pair.reference.mutated or self.pair.candidate.mutated:
            parts.append("a side changes its input, so each got a copy of its own")
        return "; ".join(parts)

    def answers(self, key: str) -> list[object]:
        """Return what can be said to a key of a case, the likeliest reading first; empty for an unknown key."""
        name = key.casefold()
        if self.stack is not None:
            return self._stack_answers(name)
        for pattern, answer in _PAIR_FACTS:
            match = re.fullmatch(pattern, name)
            if match is not None:
                return [_plain(value) for value in answer(self, match)]
        return []

    def _stack_answers(self, name: str) -> list[object]:
        assert self.stack is not None, "asked for a stack only"
        sides = {"isolated": self.stack.isolated, "accumulated": self.stack.accumulated}
        for error, diffs in sides.items():
            figure = name.removeprefix(error + "_")
            if figure != name and diffs and hasattr(diffs[0], figure):
                return [[getattr(diff, figure) for diff in diffs]]
        if name in ("culprit_layer", "culprit", "first_bad_layer", "wrong_layer", "faulty_layer"):
            return [self.culprit]
        if name in ("first_accumulated_layer", "first_difference", "first_divergence", "first_differing_layer"):
            return [self.stack.first.index]
        if name in ("layers", "n_layers", "layer_count"):
            return [len(self.stack.isolated)]
        return []

    def figure(self, pick: Callable[[Figures], float | None]) -> list[object]:
        """Return the largest of a figure over the outputs."""
        values = [pick(one) for one in self._figures]
        found = [value for value in values if value is not None]
        return [max(found, key=lambda value: (value != value, value))] if found else []

    def per_side(self, side: str, function: Callable[[Tensor], object]) -> list[object]:
        """Return a figure of each output of one side, and of the first alone."""
        index = 0 if side in ("host", "reference", "cpu", "eager") else 1
        values = [function(pair[index]) for pair in self._outputs]
        return [values[0], values] if values else []

    def steps(self, name: str, floor: float) -> list[object]:
        """Return the largest difference in steps of a format, over elements of at least this magnitude."""
        values: list[float] = []
        for (one, two), figures in zip(self._outputs, self._figures, strict=False):
            reference, candidate = as_float64(one), as_float64(two)
            dtype = _FORMATS[name] or figures.dtype
            large = reference.abs() >= floor
            if bool(large.any()) and dtype.is_floating_point:
                found = (reference - candidate).abs()[large] / step_size(reference.abs()[large], dtype)
                values.append(found.max().item())
        steps = [max(values)] if values else []
        return [*steps, *(-(-value // 1) for value in steps)]

    def worst_index(self) -> list[object]:
        """Return where the largest difference of the first output sits."""
        return [None if diff.worst_index is None else list(diff.worst_index) for diff in self.diffs[:1]]

    def differing(self) -> int:
        """Return how many elements differ at all."""
        return sum(int(_differs(one, two).sum()) for one, two in self._outputs if one.shape == two.shape)

    def flipped_indices(self) -> list[int]:
        """Return the rows of the first output whose choice differs."""
        one, two = self._outputs[0]
        return [row for row, flipped in enumerate(_choice_differs(one, two).tolist()) if flipped]

    def is_reordered(self) -> bool:
        """Return whether every output holds the same values on both sides, in whatever order."""
        return all(
            torch.equal(as_float64(one).flatten().sort().values, as_float64(two).flatten().sort().values)
            for one, two in self._outputs
        )

    def ratio(self) -> list[object]:
        """Return the one factor between candidate and reference, nothing where there is none."""
        factors = [_factor(one, two) for one, two in self._outputs if one.shape == two.shape]
        return [factors[0]] if factors and all(factor == factors[0] for factor in factors) else []

    def graph_breaks(self) -> int:
        """Return the break sites of the function both sides run, or of the reference."""
        from workbench.probes.graphs import find_graph_breaks

        function = next(getattr(self.module, name) for name in ("f", "fn", "host") if hasattr(self.module, name))
        return len(find_graph_breaks(function, _inputs(self.module)).breaks)


def facts_of(module: ModuleType) -> NumericFacts:
    """Run a case's program on both sides and return what can be said of it.

    Raises:
        PlanError: the program has neither a pair of functions nor a pair of layers.
    """
    if hasattr(module, "host_layer") and hasattr(module, "device_layer"):
        (hidden, *_) = _inputs(module)
        assert isinstance(hidden, Tensor), "what enters a stack of layers is a tensor"
        layers = _layer_count(module, hidden)
        stack = compare_layers(module.host_layer, module.device_layer, layers, hidden)
        return NumericFacts(module=module, pair=None, stack=stack, inputs_shared=False)
    if not (hasattr(module, "host") and hasattr(module, "device")):
        raise PlanError(f"{module.__file__}: expected host and device, or host_layer and device_layer; found neither.")
    handed = _inputs(module)
    before = clone_tensors(handed)
    pair = compare_callables(module.host, module.device, lambda: handed)
    kept = named_tensors(before, "")
    shared = any(not torch.equal(tensor, kept[name]) for name, tensor in named_tensors(handed, "").items())
    return NumericFacts(module=module, pair=pair, stack=None, inputs_shared=shared)


def _inputs(module: ModuleType) -> tuple[object, ...]:
    value = module.inputs()
    return cast("tuple[object, ...]", tuple(value)) if isinstance(value, (tuple, list)) else (value,)


def _layer_count(module: ModuleType, hidden: Tensor) -> int:
    """Return how many layers a program has: as it says itself, else as many as can be called."""
    for name in ("LAYERS", "N_LAYERS", "NUM_LAYERS", "layers", "n_layers", "num_layers"):
        value = getattr(module, name, None)
        if isinstance(value, int):
            return value
    if callable(getattr(module, "weights", None)):
        return len(module.weights())
    for layer in range(_MOST_LAYERS):
        try:
            module.host_layer(layer, hidden.clone())
        except (IndexError, KeyError):
            return layer
    return _MOST_LAYERS


def _largest(diffs: tuple[TensorDiff, ...]) -> int | None:
    sizes = [-1.0 if diff.max_abs is None else diff.max_abs for diff in diffs]
    return sizes.index(max(sizes)) if sizes else None


def _choice_differs(one: Tensor, two: Tensor) -> Tensor:
    if one.dim() == 0 or not one.numel():
        return torch.zeros(0, dtype=torch.bool)
    if not one.dtype.is_floating_point and one.dtype is not torch.bool:
        return flipped_rows(one, two).reshape(-1)
    return (one.argmax(-1) != two.argmax(-1)).reshape(-1)


def _rows(tensor: Tensor) -> int:
    return tensor.shape[0] if tensor.dim() else 1


def _count(tensor: Tensor, test: Callable[[Tensor], Tensor]) -> int:
    return int(test(as_float64(tensor)).sum())


def _differs(one: Tensor, two: Tensor) -> Tensor:
    """Return bool per element; NaN on both sides is no difference."""
    left, right = as_float64(one), as_float64(two)
    return ((left != right) & ~(left.isnan() & right.isnan())).reshape(one.shape)


def _factor(one: Tensor, two: Tensor) -> float | None:
    """Return the factor that takes one side to the other, to 1e-3 of each element; None where there is none."""
    reference, candidate = as_float64(one).flatten(), as_float64(two).flatten()
    there = reference != 0
    if not bool(there.any()) or bool((candidate[~there] != 0).any()):
        return None
    factors = candidate[there] / reference[there]
    middle = factors.median()
    return middle.item() if bool(((factors - middle).abs() <= 1e-3 * middle.abs()).all()) else None


def _first(one: Tensor, two: Tensor) -> list[int] | None:
    places = _differs(one, two).nonzero()
    return places[0].tolist() if len(places) else None


def _mutated(facts: NumericFacts) -> bool:
    assert facts.pair is not None, "asked for a pair only"
    return bool(facts.pair.reference.mutated or facts.pair.candidate.mutated)


def _plain(value: object) -> object:
    return value.tolist() if isinstance(value, Tensor) else value


_SIDE = r"(host|device|reference|candidate|cpu|eager|compiled)"
_Answer = Callable[[NumericFacts, "re.Match[str]"], list[object]]

# What a key may be called, and what answers it; the first pattern that fits is used.
_PAIR_FACTS: tuple[tuple[str, _Answer], ...] = (
    (r"max_abs(_diff|_error|_err)?", lambda f, _: f.figure(lambda one: one.max_abs)),
    (r"max_rel(_diff|_error|_err)?", lambda f, _: f.figure(lambda one: one.max_rel)),
    (r"(rel|relative)_l2(_diff|_error)?", lambda f, _: f.figure(lambda one: one.rel_l2)),
    (
        r"(min_)?cosine(_similarity)?",
        lambda f, _: [min((d.cosine for d in f.diffs if d.cosine is not None), default=None)],
    ),
    (
        r"mean_abs(_diff|_error)?",
        lambda f, _: [max((as_float64(a) - as_float64(b)).abs().mean().item() for a, b in f._outputs)],
    ),
    (rf"max_abs_{_SIDE}", lambda f, m: f.per_side(m[1], lambda t: as_float64(t).abs().max().item())),
    (rf"{_SIDE}_max_abs", lambda f, m: f.per_side(m[1], lambda t: as_float64(t).abs().max().item())),
    (r"rows", lambda f, _: [_rows(f._outputs[0][0])]),
    (
        r"argmax_(equal|same|agree\w*)(_rows)?",
        lambda f, _: [_rows(f._outputs[0][0]) - f.flipped_rows],
    ),
    (
        r"(topk_|top_k_|same_|equal_)?sets?(_equal|_same)?(_rows)?",
        lambda f, _: [_rows(f._outputs[0][0]) - f.flipped_rows],
    ),
    (r"(differing|different|wrong|bad|mismatch\w*)_(elements|values|count)|mismatches", lambda f, _: [f.differing()]),
    (r"(flipped|changed|different|differing)_row(_indices|s_indices|_index)", lambda f, _: [f.flipped_indices()]),
    (r"(same|sorted)_(values|multiset|equal)(_(sorted|after_sort))?", lambda f, _: [f.is_reordered()]),
    (r"(scale_)?(ratio|factor)", lambda f, _: f.ratio()),
    (r"(argmax_)?(flipped|different|changed)(_rows|_tokens)?|flips", lambda f, _: [f.flipped_rows]),
    (r"max_(\w+?)_steps(_at_large_values)", lambda f, m: f.steps(m[1], 16.0) if m[1] in _FORMATS else []),
    (r"max_(\w+?)_(steps|ulps?)", lambda f, m: f.steps(m[1], 0.0) if m[1] in _FORMATS else []),
    (r"(max_)?(steps|ulps?)", lambda f, _: f.figure(lambda one: one.max_steps)),
    (rf"{_SIDE}(_values|_output|_result)?", lambda f, m: f.per_side(m[1], lambda t: t.tolist())),
    (rf"{_SIDE}_(shape|dtype)", lambda f, m: f.per_side(m[1], lambda t: _meta(t, m[2]))),
    (
        rf"nan_?(?:count)?_{_SIDE}|{_SIDE}_nan(?:_?count|s)?",
        lambda f, m: f.per_side(m[1] or m[2], lambda t: _count(t, torch.isnan)),
    ),
    (
        rf"inf_?(?:count)?_{_SIDE}|{_SIDE}_inf(?:_?count|s)?",
        lambda f, m: f.per_side(m[1] or m[2], lambda t: _count(t, torch.isinf)),
    ),
    (r"first_(difference|mismatch|nan|bad_index)", lambda f, _: [_first(*f._outputs[0]) if f._outputs else None]),
    (r"worst_index", lambda f, _: f.worst_index()),
    (r"(bit(wise)?_)?equal", lambda f, _: [all(_first(a, b) is None for a, b in f._outputs)]),
    (r"inputs?_(mutated|changed|modified)", lambda f, _: [_mutated(f)]),
    (r"graph_breaks", lambda f, _: [f.graph_breaks()]),
)


def _meta(tensor: Tensor, what: str) -> object:
    return list(tensor.shape) if what == "shape" else str(tensor.dtype).removeprefix("torch.")
