"""Golden data in the reference's place: what stands in the files, step by step, under the names of the taps.

A trace holds some intermediates of some steps; a step of which it holds nothing shows nothing. What enters a layer is
known where the trace holds the streams and collapse weights after the layer before: a layer can then be run on golden
input.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from safetensors import safe_open
from torch import Tensor

from workbench.errors import PlanError, StepError
from workbench.stepper import StepPoint
from workbench.subjects.base import Call, Observed
from workbench.subjects.text_side import TextFeed
from workbench.subjects.tokens import TokenTrack


class GoldenSide:
    """One prompt of a golden folder as a side.

    Args:
        folder: in the golden format.
        mode: which of its modes.
        prompt: name of the prompt.
        points: the program of the other side.
    """

    has_numbers = True
    device = None
    precision = None

    def __init__(self, folder: Path, mode: str, prompt: str, points: Sequence[StepPoint]) -> None:
        self.prompt = prompt
        self._points = tuple(points)
        self._position = 0
        self._prefill, self._decode = _read(folder, mode, prompt)
        self._edits: dict[str, Tensor] = {}

    @property
    def points(self) -> tuple[StepPoint, ...]:
        """The program of the other side."""
        return self._points

    @property
    def position(self) -> int:
        """Points already passed."""
        return self._position

    def advance(self) -> Observed:
        """Return what the data holds of the next point."""
        if self._position >= len(self._points):
            raise StepError("the run is over; use session.rewind(...) to go back.")
        point = self._points[self._position]
        self._position += 1
        tensors = {name: self._edits.get(name, tensor) for name, tensor in self._of(point).items()}
        return Observed(tensors=tensors, outputs=tuple(tensors))

    def feed(self, index: int) -> TextFeed | None:
        """Return the streams that enter a layer, for the first step of a layer in the prefill; None elsewhere."""
        point = self._points[index]
        before = self._points[index - 1] if index else None
        starts_layer = before is not None and before.kind in ("embed", "ffn") and point.kind != "head"
        if point.forward_pass or before is None or not starts_layer:
            return None
        names = {"stream": f"{_layer(before)}.out", "pre": f"{_layer(before)}.pre"}
        held = self._prefill
        if any(name not in held for name in names.values()):
            return None
        return TextFeed(tensors={key: held[name] for key, name in names.items()})

    def alone(self, index: int, feed: object) -> Observed:
        """Golden data runs nothing.

        Raises:
            StepError: always.
        """
        raise StepError("golden data is the reference; it cannot be run on another side's input.")

    def rewind(self, position: int) -> None:
        """Go back."""
        self._position = position
        self._edits = {}

    def tensors(self) -> Mapping[str, Tensor]:
        """Return what the data holds of the next point; these can be edited."""
        return {} if self._position >= len(self._points) else self._of(self._points[self._position])

    def edit(self, name: str, tensor: Tensor) -> None:
        """Put a tensor in the place of a golden one."""
        self._edits[name] = tensor

    def call(self, module: str, phase: str) -> Call:
        """Golden data runs nothing.

        Raises:
            StepError: always.
        """
        raise StepError("golden data is the reference; it has no call to look at. Ask for the candidate's.")

    def close(self) -> None:
        """Nothing is held open."""

    def _of(self, point: StepPoint) -> dict[str, Tensor]:
        if point.forward_pass == 0:
            return {name: tensor for name, tensor in self._prefill.items() if _owner(name) == _place(point)}
        # One row of the decode data per step; the first row of `gen_logits` is the prefill's last.
        found: dict[str, Tensor] = {}
        for name, tensor in self._decode.items():
            row = point.forward_pass if name == "logits" else point.forward_pass - 1
            if _owner(name) == _place(point) and row < tensor.shape[0]:
                found[name] = tensor[row : row + 1]
        return found


def golden_prompt(
    folder: Path, token_ids: Sequence[int] | None, name: str | None = None
) -> tuple[str, tuple[int, ...]]:
    """Return name and token ids of a golden prompt, found by its ids or by its name.

    Raises:
        PlanError: the folder holds no such prompt; lists those it holds.
    """
    try:
        body = json.loads((folder / "golden.json").read_text(encoding="utf-8"))
        prompts = {key: tuple(int(token) for token in value["token_ids"]) for key, value in body["prompts"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise PlanError(f"golden {folder}: expected a golden.json with prompts and token_ids; {error!r}.") from error
    if name is not None and name in prompts:
        return name, prompts[name]
    wanted = None if token_ids is None else tuple(token_ids)
    match = next((key for key, ids in prompts.items() if name is None and ids == wanted), None)
    if match is None:
        asked = f"prompt {name!r}" if name is not None else f"token ids {list(wanted or ())[:8]}"
        raise PlanError(f"golden {folder}: expected one of the prompts {', '.join(prompts)}; found {asked}.")
    return match, prompts[match]


def golden_tokens(folder: Path, mode: str, prompt: str) -> tuple[tuple[int, ...], ...]:
    """Return the golden continuation, one tuple (of one sequence) per decode step; empty where there is none."""
    with safe_open(_data_path(folder, mode), "pt") as data:
        key = f"{prompt}.gen_tokens"
        tokens = data.get_tensor(key).tolist() if key in data.keys() else []  # noqa: SIM118 - not a mapping
    return tuple((int(token),) for token in tokens)


def golden_track(folder: Path, mode: str, prompt: str, max_tokens: int) -> TokenTrack:
    """Return the tokens fed in the decode steps.

    Raises:
        PlanError: the data holds fewer decode steps than the plan asks for.
    """
    tokens = golden_tokens(folder, mode, prompt)
    most = max(len(tokens) - 1, 0)
    if max_tokens > most:
        raise PlanError(
            f"inputs.max_tokens: expected at most {most}, the decode steps golden prompt {prompt!r} holds; "
            f"found {max_tokens}."
        )
    return TokenTrack(tokens[:max_tokens])


def _read(folder: Path, mode: str, prompt: str) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the intermediates of the prefill, and those of the decode steps (one row a step), by tap name."""
    from port.model.taps import tap_name

    prefill: dict[str, Tensor] = {}
    decode: dict[str, Tensor] = {}
    for path in (_data_path(folder, mode), folder / f"trace_{mode}.safetensors"):
        if not path.is_file():
            continue
        with safe_open(path, "pt") as data:
            for key in data.keys():  # noqa: SIM118 - not a mapping
                name = key.removeprefix(prompt + ".")
                if name == key:
                    continue
                target, name = (decode, name.removeprefix("gen_")) if name.startswith("gen_") else (prefill, name)
                for tap, tensor in _tapped(name, data.get_tensor(key), tap_name):
                    target[tap] = tensor
    return prefill, decode


