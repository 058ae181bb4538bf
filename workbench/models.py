"""What a plan can name as its model, and how its sides are opened: the one door from the workbench to the port.

A model is a function `(plan, placement, ...) -> Side`; adding one costs a file in `subjects/` and a line here.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

from workbench.compilers.names import known_backend
from workbench.devices.base import Device
from workbench.devices.names import open_device
from workbench.errors import PlanError
from workbench.plan import Placement, Plan
from workbench.subjects.base import Side
from workbench.subjects.tokens import TokenTrack
from workbench.user_programs import load_program, source_file

if TYPE_CHECKING:
    from port.checkpoint.index import Checkpoint
    from port.model.transformer import Transformer
    from port.runtime.text_model import TextModel
    from workbench.subjects.module_side import ModuleSide
    from workbench.subjects.text_side import TextSide

MODELS: tuple[str, ...] = ("deepseek_v41", "module")
"""Names a plan may give."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A user's own module or callable, handed over instead of named by a file.

    Attributes:
        reference: what the reference side calls.
        candidate: what the candidate side calls, None for the same.
        args, kwargs: of the call.
    """

    reference: Callable[..., object]
    candidate: Callable[..., object] | None = None
    args: tuple[object, ...] = ()
    kwargs: Mapping[str, object] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedSides:
    """Both sides, and what names the model they run.

    Attributes:
        reference: the side that is trusted.
        candidate: the side under test, None for a session that only observes.
        fingerprint: of the checkpoint or the source file, "" where there is neither.
        describe: token ids to text, None where there is no tokenizer.
    """

    reference: Side
    candidate: Side | None
    fingerprint: str
    describe: Callable[[Sequence[int]], str] | None = None


def open_sides(plan: Plan, target: Target | None = None) -> OpenedSides:
    """Return the sides a plan describes.

    Args:
        plan: what to run.
        target: for the model "module" without a source file: what is called.

    Raises:
        PlanError: a plan that cannot be carried out, with every problem found.
        DeviceError: a placement this machine cannot offer.
    """
    for placement in (plan.reference, plan.candidate):
        if placement is not None and placement.compile is not None:
            known_backend(placement.compile)
    if plan.model == "deepseek_v41":
        return _open_text(plan)
    if plan.model == "module":
        return _open_module(plan, target)
    raise PlanError(f"plan.model: expected one of {', '.join(MODELS)}, found {plan.model!r}.")


def _open_text(plan: Plan) -> OpenedSides:
    from workbench.subjects.golden_side import GoldenSide, golden_prompt, golden_track

    plan.check()

    if plan.golden is None:
        device = open_device(plan.reference)
        reference_model = _text_model(plan, plan.reference, device)
        prompts = prompt_ids(plan, reference_model)
        track = TokenTrack()
        reference = _text_side(plan, plan.reference, device, reference_model, prompts, track, leads=True)
        candidate = None
        if plan.candidate is not None:
            shared = _shareable(plan)
            own = device if shared else open_device(plan.candidate)
            model = reference_model if shared else _text_model(plan, plan.candidate, own)
            candidate = _text_side(plan, plan.candidate, own, model, prompts, track, leads=False)
        tokenizer, fingerprint = reference_model.tokenizer, reference_model.checkpoint.fingerprint
        return OpenedSides(reference=reference, candidate=candidate, fingerprint=fingerprint, describe=tokenizer.decode)
    if plan.candidate is None:
        raise PlanError("plan.golden: golden data takes the reference's part; expected a candidate placement too.")
    device = open_device(plan.candidate)
    model = _text_model(plan, plan.candidate, device)
    ids, *others = prompt_ids(plan, model)
    if others:
        raise PlanError(f"plan.inputs: expected one sequence with golden data, found {1 + len(others)}.")
    folder, mode = Path(plan.golden), plan.reference.profile
    name, _ = golden_prompt(folder, ids)
    track = golden_track(folder, mode, name, plan.inputs.max_tokens)
    side = _text_side(plan, plan.candidate, device, model, [ids], track, leads=False)
    return OpenedSides(
        reference=GoldenSide(folder, mode, name, side.points),
        candidate=side,
        fingerprint=model.checkpoint.fingerprint,
        describe=model.tokenizer.decode,
    )


def checkpoint_of(plan: Plan) -> Checkpoint:
    """Return a plan's checkpoint, opened: headers only.

    Raises:
        PlanError: the plan names none.
        CheckpointError: the folder is no sound checkpoint.
    """
    from port.checkpoint.index import open_checkpoint

    if plan.checkpoint is None:
        raise PlanError("plan.checkpoint: expected the folder of a checkpoint, found None.")
    return open_checkpoint(plan.checkpoint)


def prompt_ids(plan: Plan, text_model: TextModel) -> list[tuple[int, ...]]:
    """Return the token ids of every sequence of a plan.

    Raises:
        PlanError: the prompt has no token.
    """
    inputs = plan.inputs
    if inputs.token_ids is not None:
        return [tuple(prompt) for prompt in inputs.token_ids]
    prompt = text_model.tokenizer.encode(inputs.prompt or "")
    if not prompt:
        raise PlanError(f"plan.inputs.prompt: expected text with at least one token, found {inputs.prompt!r}.")
    return [tuple(prompt)]


def _shareable(plan: Plan) -> bool:
    # Two sides of one placement and profile read the same weights; a compiled side has a model of its own.
    return plan.candidate == plan.reference and plan.reference.compile is None and plan.residency == "resident"


def device_profile(placement: Placement) -> str:
    """Return the name of a placement's numeric profile; on a real core with the core's fp8 range, unless it names one.

    The simulated placements keep 448 unless they are asked for another range, so that they give the host's bits.
    """
    from port import PLATFORM

    if placement.device != "neuron" or "@" in placement.profile:
        return placement.profile
    return f"{placement.profile}@{PLATFORM.fp8_max:g}"


def _text_model(plan: Plan, placement: Placement, device: Device) -> TextModel:
    from port.runtime.text_model import open_text_model

    assert plan.checkpoint is not None, "checked with the plan"
    fixed_shapes = not device.has_numbers or placement.compile is not None
    model = open_text_model(
        plan.checkpoint,
        profile=device_profile(placement),
        device=device.device,
        moe=placement.moe or ("all" if fixed_shapes else "hit"),
        load=device.has_numbers and plan.residency == "resident",
    )
    if not device.has_numbers:
        return dataclasses.replace(model, model=cast("Transformer", device.place(model.model)))
    return model


def _text_side(
    plan: Plan,
    placement: Placement,
    device: Device,
    model: TextModel,
    prompts: Sequence[Sequence[int]],
    track: TokenTrack,
    *,
    leads: bool,
) -> TextSide:
    from workbench.subjects.text_side import TextSide

    return TextSide(
        model,
        prompts,
        max_tokens=plan.inputs.max_tokens,
        track=track,
        leads=leads,
        device=device,
        residency=plan.residency if device.has_numbers else "resident",
        layers=plan.layers,
        backend=placement.compile,
        fullgraph=placement.fullgraph,
    )


def _open_module(plan: Plan, target: Target | None) -> OpenedSides:
    import torch

    from workbench.subjects.module_side import ModuleSide, owner_module

    fingerprint = ""
    if target is None:
        if plan.source is None:
            raise PlanError("plan.source: expected a Python file with build_model() and example_inputs(), found None.")
        # Weights a file draws without a seed of its own are the same in every run, or no replay would find the same.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(plan.inputs.seed)
            program = load_program(plan.source)
        target = Target(reference=program.target, args=program.args, kwargs=program.kwargs)
        fingerprint = hashlib.sha256(source_file(plan.source).read_bytes()).hexdigest()
    dtypes = {"fp32": None, "bf16": torch.bfloat16}

    def side(placement: Placement, function: Callable[..., object], *, shared: bool = False) -> ModuleSide:
        if placement.profile not in dtypes:
            raise PlanError(
                f"placement.profile: expected fp32 (as it is) or bf16 (converted) for a module, "
                f"found {placement.profile!r}."
            )
        return ModuleSide(
            function,
            target.args,
            target.kwargs or {},
            device=open_device(placement),
            seed=plan.inputs.seed,
            dtype=dtypes[placement.profile],
            backend=placement.compile,
            fullgraph=placement.fullgraph,
            shared=shared,
        )

    reference = side(plan.reference, target.reference)
    candidate = None
    placement = plan.candidate or (plan.reference if target.candidate is not None else None)
    if placement is not None:
        second = target.candidate or target.reference
        same = owner_module(second) is owner_module(target.reference)
        candidate = side(placement, second, shared=same)
        _expect_same_program(reference, candidate)
    return OpenedSides(
        reference=cast("Side", reference), candidate=cast("Side | None", candidate), fingerprint=fingerprint
    )


def _expect_same_program(reference: ModuleSide, candidate: ModuleSide) -> None:
    """Refuse sides that run different modules; a side that raises runs those before it raises, and is stepped there."""
    ours = [(point.module, point.call) for point in reference.points]
    theirs = [(point.module, point.call) for point in candidate.points]
    raising = [side for side in (reference, candidate) if side.failure is not None]
    until = min((len(side.points) - 1 for side in raising), default=None)
    if ours[:until] != theirs[:until] or (until is None and len(ours) != len(theirs)):
        first = next((i for i, pair in enumerate(zip(ours, theirs, strict=False)) if pair[0] != pair[1]), -1)
        place = f"step {first}: {ours[first][0]!r} and {theirs[first][0]!r}" if first >= 0 else "one is longer"
        failed = "".join(
            f" On the {name} side {side.failure}."
            for name, side in (("reference", reference), ("candidate", candidate))
            if side.failure is not None
        )
        raise PlanError(
            f"the two sides run different modules ({len(ours)} and {len(theirs)} steps; {place}).{failed} "
            "Compare them as plain callables: hand over functions instead of modules."
        )
