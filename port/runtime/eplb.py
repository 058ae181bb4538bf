"""Which physical expert slot stands for which expert, how replicas are chosen, and how many rows each slot gets.

    physical slot p below E holds expert p; extra slot E + i holds expert i % E

With no extra slots these are identity maps. Counts are kept per layer and local slot; every `DEEPINFER_MOE_LB_STAT_
INTERVAL` steps they become statistics over all ranks. Moving experts between ranks is off by default upstream and not
part of this port: asking for it raises.
Source: deepinfer 0.1.0, described in the runtime contracts, section 13.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from port.collectives.transport import group_size, sum_tensor
from port.environment import ENV
from port.errors import ConfigError, PlatformError

_REPLICA_STRIDE = 23333


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertSlots:
    """The physical slots of one group of layers with equally many experts.

    Attributes:
        experts: E.
        ranks: that share them.
        requested: extra slots that were asked for.
    """

    experts: int
    ranks: int = 1
    requested: int = 0

    def __post_init__(self) -> None:
        if self.experts < 1 or self.ranks < 1 or self.requested < 0:
            raise ConfigError(
                f"expert slots: expected at least one expert, one rank and 0 or more extra slots; found {self}."
            )

    @property
    def extra(self) -> int:
        """X: what was asked for, and as many more as ranks need to share evenly."""
        return self.requested + -(self.experts + self.requested) % self.ranks

    @property
    def physical(self) -> int:
        """E + X."""
        return self.experts + self.extra

    @property
    def local(self) -> int:
        """Slots of one rank; rank i has those from i * local."""
        return self.physical // self.ranks

    def physical_to_logical(self) -> Tensor:
        """Return int64 (E + X,): the expert in each slot."""
        return torch.arange(self.physical) % self.experts

    def logical_to_physical(self) -> Tensor:
        """Return int64 (E, X + 1): the slots of each expert, ascending, then -1."""
        found = torch.full((self.experts, self.extra + 1), -1)
        for slot in range(self.physical):
            found[slot % self.experts, slot // self.experts] = slot
        return found

    def logical_count(self) -> Tensor:
        """Return int32 (E,): the slots of each expert."""
        return torch.bincount(self.physical_to_logical(), minlength=self.experts).to(torch.int32)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadStatistics:
    """Rows that experts got since the last statistics.

    Attributes:
        steps: steps they were counted over.
        rows: int64 (layers, E + X), by physical slot, all ranks.
        imbalance: (layers,), rows of the busiest rank over the mean of all ranks; 1 where nothing was counted.
    """

    steps: int
    rows: Tensor
    imbalance: tuple[float, ...]


class ExpertBalancer:
    """The maps and counts of all expert layers of one rank.

    Args:
        slots: physical slots; the same for every layer.
        layers: expert layers, by global index: backbone first.
        rank: in the expert group.
        group: expert group on the host, for statistics; None for one rank.
        device: where maps and counts lie.

    Attributes:
        expert_count: int32 (layers, local slots), filled by dispatch, zeroed every step.
        physical_to_logical_map: int64 (layers, E + X).
        logical_to_physical_map: int64 (layers, E, X + 1), -1 padded.
        logical_count: int32 (layers, E).
        statistics: of the last interval; None before the first.

    Raises:
        PlatformError: the environment asks for rearrangement.
    """

    def __init__(
        self,
        slots: ExpertSlots,
        *,
        layers: int,
        rank: int = 0,
        group: ProcessGroup | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        if ENV.DEEPINFER_EXPERT_REARRANGEMENT_STEP_INTERVAL:
            raise PlatformError(_REFUSAL)
        if slots.ranks != group_size(group):
            raise ConfigError(
                f"expert balancer: expected a group of {slots.ranks} ranks, as the slots are laid out for; found "
                f"{group_size(group)}."
            )
        self.slots = slots
        self.rank = rank
        self.group = group
        self.expert_count = torch.zeros(layers, slots.local, dtype=torch.int32, device=device)
        self.physical_to_logical_map = slots.physical_to_logical().to(device).repeat(layers, 1)
        self.logical_to_physical_map = slots.logical_to_physical().to(device).repeat(layers, 1, 1)
        self.logical_count = slots.logical_count().to(device).repeat(layers, 1)
        self.statistics: LoadStatistics | None = None
        self._total = torch.zeros(layers, slots.local, dtype=torch.int64)
        self._window: deque[Tensor] = deque(maxlen=ENV.DEEPINFER_EXPERT_COUNT_WINDOW_SIZE)
        self._steps = 0

    def layer(self, index: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return (logical_to_physical (E, X + 1), logical_count (E,), expert_count (local slots,)) of a layer.

        All three are views: a dispatch that adds to `expert_count` is counted.
        """
        return self.logical_to_physical_map[index], self.logical_count[index], self.expert_count[index]

    def step(self, is_prompt: bool) -> None:
        """End a step: take its counts, and every so many steps make statistics. With one rank nothing is done.

        Every rank of the group calls this once per step, idle ones too.

        Args:
            is_prompt: whether the step was a prefill; its counts stay out of the window that looks back on decode.
        """
        if self.slots.ranks == 1:
            return
        counted = self.expert_count.to("cpu", torch.int64)
        self.expert_count.zero_()
        self._total += counted
        if not is_prompt:
            self._window.append(counted)
        self._steps += 1
        if self._steps % ENV.DEEPINFER_MOE_LB_STAT_INTERVAL == 0:
            self.statistics = self._gather(ENV.DEEPINFER_MOE_LB_STAT_INTERVAL)
            self._total.zero_()

    def window_counts(self) -> Tensor:
        """Return int64 (layers, local slots): rows of the last decode steps that are looked back on."""
        return sum(self._window, torch.zeros_like(self._total))

    def rearrange(self) -> None:
        """Refuse: experts stay where they were loaded."""
        raise PlatformError(_REFUSAL)

    def _gather(self, steps: int) -> LoadStatistics:
        slots, layers = self.slots, len(self._total)
        everywhere = torch.zeros(layers, slots.ranks, slots.local, dtype=torch.int64)
        everywhere[:, self.rank] = self._total
        everywhere = sum_tensor(everywhere, self.group)
        by_rank = everywhere.sum(dim=-1).to(torch.float64)
        mean = by_rank.mean(dim=-1)
        ratio = torch.where(mean > 0, by_rank.amax(dim=-1) / mean.clamp(min=1e-9), 1.0)
        return LoadStatistics(steps=steps, rows=everywhere.flatten(1), imbalance=tuple(ratio.tolist()))


