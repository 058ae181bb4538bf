"""The text model of the port as one side of a session: prefill, then decode steps, sub-layer by sub-layer.

With `residency="stream"` a step's weights are read just before it and given back after it, so that the largest step
decides how much memory a checkpoint needs. What a step changes outside its state (the rows it caches) is copied
before it runs; going back, and running a step on another side's input, put the copies back.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from workbench.errors import StepError
from workbench.plan import Residency
from workbench.stepper import StepPoint, covers
from workbench.subjects.base import Call, Observed
from workbench.subjects.tokens import TokenTrack

if TYPE_CHECKING:
    from port.model.forward_state import ForwardState
    from port.model.steps import Step
    from port.runtime.cache_engine import CacheEngine, LayerSnapshot
    from port.runtime.input_metadata import InputMetadata
    from port.runtime.sequence import Sequence as TokenSequence
    from port.runtime.text_model import TextModel
    from workbench.devices.base import Device


@dataclass(frozen=True, slots=True, kw_only=True)
class TextFeed:
    """What a step reads: the state handed to it and the cached rows of the layers it looks at.

    Attributes:
        tensors: of the state, by name (`stream`, `pre`, `selection.2`, ...); part of them is enough.
        rows: copies of cached rows, layer by layer.
    """

    tensors: Mapping[str, Tensor]
    rows: tuple[LayerSnapshot, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Before:
    """How things stood before a point ran."""

    state: ForwardState
    rows: tuple[LayerSnapshot, ...]


class TextSide:
    """The text model, stepped.

    Args:
        text_model: the model; without weights where `residency` is "stream".
        prompts: token ids of each sequence.
        max_tokens: decode steps after the prefill.
        track: the tokens fed in the decode steps.
        leads: whether this side chooses them.
        device: where it runs.
        residency: see the module.
        layers: half-open range of layers to run, None for all.
        backend: Dynamo backend every step is compiled with, None for eager.
        fullgraph: refuse graph breaks when compiling.
    """

    def __init__(
        self,
        text_model: TextModel,
        prompts: Sequence[Sequence[int]],
        *,
        max_tokens: int,
        track: TokenTrack,
        leads: bool,
        device: Device,
        residency: Residency = "resident",
        layers: tuple[int, int] | None = None,
        backend: str | None = None,
        fullgraph: bool = False,
    ) -> None:
        self.text_model = text_model
        self.track = track
        self.prompts = [tuple(prompt) for prompt in prompts]
        self._max_tokens = max_tokens
        self._leads = leads
        self.device = device
        self._residency: Residency = residency
        self._steps = tuple(step for step in text_model.model.steps() if _within(step, layers))
        self._points = _program(self._steps, max_tokens)
        self._compiled = backend is not None
        self._run_step: Callable[..., ForwardState] = text_model.model.run_step
        if backend is not None:
            self._run_step = torch.compile(text_model.model.run_step, backend=backend, fullgraph=fullgraph)
        self._history: list[_Before] = []
        self._edits: dict[str, Tensor] = {}
        with self._active():
            self._cache = text_model.cache_for([len(prompt) + max_tokens for prompt in self.prompts])
        self._sequences = [self._cache.admit(prompt, max_tokens=max_tokens) for prompt in self.prompts]
        self._batches: dict[int, InputMetadata] = {}
        self._state = self._begin(0)

    @property
    def points(self) -> tuple[StepPoint, ...]:
        """The program, in order."""
        return self._points

    @property
    def position(self) -> int:
        """Points already run."""
        return len(self._history)

    @property
    def has_numbers(self) -> bool:
        """False for a dry side."""
        return self.device.has_numbers

    @property
    def precision(self) -> torch.dtype:
        """Coarsest format of the numeric profile: that of its quantisers, or of its activations."""
        profile = self.text_model.model.precision.profile
        if profile.act_quant != "none" or profile.kv_quant != "none":
            return torch.float8_e4m3fn
        return torch.bfloat16 if profile.activation == "bfloat16" else torch.float32

    def advance(self) -> Observed:
        """Run the next point.

        Raises:
            StepError: there is none.
        """
        if self.position >= len(self._points):
            raise StepError("the run is over; use session.rewind(...) to go back, or plan more decode steps.")
        point, step = self._points[self.position], self._step_of(self.position)
        batch = self._batch(point.forward_pass)
        with self._weights(step) as weight_bytes, self._active():
            before = _Before(state=self._state, rows=self._rows(step))
            state, observed = self._run(step, self._state, batch, self._edits)
        self._history.append(before)
        self._edits = {name: tensor for name, tensor in self._edits.items() if name not in observed.tensors}
        self._state = state
        if step.kind == "head":
            self._finish_pass(point)
        return dataclasses.replace(observed, weight_bytes=weight_bytes)

    def feed(self, index: int) -> TextFeed | None:
        """Return what a point that has run was given."""
        before = self._history[index]
        return TextFeed(tensors=before.state.tensors(), rows=before.rows)

    def alone(self, index: int, feed: object) -> Observed:
        """Run one point on another side's input; cached rows are as before afterwards."""
        if not isinstance(feed, TextFeed):
            raise StepError(f"expected the input of a text model's step, found {type(feed).__name__}.")
        point, step, before = self._points[index], self._step_of(index), self._history[index]
        batch = self._batch(point.forward_pass)
        with self._weights(step), self._active():
            state = self._adopt(before.state, feed.tensors)
            kept = self._rows(step)
            self._put_back(feed.rows or before.rows)
            try:
                _, observed = self._run(step, state, batch, {})
            finally:
                self._put_back(kept)
        return observed

    def rewind(self, position: int) -> None:
        """Go back, as if only the first `position` points had run."""
        with self._active():
            while len(self._history) > position:
                before = self._history.pop()
                self._put_back(before.rows)
                self._state = before.state
        self._edits = {}
        passes = self._points[position].forward_pass if position < len(self._points) else self._max_tokens
        for forward_pass in [number for number in self._batches if number > passes]:
            del self._batches[forward_pass]

    def tensors(self) -> Mapping[str, Tensor]:
        """Return the state the next point will read."""
        return self._state.tensors()

    def edit(self, name: str, tensor: Tensor) -> None:
        """Replace a tensor of the state now, or an intermediate when it comes.

        Raises:
            StepError: another shape or dtype than what is replaced.
        """
        held = self._state.tensors()
        if name in held:
            _expect_alike(name, held[name], tensor)
            self._state = self._state.with_tensors({name: tensor.to(held[name].device)})
        else:
            self._edits[name] = tensor

    def call(self, module: str, phase: str) -> Call:
        """Return a forward pass, or the steps of one part of it, as a call with a cache and a state of its own.

        Raises:
            StepError: no such part.
        """
        steps = tuple(step for step in self._steps if not module or covers(module, step.module))
        if not steps:
            raise StepError(f"expected a module of this model, found {module!r}.")
        if phase not in ("prefill", "decode"):
            raise StepError(f"phase: expected 'prefill' or 'decode', found {phase!r}.")
        model = self.text_model.model
        with self._active():
            cache = self.text_model.cache_for([len(prompt) + 1 for prompt in self.prompts])
        sequences = [cache.admit(prompt, max_tokens=1) for prompt in self.prompts]
        batch = self._placed(self._prefill(cache, sequences))
        if phase == "decode":
            logits = self._steps_up_to(len(self._steps), batch, cache).logits
            last = (0,) * len(sequences) if logits is None else self._last_rows(logits)
            sequences = [one.advanced(len(one)).with_token(token) for one, token in zip(sequences, last, strict=True)]
            batch = self._placed(self._decode(cache, sequences))
        state = self._steps_up_to(self._steps.index(steps[0]), batch, cache)
        if self._residency == "stream":
            for step in steps:
                model.load(self.text_model.checkpoint, modules=step.weights)
        return Call(
            name=f"{phase} of {module or 'the model'}",
            function=StepsCall(model, steps),
            args=(state, batch, cache),
            kwargs={},
            module=model,
            cache=cache,
        )

    @contextlib.contextmanager
    def whole_model(self) -> Iterator[TextModel]:
        """Give the model with all its weights; those that do not stay are given back afterwards."""
        model = self.text_model.model
        if self._residency == "stream":
            model.load(self.text_model.checkpoint)
        try:
            yield self.text_model
        finally:
            if self._residency == "stream":
                model.unload()

    def close(self) -> None:
        """Give back weights and cached rows."""
        self._history.clear()
        self._edits.clear()
        self._batches.clear()
        if self._residency == "stream":
            self.text_model.model.unload()

    def _run(
        self, step: Step, state: ForwardState, batch: InputMetadata, edits: Mapping[str, Tensor]
    ) -> tuple[ForwardState, Observed]:
        tap = _StepTap(edits)
        with torch.no_grad():
            if self._compiled:
                # Looking inside would cut the graph that is to be observed, so only what the step hands on is seen.
                with _graph_per_step(len(self._steps)):
                    after = self._run_step(step, state, batch, self._cache)
                outputs = _outputs(step, after)
                return after, Observed(tensors={**outputs}, outputs=tuple(outputs))
            after = self._run_step(step, state, batch, self._cache, tap)
        return after, Observed(
            tensors=tap.tensors, outputs=tuple(name for name in _outputs(step, after) if name in tap.tensors)
        )

    def _finish_pass(self, point: StepPoint) -> None:
        if self._leads and point.forward_pass < self._max_tokens and not self.track.is_fixed:
            assert self._state.logits is not None, "the head makes logits"
            self.track.choose(point.forward_pass + 1, self._last_rows(self._state.logits))
        if point.index + 1 < len(self._points):
            self._state = self._begin(point.forward_pass + 1)

    def _begin(self, forward_pass: int) -> ForwardState:
        batch = self._batch(forward_pass)
        with self._active():
            return self.text_model.model.begin(batch)

    def _steps_up_to(self, count: int, batch: InputMetadata, cache: CacheEngine) -> ForwardState:
        """Return the state of a forward pass of its own after its first steps."""
        with self._active(), torch.no_grad():
            state = self.text_model.model.begin(batch)
            for step in self._steps[:count]:
                with self._weights(step):
                    state = self.text_model.model.run_step(step, state, batch, cache)
        return state

    def _last_rows(self, logits: Tensor) -> tuple[int, ...]:
        """Return the greedy token after each sequence; token 0 where there are no numbers."""
        if not self.has_numbers:
            return (0,) * len(self.prompts)
        if logits.shape[0] == len(self.prompts):
            return tuple(int(row.argmax()) for row in logits)
        ends = [sum(len(prompt) for prompt in self.prompts[: count + 1]) for count in range(len(self.prompts))]
        return tuple(int(logits[end - 1].argmax()) for end in ends)

    def _batch(self, forward_pass: int) -> InputMetadata:
        """Return the batch of a forward pass; that of a decode step holds the tokens the track gives."""
        if forward_pass not in self._batches:
            sequences = self._sequences
            for number in range(1, forward_pass + 1):
                tokens = self.track.of_pass(number)
                sequences = [
                    one.advanced(one.pending).with_token(token) for one, token in zip(sequences, tokens, strict=True)
                ]
            build = self._prefill if forward_pass == 0 else self._decode
            self._batches[forward_pass] = self._placed(build(self._cache, sequences))
        return self._batches[forward_pass]

    def _prefill(self, cache: CacheEngine, sequences: Sequence[TokenSequence]) -> InputMetadata:
        from port.runtime.prefill_inputs import build_prefill

        return build_prefill(cache.layout, sequences, engram=self.text_model.engram)

    def _decode(self, cache: CacheEngine, sequences: Sequence[TokenSequence]) -> InputMetadata:
        from port.runtime.decode_inputs import build_decode

        return build_decode(cache.layout, sequences, engram=self.text_model.engram)

    def _placed(self, batch: InputMetadata) -> InputMetadata:
        placed = self.device.place(batch)
        assert isinstance(placed, type(batch)), "a placed batch is a batch"
        return placed

    def _adopt(self, own: ForwardState, tensors: Mapping[str, Tensor]) -> ForwardState:
        """Return the own state with another side's tensors in place of ours, in our dtypes and on our device."""
        held = own.tensors()
        common = {
            name: tensor.to(device=held[name].device, dtype=held[name].dtype)
            for name, tensor in tensors.items()
            if name in held and held[name].shape == tensor.shape
        }
        return own.with_tensors(common)

    def _rows(self, step: Step) -> tuple[LayerSnapshot, ...]:
        """Return copies of the cached rows a step reads or writes."""
        if step.kind != "attention" or step.layer is None:
            return ()
        role = self.text_model.model.schedule[step.layer]
        layers = (step.layer, role.kv_source, role.index_k_source)
        return tuple(self._cache.snapshot(layer) for layer in dict.fromkeys(layers) if layer is not None)

    def _put_back(self, rows: Sequence[LayerSnapshot]) -> None:
        for snapshot in rows:
            self._cache.restore(snapshot)

    def _step_of(self, index: int) -> Step:
        return self._steps[index % len(self._steps)]

    @contextlib.contextmanager
    def _weights(self, step: Step) -> Iterator[int]:
        """Read a step's weights and give them back after it, where they do not stay."""
        if self._residency == "resident":
            yield 0
            return
        model = self.text_model.model
        nbytes = model.load(self.text_model.checkpoint, modules=step.weights).nbytes
        try:
            yield nbytes
        finally:
            model.unload(step.weights)

    def _active(self) -> contextlib.AbstractContextManager[object]:
        return self.device.active()


