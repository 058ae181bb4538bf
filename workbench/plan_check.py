"""What stands in the way of a plan, before anything is loaded or run: every problem, in one answer.

Reads the checkpoint's configuration, never its tensors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from workbench.plan import Plan

if TYPE_CHECKING:
    from port.config import ModelConfig
    from port.schedule import LayerSchedule


def plan_problems(plan: Plan, config: ModelConfig) -> list[str]:
    """Return what is wrong with a plan for the text model; empty where it can be carried out.

    Args:
        plan: to be looked at.
        config: of its checkpoint.
    """
    from port.schedule import LayerSchedule

    return [
        *_input_problems(plan, config),
        *([] if plan.layers is None else _layer_problems(plan, plan.layers, LayerSchedule.from_config(config))),
        *_placement_problems(plan),
    ]


def _input_problems(plan: Plan, config: ModelConfig) -> list[str]:
    inputs = plan.inputs
    problems: list[str] = []
    if (inputs.prompt is None) == (inputs.token_ids is None):
        problems.append("plan.inputs: expected either a prompt or token_ids, found both or neither.")
    if inputs.max_tokens < 0:
        problems.append(f"plan.inputs.max_tokens: expected at least 0, found {inputs.max_tokens}.")
    if inputs.token_ids is not None and not inputs.token_ids:
        problems.append("plan.inputs.token_ids: expected at least one sequence, found none.")
    limit = config.vocab_size
    for number, prompt in enumerate(inputs.token_ids or ()):
        outside = [token for token in prompt if not (isinstance(token, int) and 0 <= token < limit)]
        if not prompt or outside:
            problems.append(
                f"plan.inputs: sequence {number}: expected at least one token id, each from 0 to {limit - 1}; "
                f"found {outside[:5] or 'none'}."
            )
        length = len(prompt) + inputs.max_tokens
        if length > config.max_position_embeddings:
            problems.append(
                f"plan.inputs: sequence {number}: expected at most {config.max_position_embeddings} tokens, "
                f"max_tokens included; found {length}."
            )
    return problems


def _layer_problems(plan: Plan, layers: tuple[int, int], schedule: LayerSchedule) -> list[str]:
    first, end = layers
    if not 0 <= first < end <= len(schedule):
        return [f"plan.layers: expected a range within 0:{len(schedule)}, found {first}:{end}."]
    problems: list[str] = []
    if plan.inputs.max_tokens and end - first < len(schedule):
        problems.append(
            f"plan.layers: decode steps need every layer and the head; expected max_tokens 0 with {first}:{end}, "
            f"found {plan.inputs.max_tokens}."
        )
    for role in schedule.roles[first:end]:
        sources = {role.kv_source, role.index_k_source, role.index_source} - {None}
        outside = sorted(source for source in sources if source is not None and source < first)
        if outside:
            problems.append(
                f"plan.layers: layer {role.layer} reads what layer {outside[0]} publishes; "
                f"expected the range to begin at {outside[0]} or before, found {first}:{end}."
            )
    return problems


def _placement_problems(plan: Plan) -> list[str]:
    problems: list[str] = []
    if plan.golden is not None and plan.candidate is None:
        problems.append("plan.golden: golden data takes the reference's part; expected a candidate placement too.")
    for name, placement in (("reference", plan.reference), ("candidate", plan.candidate)):
        if placement is not None and placement.fullgraph and placement.compile is None:
            problems.append(f"plan.{name}: fullgraph goes with a compile backend, found none.")
        if placement is not None and placement.compile is not None and plan.residency == "stream":
            problems.append(
                f"plan.{name}: a compiled side keeps its weights; expected residency 'resident', found 'stream'."
            )
    return problems