def choose_replicas(ids_TK: Tensor, logical_to_physical: Tensor, logical_count: Tensor, *, ep_rank: int) -> Tensor:
    """Return physical slots for chosen experts: of several replicas, another one for each row and rank.

    Args:
        ids_TK: int64 (T, K), experts; -1 for an unused slot.
        logical_to_physical: int64 (E, X + 1).
        logical_count: int32 (E,).
        ep_rank: rank in the expert group; replica (ep_rank + row * 23333) % count is taken.

    Returns:
        int64 (T, K), -1 where the id is.
    """
    known = ids_TK.clamp(min=0)
    count = logical_count[known]
    row = torch.arange(ids_TK.shape[0], dtype=torch.int32, device=ids_TK.device).unsqueeze(-1)
    # Remainders before the product, so that int32 is enough for any number of rows.
    copy = torch.remainder((row % count) * torch.remainder(_REPLICA_STRIDE, count) + ep_rank, count)
    places = logical_to_physical.flatten()[known * logical_to_physical.shape[1] + copy]
    return torch.where(ids_TK >= 0, places, -1)


def install(balancer: ExpertBalancer | None) -> None:
    """Make a balancer the one `current` returns; None forgets it."""
    global _installed
    _installed = balancer


def current() -> ExpertBalancer:
    """Return the balancer of this process.

    Raises:
        PlatformError: none was installed.
    """
    if _installed is None:
        raise PlatformError(
            "eplb.current: expected an expert balancer; none is installed. Call `eplb.install(ExpertBalancer(...))` "
            "when the model is made."
        )
    return _installed


_installed: ExpertBalancer | None = None

_REFUSAL = (
    "expert rearrangement: expected DEEPINFER_EXPERT_REARRANGEMENT_STEP_INTERVAL=0; experts stay where they were "
    "loaded in this port. Unset it, and use DEEPINFER_OVERRIDE_NUM_EXTRA_EXPERTS for replicas of experts."
)
