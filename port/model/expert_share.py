"""One rank's share of a layer's experts: which it holds, and how rows of all ranks get to them and back.

The order of the final sum is the caller's; nothing is added on the way, so bits do not depend on the number of ranks.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from port.checkpoint.slices import experts_of_rank
from port.collectives.expert_exchange import return_rows, send_rows
from port.collectives.parallel import Parallel
from port.runtime.eplb import ExpertBalancer, choose_replicas

RunExperts = Callable[[tuple[Tensor, ...], Tensor, Tensor], Tensor]
"""From received rows, local ids int32 (M, K) and weights (M, K): outputs by row and slot, (M, K, D)."""


class ExpertShare:
    """The exchange of one layer.

    Args:
        parallel: the rank.
        balancer: maps and counts of all layers.
        layer: index of the layer.
        static: fixed shapes (`parallel.max_tokens_per_rank` slots per pair of ranks) instead of exact sizes.
    """

    def __init__(self, parallel: Parallel, balancer: ExpertBalancer, layer: int, *, static: bool) -> None:
        slots = balancer.slots
        self.experts = experts_of_rank(
            slots.experts, parallel.expert_rank, slots.ranks, extra=parallel.requested_experts
        )
        self._parallel = parallel
        self._balancer = balancer
        self._layer = layer
        self._max_rows = parallel.max_tokens_per_rank if static else None

    def outputs(self, rows: tuple[Tensor, ...], ids_TK: Tensor, weights_TK: Tensor, run: RunExperts) -> Tensor:
        """Return expert outputs by row and slot, (T, K, D), zeros in unused slots; every rank of the group calls this.

        Args:
            rows: (T, ...) each, what the experts need of a row.
            ids_TK: int64, experts; -1 for an unused slot.
            weights_TK: float32.
            run: runs this rank's experts on rows of all ranks.
        """
        balancer, parallel = self._balancer, self._parallel
        to_physical, count, expert_count = balancer.layer(self._layer)
        if balancer.slots.extra:
            ids_TK = choose_replicas(ids_TK, to_physical, count, ep_rank=parallel.expert_rank)
        received = send_rows(
            rows,
            ids_TK,
            weights_TK,
            num_experts=balancer.slots.physical,
            group=parallel.groups.expert,
            max_rows=self._max_rows,
        ).wait()
        ids = received.route.ids_MK
        local = torch.arange(balancer.slots.local, dtype=ids.dtype, device=ids.device)
        expert_count.add_((ids.unsqueeze(-1) == local).sum(dim=(0, 1), dtype=torch.int32))
        return return_rows(run(received.rows, ids, received.weights_MK), received.route).wait()


def in_expert_order(outputs_TKD: Tensor, ids_TK: Tensor) -> Tensor:
    """Return outputs with each row's slots in ascending order of expert; unused slots, which are zeros, come first."""
    slot = torch.arange(ids_TK.shape[1], device=ids_TK.device)
    before = ids_TK.unsqueeze(1) < ids_TK.unsqueeze(2)
    before |= (ids_TK.unsqueeze(1) == ids_TK.unsqueeze(2)) & (slot.unsqueeze(0) < slot.unsqueeze(1))
    place_TK = before.sum(dim=-1)
    index = place_TK.unsqueeze(-1).expand(outputs_TKD.shape)
    return torch.zeros_like(outputs_TKD).scatter(1, index, outputs_TKD)
