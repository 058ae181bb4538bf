"""The text model of a configuration alone, on shapes: no checkpoint, no tokenizer, no weights that take memory.

What one rank of several keeps is what `port.checkpoint.plan` says: its experts, its rows of the Engram tables, and the
rest whole. Exchanges between ranks are not part of it. Token ids do not matter to shapes, so they are all 0.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

import torch
from torch import nn

from workbench.devices.base import Device
from workbench.errors import PlanError
from workbench.subjects.base import Call
from workbench.subjects.text_side import StepsCall

if TYPE_CHECKING:
    from port.config import ModelConfig
    from port.model.transformer import Transformer
    from port.runtime.input_metadata import InputMetadata

Experts = Literal["hit", "all"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RankModel:
    """What of a configuration is run.

    Attributes:
        config: a folder's or a file's config.json.
        phase: "prefill" of the tokens, or a "decode" step after them.
        tokens: of each sequence, already there in a decode step.
        sequences: in the batch.
        rank, world_size: whose share of the weights.
        experts: "hit" runs as many experts as the rows can choose, the first ones, since all have one shape; "all"
            runs every one the rank has, as a device with static shapes does.
        profile: numeric profile.
        layers: half-open range, None for all.
    """

    config: Path
    phase: Literal["prefill", "decode"] = "decode"
    tokens: int = 128
    sequences: int = 1
    rank: int = 0
    world_size: int = 1
    experts: Experts = "hit"
    profile: str = "bf16"
    layers: tuple[int, int] | None = None

    def check(self) -> None:
        """Refuse counts that make no batch.

        Raises:
            PlanError: with every problem found.
        """
        problems = [
            f"{name}: expected at least 1, found {value}"
            for name, value in (("tokens", self.tokens), ("sequences", self.sequences), ("ranks", self.world_size))
            if value < 1
        ]
        if not 0 <= self.rank < self.world_size:
            problems.append(f"rank: expected 0 to {self.world_size - 1}, found {self.rank}")
        if problems:
            raise PlanError("memory of a configuration: " + "; ".join(problems) + ".")


def open_rank_model(plan: RankModel, device: Device) -> Call:
    """Return a forward pass of one rank's share of a model, weights on shapes alone, as a call.

    Args:
        plan: what to run.
        device: a dry one.

    Raises:
        PlanError: a plan that makes no batch, layers the model lacks, or a device with numbers.
        ConfigError: a config.json that cannot be used.
    """
    from port.config import ModelConfig
    from port.model.transformer import Transformer
    from port.numerics import NumericProfile
    from port.runtime.cache_engine import CacheEngine
    from port.runtime.decode_inputs import build_decode
    from port.runtime.prefill_inputs import build_prefill

    plan.check()
    if device.has_numbers:
        raise PlanError(f"a configuration has no weights to run on {device.name!r}; use the placement 'dry'.")
    config = ModelConfig.from_file(plan.config)
    if plan.layers is not None and not 0 <= plan.layers[0] < plan.layers[1] <= config.num_hidden_layers:
        raise PlanError(f"layers: expected a range within 0:{config.num_hidden_layers}, found {plan.layers}.")
    profile = NumericProfile.named(plan.profile)
    model = Transformer(config, profile=profile, device=device.device, moe="all", weights="stored")
    rows = plan.sequences * (plan.tokens if plan.phase == "prefill" else 1)
    _keep_share(model, config, plan)
    if plan.experts == "hit":
        _run_only(model, rows * config.num_experts_per_tok)
    model = device.place(model)
    length = plan.tokens + (plan.phase == "decode")
    with device.active():
        cache = CacheEngine.for_lengths(config, [length] * plan.sequences, profile=profile, device=device.device)
    sequences = [cache.admit((0,) * plan.tokens, max_tokens=1) for _ in range(plan.sequences)]
    if plan.phase == "decode":
        sequences = [one.advanced(len(one)).with_token(0) for one in sequences]
        batch = build_decode(cache.layout, sequences)
    else:
        batch = build_prefill(cache.layout, sequences)
    batch = device.place(_with_engram(batch, config))
    steps = tuple(step for step in model.steps() if _within(step.layer, plan.layers))
    with device.active(), torch.no_grad():
        state = model.begin(batch)
        first = model.steps().index(steps[0])
        for step in model.steps()[:first]:
            state = model.run_step(step, state, batch, cache)
    return Call(
        name=f"{plan.phase} of rank {plan.rank} of {plan.world_size}",
        function=StepsCall(model, steps),
        args=(state, batch, cache),
        kwargs={},
        module=model,
        cache=cache,
    )


def _keep_share(model: Transformer, config: ModelConfig, plan: RankModel) -> None:
    """Leave out the experts and the table rows that other ranks keep."""
    from port.checkpoint.names import tensor_table
    from port.checkpoint.slices import rank_slices

    if plan.world_size == 1:
        return
    kept = rank_slices(tensor_table(config, ("text",)), rank=plan.rank, world_size=plan.world_size)
    for path, module in list(model.named_modules()):
        if isinstance(module, nn.ModuleList) and path.endswith(".experts"):
            own = [name for name in module._modules if f"{path}.{name}.w1.weight" in kept]
            module._modules = {name: module._modules[name] for name in own}
    for path, parameter in list(model.named_parameters()):
        shape = kept[path].shape
        if tuple(parameter.shape) != tuple(shape):
            owner, _, leaf = path.rpartition(".")
            empty = torch.empty(shape, dtype=parameter.dtype, device="meta")
            setattr(model.get_submodule(owner), leaf, nn.Parameter(empty, requires_grad=False))


class _FirstExperts(nn.ModuleList):
    """All experts of a layer, of which a loop over them meets only the first ones."""

    count = 0

    def __iter__(self) -> Iterator[nn.Module]:
        return iter(list(self._modules.values())[: self.count])  # pyright: ignore[reportReturnType]


def _run_only(model: Transformer, count: int) -> None:
    for layer in model.layers:
        ffn = layer.get_submodule("ffn")
        every = cast("nn.ModuleList", ffn.get_submodule("experts"))
        first = _FirstExperts()
        first._modules = every._modules
        first.count = count
        ffn.experts = first


def _with_engram(batch: InputMetadata, config: ModelConfig) -> InputMetadata:
    """Return the batch with table rows of the right shapes; which rows they are does not matter to shapes."""
    if not config.engram_layer_ids:
        return batch
    columns = (config.engram_max_ngram_size - 1) * config.engram_n_heads
    rows = torch.zeros(batch.total_q, columns, dtype=torch.int32)
    ids = torch.zeros(batch.total_q, config.engram_max_ngram_size, dtype=torch.int32)
    layers = {str(layer): rows.clone() for layer in config.engram_layer_ids}
    return dataclasses.replace(batch, ngram_token_ids=ids, engram_row_ids=layers)


def _within(layer: int | None, layers: tuple[int, int] | None) -> bool:
    return layers is None or (layer is not None and layers[0] <= layer < layers[1])