def _graph_per_step(steps: int) -> contextlib.AbstractContextManager[object]:
    """Lift the limit on graphs of one function: there is one per step and phase here.

    Beyond the limit Dynamo would run the step eagerly without a word.
    """
    graphs = 4 * steps + 8
    return torch._dynamo.config.patch(recompile_limit=graphs, accumulated_recompile_limit=max(256, graphs))


class StepsCall(torch.nn.Module):
    """Some steps of the model as one callable: `(state, batch, cache) -> state`."""

    def __init__(self, model: torch.nn.Module, steps: Sequence[Step]) -> None:
        super().__init__()
        self.model = model
        self.steps = tuple(steps)

    def forward(self, state: ForwardState, batch: InputMetadata, cache: CacheEngine) -> dict[str, Tensor]:
        """Return the tensors of the state after the last of the steps, by name."""
        run = partial(self.model.run_step, batch=batch, cache=cache)  # pyright: ignore[reportCallIssue, reportArgumentType]
        for step in self.steps:
            state = run(step, state)
        return state.tensors()


class _StepTap:
    """Copies every intermediate, after putting an edited one in its place."""

    def __init__(self, edits: Mapping[str, Tensor]) -> None:
        self.tensors: dict[str, Tensor] = {}
        self._edits = edits

    def __call__(self, name: str, tensor: Tensor) -> Tensor:
        if name in self._edits:
            replacement = self._edits[name]
            _expect_alike(name, tensor, replacement)
            tensor = replacement.to(tensor.device)
        self.tensors[name] = tensor.detach().clone()
        return tensor


