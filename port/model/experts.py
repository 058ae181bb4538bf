"""The feed-forward part of a layer: a gate, routed experts, and one expert that every token shares."""

from typing import Literal

import torch
from torch import Tensor, nn

from port.collectives.expert_exchange import add_slots
from port.config import ModelConfig
from port.kernels.linear import linear
from port.kernels.routing import route
from port.kernels.swiglu import clamped_swiglu
from port.model.expert_share import ExpertShare, in_expert_order
from port.model.precision import Precision
from port.model.taps import Tap
from port.model.weights import Linear, meta_parameter

ExpertLoop = Literal["hit", "all"]


class Gate(nn.Module):
    """Scores experts. `bias_vl` is for image tokens, which the text model does not have; it is loaded and not used."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.weight = meta_parameter(config.n_routed_experts, config.hidden_size, dtype=torch.bfloat16)
        self.bias = meta_parameter(config.n_routed_experts, dtype=torch.float32)
        self.bias_vl = meta_parameter(config.n_routed_experts, dtype=torch.float32)

    def forward(self, y: Tensor) -> Tensor:
        """Return logits, float32 (T, experts)."""
        return linear(y, self.weight, operands=torch.float32, out_dtype=torch.float32)


class Expert(nn.Module):
    """One gated feed-forward network; `w1` is the gate half, `w3` the other."""

    def __init__(self, config: ModelConfig, width: int, stored: Literal["fp8", "fp4"], precision: Precision) -> None:
        super().__init__()
        self.w1 = Linear(width, config.hidden_size, stored=stored)
        self.w2 = Linear(config.hidden_size, width, stored=stored)
        self.w3 = Linear(width, config.hidden_size, stored=stored)
        self.limit = config.swiglu_limit
        self.precision = precision

    def forward(self, y: Tensor, weight: Tensor | None = None) -> Tensor:
        """Return (T, D) in the activation dtype.

        Args:
            y: (T, D), quantised as a linear's input.
            weight: float32 (T, 1), routing weight, applied before `w2`; None for the shared expert.
        """
        operands, activation = self.precision.operands, self.precision.activation
        gate = self.w1(y, operands=operands, out_dtype=activation)
        up = self.w3(y, operands=operands, out_dtype=activation)
        product = self.precision.ffn_product(clamped_swiglu(gate, up, weight, limit=self.limit))
        return self.w2(self.precision.linear_input(product), operands=operands, out_dtype=activation)


class MoE(nn.Module):
    """Routed experts plus the shared one.

    Args:
        config: widths and counts.
        layer: index of the layer, for tap names.
        precision: roundings.
        loop: "hit" runs experts that were chosen, on the rows that chose them, after one read of the ids to the host;
            "all" runs every expert on every row, with static shapes and no read. Results have the same bits
            where a product does not depend on its number of rows (on the CPU: with one thread).
        share: this rank's experts and the way to the others; None where it has all of them.
    """

    def __init__(
        self,
        config: ModelConfig,
        layer: int,
        precision: Precision,
        loop: ExpertLoop,
        share: ExpertShare | None = None,
    ) -> None:
        super().__init__()
        width = config.moe_intermediate_size
        self.gate = Gate(config)
        if share is None:
            self.experts = nn.ModuleList(
                Expert(config, width, "fp4", precision) for _ in range(config.n_routed_experts)
            )
        else:
            # Keyed by the expert's own number, so that names stay the checkpoint's; replicas share their weights.
            self.experts = nn.ModuleDict(
                {str(expert): Expert(config, width, "fp4", precision) for expert in dict.fromkeys(share.experts)}
            )
        self.shared_experts = Expert(config, width * config.n_shared_experts, "fp8", precision)
        self.config = config
        self.precision = precision
        self.loop = loop
        self.share = share
        self._prefix = f"layers.{layer}.ffn"

    def forward(self, y: Tensor, valid: Tensor | None, tap: Tap) -> Tensor:
        """Return the sum of the shared and the chosen experts, (T, D) in the activation dtype.

        Args:
            y: (T, D), normalised input.
            valid: bool (T,), false on padding rows, which choose no expert; None when every row is real.
            tap: see `port/model/taps.py`.
        """
        config, prefix = self.config, self._prefix
        logits = tap(f"{prefix}.router_logits", self.gate(y))
        ids, weights = route(
            logits, self.gate.bias, topk=config.num_experts_per_tok, scaling=config.routed_scaling_factor
        )
        if valid is not None:
            ids = torch.where(valid.unsqueeze(-1), ids, -1)
            weights = torch.where(valid.unsqueeze(-1), weights, 0.0)
        ids = tap(f"{prefix}.router_ids", ids)
        weights = tap(f"{prefix}.router_weights", weights)
        y_in = self.precision.linear_input(y)
        shared = self.shared_experts(y_in).to(torch.float32)
        if self.share is not None:
            total = self._exchanged(self.share, y, ids, weights, shared)
        elif self.precision.profile.moe_sum == "expert_order":
            routed = torch.zeros(y.shape, dtype=torch.float32, device=y.device)
            total = self._add_routed(routed, y_in, ids, weights) + shared
        else:
            slots = torch.zeros(y.shape[0], ids.shape[1], y.shape[1], dtype=torch.float32, device=y.device)
            total = shared
            for output in self._fill_slots(slots, y_in, ids, weights).unbind(dim=1):
                total = total + output
        return tap(f"{prefix}.out", total.to(self.precision.activation))

    def take_part(self) -> None:
        """Run this rank's experts for the other ranks in one pass, with no row of its own."""
        if self.share is not None:
            device = self.gate.weight.device
            y = torch.empty(0, self.config.hidden_size, dtype=self.precision.activation, device=device)
            empty = torch.empty(0, self.config.num_experts_per_tok, device=device)
            self._exchanged(self.share, y, empty.to(torch.int64), empty, y.to(torch.float32))

    def _exchanged(self, share: ExpertShare, y: Tensor, ids: Tensor, weights: Tensor, shared: Tensor) -> Tensor:
        """Return the same sum with experts on several ranks, float32 (T, D)."""
        outputs = share.outputs(self.precision.packed_linear_input(y), ids, weights, self._run_received)
        if self.precision.profile.moe_sum == "expert_order":
            return add_slots(in_expert_order(outputs, ids)) + shared
        return add_slots(outputs, first_ND=shared)

    def _run_received(self, rows: tuple[Tensor, ...], ids: Tensor, weights: Tensor) -> Tensor:
        y = self.precision.unpacked_linear_input(rows)
        return self._fill_slots(y.new_zeros(*ids.shape, y.shape[1]), y, ids, weights)

    def _local_experts(self) -> list[nn.Module]:
        """Return the experts of this rank's slots, in slot order."""
        if isinstance(self.experts, nn.ModuleList):
            return list(self.experts)
        assert self.share is not None, "experts are kept by number where ranks share them"
        return [self.experts[str(expert)] for expert in self.share.experts]

    def _add_routed(self, total: Tensor, y: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        """Return the sum of expert outputs in order of expert id, float32 (T, D)."""
        experts = self._local_experts()
        if self.loop == "all":
            for expert, module in enumerate(experts):
                weight = torch.where(ids == expert, weights, 0.0).sum(dim=-1, keepdim=True)
                total = total + module(y, weight).to(torch.float32)
            return total
        for expert, rows, slots in _rows_by_expert(ids):
            output = experts[expert](y[rows], weights[rows, slots].unsqueeze(-1))
            total.index_add_(0, rows, output.to(torch.float32))
        return total

    def _fill_slots(self, outputs: Tensor, y: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        """Return expert outputs by the slot in which the row chose them, (T, K, D) in the dtype of `outputs`."""
        experts = self._local_experts()
        if self.loop == "all":
            for expert, module in enumerate(experts):
                chosen = ids == expert
                weight = torch.where(chosen, weights, 0.0).sum(dim=-1, keepdim=True)
                output = module(y, weight).to(outputs.dtype)
                outputs = torch.where(chosen.unsqueeze(-1), output.unsqueeze(1), outputs)
            return outputs
        for expert, rows, slots in _rows_by_expert(ids):
            output = experts[expert](y[rows], weights[rows, slots].unsqueeze(-1))
            outputs[rows, slots] = output.to(outputs.dtype)
        return outputs


def _rows_by_expert(ids: Tensor) -> list[tuple[int, Tensor, Tensor]]:
    """Return, for each expert that was chosen, the rows that chose it and in which slots; one host read."""
    flat = ids.cpu().flatten()
    order = torch.argsort(flat, stable=True)
    experts, counts = torch.unique_consecutive(flat[order], return_counts=True)
    found = []
    for expert, chosen in zip(experts.tolist(), order.split(counts.tolist()), strict=True):
        if expert >= 0:
            rows = torch.div(chosen, ids.shape[1], rounding_mode="floor")
            found.append((expert, rows.to(ids.device), (chosen % ids.shape[1]).to(ids.device)))
    return found
