"""How one process takes part in running a model: its groups, and what it keeps of experts and tables.

Everything dense is whole on every rank, and every rank has requests of its own: an expert-parallel rank computes its
own attention and sends rows to the ranks that hold their experts. All ranks of a group must run the same number of
forward passes; one without requests takes part with `Transformer.take_part` (`port/runtime/turns.py` keeps step).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from port.checkpoint.names import TensorSpec
from port.checkpoint.slices import RankSlice, is_table, rank_slices
from port.collectives.groups import ParallelGroups, single_process
from port.environment import ENV
from port.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallel:
    """One rank's share of the work.

    Attributes:
        groups: of this rank, see `open_groups`.
        max_tokens_per_rank: slots per pair of ranks where shapes are static (`moe="all"`), the same on every rank.
        extra_experts: redundant experts asked for; `DEEPINFER_OVERRIDE_NUM_EXTRA_EXPERTS` when None.
    """

    groups: ParallelGroups
    max_tokens_per_rank: int = 256
    extra_experts: int | None = None

    def __post_init__(self) -> None:
        layout = self.groups.layout
        if self.max_tokens_per_rank < 1:
            raise ConfigError(f"max_tokens_per_rank: expected at least 1; found {self.max_tokens_per_rank}.")
        if layout.context_parallel > 1:
            raise ConfigError(
                f"context_parallel: expected 1; found {layout.context_parallel}. A prefill shared by several ranks is "
                "not part of this port: spread requests over data-parallel ranks instead."
            )

    @classmethod
    def alone(cls) -> Parallel:
        """Return the share of a process that has everything."""
        return cls(groups=single_process())

    @property
    def requested_experts(self) -> int:
        """Redundant experts asked for."""
        return ENV.DEEPINFER_OVERRIDE_NUM_EXTRA_EXPERTS if self.extra_experts is None else self.extra_experts

    @property
    def is_shared(self) -> bool:
        """Whether other ranks hold a part of what this one needs."""
        return self.expert_ranks > 1 or self.engram_ranks > 1

    @property
    def expert_ranks(self) -> int:
        """Ranks that share the experts."""
        return self.groups.layout.expert_parallel

    @property
    def expert_rank(self) -> int:
        """This rank among them."""
        return self.groups.rank % self.expert_ranks

    @property
    def engram_ranks(self) -> int:
        """Ranks that share the Engram tables."""
        return self.groups.layout.engram_parallel

    @property
    def engram_rank(self) -> int:
        """This rank among them."""
        return self.groups.rank % self.engram_ranks

    def slices(self, table: Mapping[str, TensorSpec]) -> dict[str, RankSlice]:
        """Return what this rank keeps of each tensor of a table; tensors it does not keep are left out."""
        tables = {name: spec for name, spec in table.items() if is_table(name)}
        rest = {name: spec for name, spec in table.items() if name not in tables}
        return {
            **rank_slices(
                rest, rank=self.expert_rank, world_size=self.expert_ranks, extra_experts=self.requested_experts
            ),
            **rank_slices(tables, rank=self.engram_rank, world_size=self.engram_ranks),
        }