def _outputs(step: Step, state: ForwardState) -> dict[str, Tensor]:
    """Return what a step hands on, under the names of the taps."""
    base = "" if step.layer is None else f"layers.{step.layer}."
    names = {
        "embed": {"embed.out": state.stream},
        "engram": {f"{base}engram.out": state.stream},
        "attention": {f"{base}attn.stream": state.stream, f"{base}attn.pre": state.pre},
        "ffn": {f"{base}out": state.stream, f"{base}pre": state.pre},
        "head": {"logits": state.logits},
    }[step.kind]
    return {name: tensor for name, tensor in names.items() if tensor is not None}


def _program(steps: Sequence[Step], max_tokens: int) -> tuple[StepPoint, ...]:
    points: list[StepPoint] = []
    for forward_pass in range(max_tokens + 1):
        phase = "decode" if forward_pass else "prefill"
        for step in steps:
            points.append(
                StepPoint(index=len(points), module=step.module, kind=step.kind, phase=phase, forward_pass=forward_pass)
            )
    return tuple(points)


def _within(step: Step, layers: tuple[int, int] | None) -> bool:
    # The head and its logits belong to a run that reaches the last layer; a part of the layers ends with its streams.
    if layers is None or step.kind == "embed":
        return True
    return step.layer is not None and layers[0] <= step.layer < layers[1]


def _expect_alike(name: str, old: Tensor, new: Tensor) -> None:
    if old.shape != new.shape or old.dtype != new.dtype:
        raise StepError(
            f"edit of {name}: expected {old.dtype}{list(old.shape)}, found {new.dtype}{list(new.shape)}. "
            "Convert the tensor first."
        )
