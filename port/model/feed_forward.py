"""The mixture of experts of one layer: a gate, routed experts in FP4, one shared expert in FP8."""

from typing import Literal

import torch
from torch import Tensor, nn

from port.config import ModelConfig
from port.kernels.linear import linear
from port.kernels.routing import route
from port.kernels.swiglu import clamped_swiglu
from port.model.precision import Precision
from port.model.taps import Tap
from port.model.weights import Linear, meta_parameter

MoeWalk = Literal["hit", "all"]
"""Which experts the loop visits: those some token chose (reads the ids on the host), or all, with fixed shapes."""


class Gate(nn.Module):
    """Routing weights. `bias_vl` is for image tokens, which a text model never sees; kept because it is stored."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.weight = meta_parameter(config.n_routed_experts, config.hidden_size, dtype=torch.bfloat16)
        self.bias = meta_parameter(config.n_routed_experts, dtype=torch.float32)
        self.bias_vl = meta_parameter(config.n_routed_experts, dtype=torch.float32)


class Expert(nn.Module):
    """`w2(silu(w1 x) * w3 x)`; `w1` is the gate half."""

    def __init__(self, width: int, inner: int, *, stored: Literal["fp8", "fp4"], precision: Precision) -> None:
        super().__init__()
        self.w1 = Linear(inner, width, stored=stored)
        self.w2 = Linear(width, inner, stored=stored)
        self.w3 = Linear(inner, width, stored=stored)
        self.precision = precision

    def forward(self, x_in: Tensor, weight: Tensor | None, *, limit: float) -> Tensor:
        """Return (T, D) in the activation dtype.

        Args:
            x_in: (T, D), already as a quantised linear sees it.
            weight: float32 (T, 1) routing weight, applied before `w2`; None for the shared expert.
            limit: clamp of the gated activation.
        """
        precision = self.precision
        gate = self.w1(x_in, operands=precision.operands, out_dtype=precision.activation)
        up = self.w3(x_in, operands=precision.operands, out_dtype=precision.activation)
        product = precision.ffn_product(clamped_swiglu(gate, up, weight, limit=limit))
        return self.w2(precision.linear_input(product), operands=precision.operands, out_dtype=precision.activation)


class FeedForward(nn.Module):
    """One layer's feed-forward part. Names are the checkpoint's."""

    def __init__(self, config: ModelConfig, layer: int, precision: Precision, walk: MoeWalk) -> None:
        super().__init__()
        width, inner = config.hidden_size, config.moe_intermediate_size
        self.gate = Gate(config)
        self.experts = nn.ModuleList(
            Expert(width, inner, stored="fp4", precision=precision) for _ in range(config.n_routed_experts)
        )
        self.shared_experts = Expert(width, inner * config.n_shared_experts, stored="fp8", precision=precision)
        self.config = config
        self.precision = precision
        self.walk = walk
        self._prefix = f"layers.{layer}.ffn"

    def forward(self, y: Tensor, tap: Tap) -> Tensor:
        """Return (T, D) in the activation dtype: the routed experts' sum plus the shared expert.

        Args:
            y: (T, D), normalised input.
            tap: see `port/model/taps.py`.
        """
        config, precision, prefix = self.config, self.precision, self._prefix
        logits = linear(y, self.gate.weight, operands=precision.operands, out_dtype=torch.float32)
        logits = tap(f"{prefix}.router_logits", logits)
        ids, weights = route(
            logits, self.gate.bias, topk=config.num_experts_per_tok, scaling=config.routed_scaling_factor
        )
        ids, weights = tap(f"{prefix}.router_ids", ids), tap(f"{prefix}.router_weights", weights)
        x_in = precision.linear_input(y)
        shared = self.shared_experts(x_in, None, limit=config.swiglu_limit).to(torch.float32)
        if precision.profile.moe_sum == "shared_then_slots":
            out = self._sum_in_slot_order(shared, x_in, ids, weights)
        else:
            out = self._sum_in_expert_order(x_in, ids, weights) + shared
        return tap(f"{prefix}.out", out.to(precision.activation))

    def _sum_in_expert_order(self, x_in: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        """Return the float32 sum of the chosen experts' outputs, lowest expert first."""
        total = torch.zeros(x_in.shape, dtype=torch.float32, device=x_in.device)
        if self.walk == "all":
            for number, expert in enumerate(self.experts):
                chosen = ids == number
                weight = torch.where(chosen, weights, 0).sum(dim=-1, keepdim=True)
                part = expert(x_in, weight, limit=self.config.swiglu_limit).to(torch.float32)
                # Not chosen adds nothing, also where the expert overflows for a token that never asked for it.
                total = torch.where(chosen.any(dim=-1, keepdim=True), total + part, total)
            return total
        for number, rows, slots in self._hit(ids):
            weight = weights[rows, slots].unsqueeze(-1)
            part = self.experts[number](x_in[rows], weight, limit=self.config.swiglu_limit)
            total.index_add_(0, rows, part.to(torch.float32))
        return total

    def _sum_in_slot_order(self, shared: Tensor, x_in: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        """Return the shared output plus the chosen experts' outputs, first choice first, in float32."""
        slots_of = torch.zeros((*ids.shape, x_in.shape[-1]), dtype=torch.float32, device=x_in.device)
        if self.walk == "all":
            for number, expert in enumerate(self.experts):
                chosen = ids == number
                weight = torch.where(chosen, weights, 0).sum(dim=-1, keepdim=True)
                part = expert(x_in, weight, limit=self.config.swiglu_limit).to(torch.float32)
                slots_of = torch.where(chosen.unsqueeze(-1), part.unsqueeze(1), slots_of)
        else:
            for number, rows, slots in self._hit(ids):
                weight = weights[rows, slots].unsqueeze(-1)
                part = self.experts[number](x_in[rows], weight, limit=self.config.swiglu_limit)
                slots_of[rows, slots] = part.to(torch.float32)
        total = shared
        for slot in range(ids.shape[1]):
            total = total + slots_of[:, slot]
        return total

    def _hit(self, ids: Tensor) -> list[tuple[int, Tensor, Tensor]]:
        """Return (expert, rows, slots) for every expert some token chose, ascending; one read of the ids."""
        flat = ids.flatten()
        order = torch.argsort(flat, stable=True)
        rows, slots = torch.div(order, ids.shape[1], rounding_mode="floor"), order % ids.shape[1]
        counts = torch.bincount(flat, minlength=len(self.experts)).tolist()
        found = []
        begin = 0
        for number, count in enumerate(counts):
            if count:
                found.append((number, rows[begin : begin + count], slots[begin : begin + count]))
            begin += count
        return found