def _tapped(name: str, tensor: Tensor, tap_name: object) -> list[tuple[str, Tensor]]:
    """Return the taps a golden tensor stands for; none for margins, tokens and noise."""
    if name == "router_ids":
        return [(f"layers.{layer}.ffn.router_ids", ids) for layer, ids in enumerate(tensor)]
    try:
        return [(tap_name(name), tensor)]  # pyright: ignore[reportCallIssue]
    except ValueError:
        return []


def _data_path(folder: Path, mode: str) -> Path:
    path = folder / f"{mode}.safetensors"
    if not path.is_file():
        modes = sorted(one.stem for one in folder.glob("*.safetensors") if not one.stem.startswith("trace_"))
        raise PlanError(f"golden {folder}: expected data of mode {mode!r}, found {', '.join(modes) or 'none'}.")
    return path


def _layer(point: StepPoint) -> str:
    return "embed" if point.kind == "embed" else point.module.rpartition(".")[0]


def _place(point: StepPoint) -> str:
    return "head" if point.kind == "head" else point.module


def _owner(tap: str) -> str:
    """Return the module of the step that shows a tap."""
    if tap in ("logits", "norm.out"):
        return "head"
    if tap == "embed.out":
        return "embed"
    parts = tap.split(".")
    base = ".".join(parts[:2])
    return f"{base}.ffn" if len(parts) == 3 else ".".join(parts[:3])
