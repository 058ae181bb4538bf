"""Bytes of weights each rank keeps, by category, before a byte of data is read: from a folder or a config.json alone.

| category | tensors | on each rank |
|---|---|---|
| experts | routed experts | split by expert |
| engram_tables | Engram tables | split by rows |
| engram_dense | the other Engram tensors | whole |
| embedding_head | token embedding and output head | whole |
| dense | attention, compressors, indexers, routers, shared experts, norms and hyper-connections | whole |
| draft, vision | only when asked for; draft experts are split, the rest is whole | |

Weights are kept as stored (FP8, FP4 and their scales), as the text basic mode does: one rank, no draft, no images. The
plan is arithmetic; what a device allocates beyond it (layouts, workspaces, caches) is not in it.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, get_args

from port.checkpoint.audit import audit_checkpoint
from port.checkpoint.families import Family
from port.checkpoint.index import Checkpoint
from port.checkpoint.names import Part, TensorSpec, tensor_table
from port.checkpoint.problems import checkpoint_error, errors_in
from port.checkpoint.slices import RankSlice, is_expert, is_table, rank_slices
from port.config import ModelConfig

HBM_BYTES = 24 << 30
"""Memory of one logical NeuronCore of a trn2 (LNC=2): a quarter of a chip's 96 GiB. Documented, not measured here."""

Category = Literal["experts", "engram_tables", "dense", "engram_dense", "embedding_head", "draft", "vision"]
CATEGORIES: tuple[Category, ...] = get_args(Category)

_OF_FAMILY: dict[Family, Category] = {
    "embedding": "embedding_head",
    "head": "embedding_head",
    "experts": "experts",
    "engram_tables": "engram_tables",
    "engram_dense": "engram_dense",
    "draft": "draft",
    "vision": "vision",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRow:
    """All tensors of one category.

    Attributes:
        category: see the table above.
        sharing: how ranks share it: "by expert", "by row", "whole on each rank", or "mixed".
        tensor_count: tensors this rank keeps, whole or in part.
        stored_bytes: bytes of the whole category in the checkpoint.
        rank_bytes: bytes this rank keeps, padding included.
        padding_bytes: bytes of `rank_bytes` that only pad tables.
    """

    category: Category
    sharing: str
    tensor_count: int
    stored_bytes: int
    rank_bytes: int
    padding_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightPlan:
    """The weights one rank keeps.

    Attributes:
        rank, world_size: whose plan it is.
        parts: of the model that were asked for.
        rows: by category; categories without tensors are left out.
        slices: what is kept of each tensor, by name.
    """

    rank: int
    world_size: int
    parts: tuple[Part, ...]
    rows: tuple[PlanRow, ...]
    slices: dict[str, RankSlice]

    @property
    def weights_bytes(self) -> int:
        """All bytes this rank keeps."""
        return sum(row.rank_bytes for row in self.rows)

    @property
    def stored_bytes(self) -> int:
        """All bytes of these parts in the checkpoint."""
        return sum(row.stored_bytes for row in self.rows)

    def free_bytes(self, hbm_bytes: int = HBM_BYTES) -> int:
        """Return what is left of a memory for caches, activations and workspaces; negative when it does not fit."""
        return hbm_bytes - self.weights_bytes

    def fits(self, hbm_bytes: int = HBM_BYTES) -> bool:
        """Return whether the weights alone fit."""
        return self.free_bytes(hbm_bytes) >= 0


def plan_weights(
    source: ModelConfig | Checkpoint, *, rank: int = 0, world_size: int = 1, parts: Iterable[Part] = ("text",)
) -> WeightPlan:
    """Return what one rank keeps.

    Args:
        source: a configuration, or an opened checkpoint, whose tensors must then be those of its configuration.
        rank: from 0.
        world_size: ranks that share experts and Engram tables.
        parts: of the model to keep.

    Raises:
        CheckpointError: a rank outside the world, or a checkpoint whose tensors are not as its configuration says.
        ConfigError: a checkpoint whose config.json cannot be used.
    """
    wanted = tuple(parts)
    config = source if isinstance(source, ModelConfig) else source.model_config()
    table = tensor_table(config, wanted)
    if isinstance(source, Checkpoint):
        _check_tensors(source, config, table)
    slices = rank_slices(table, rank=rank, world_size=world_size)
    rows = [_row(category, table, slices) for category in CATEGORIES]
    return WeightPlan(
        rank=rank,
        world_size=world_size,
        parts=wanted,
        rows=tuple(row for row in rows if row.stored_bytes),
        slices=slices,
    )


def category_of(spec: TensorSpec) -> Category:
    """Return the category a tensor is counted in."""
    return _OF_FAMILY.get(spec.family, "dense")


def _row(category: Category, table: dict[str, TensorSpec], slices: dict[str, RankSlice]) -> PlanRow:
    names = [name for name, spec in table.items() if category_of(spec) == category]
    kept = [slices[name] for name in names if name in slices]
    ways = {_sharing(name) for name in names}
    return PlanRow(
        category=category,
        sharing=ways.pop() if len(ways) == 1 else "mixed",
        tensor_count=len(kept),
        stored_bytes=sum(table[name].nbytes for name in names),
        rank_bytes=sum(piece.nbytes for piece in kept),
        padding_bytes=sum(piece.padding_bytes for piece in kept),
    )


def _sharing(name: str) -> str:
    if is_expert(name):
        return "by expert"
    return "by row" if is_table(name) else "whole on each rank"


def _check_tensors(checkpoint: Checkpoint, config: ModelConfig, table: dict[str, TensorSpec]) -> None:
    """Raise when a tensor this plan counts is not in the folder as counted."""
    audit = audit_checkpoint(checkpoint, config)
    errors = errors_in(audit.problems)
    # Names of whole expert groups stand for their tensors.
    concerned = [
        p for p in errors if p.tensor is None or p.tensor in table or any(n.startswith(p.tensor) for n in table)
    ]
    if concerned:
        raise checkpoint_error(f"{checkpoint.path}: the weights cannot be planned", concerned)
    absent = set(audit.absent_parts) & {spec.part for spec in table.values()}
    if absent:
        problems = [problem for problem in audit.problems if problem.severity == "warning" and problem.tensor is None]
        raise checkpoint_error(f"{checkpoint.path}: the weights cannot be planned", problems)
