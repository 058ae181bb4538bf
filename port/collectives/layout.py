"""Which ranks work together on what: sizes in, lists of ranks out; pure arithmetic, no process group is touched.

| group | ranks | used for |
|---|---|---|
| world | all | averages over everybody |
| local | one rank alone | the fallback where a group has one member |
| data | equal context rank, different requests | votes on the next step |
| context | consecutive runs of `context_parallel` | prefill of one long prompt; not in this port |
| expert | consecutive runs of `expert_parallel` | dispatch and combine |
| expert_host | the same runs | statistics, on the host |
| engram | consecutive runs of `engram_parallel` | rows of sharded tables |

Source: deepinfer 0.1.0, described in the runtime contracts, section 1.1.
"""

from dataclasses import dataclass, fields

from port.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelLayout:
    """How many ranks share what.

    Attributes:
        data_parallel: replicas of everything that is not shared, each with requests of its own.
        context_parallel: ranks that share one prefill; only 1 here.
        expert_parallel: ranks that share the routed experts.
        engram_parallel: ranks that share the Engram tables.
    """

    data_parallel: int = 1
    context_parallel: int = 1
    expert_parallel: int = 1
    engram_parallel: int = 1

    def __post_init__(self) -> None:
        sizes = {spec.name: getattr(self, spec.name) for spec in fields(self)}
        problems = [f"{name}: expected at least 1; found {size}" for name, size in sizes.items() if size < 1]
        if not problems:
            busy, world = self.data_parallel * self.context_parallel, self.world_size
            for whole, product, name, count in (
                ("data_parallel * context_parallel", busy, "expert_parallel", self.expert_parallel),
                ("the world size", world, "data_parallel * context_parallel", busy),
                ("the world size", world, "engram_parallel", self.engram_parallel),
            ):
                if product % count:
                    problems.append(f"{name}: expected a divisor of {whole} ({product}); found {count}")
        if problems:
            raise ConfigError("the ranks cannot be laid out: " + "; ".join(problems) + ".")

    @property
    def world_size(self) -> int:
        """Ranks in all."""
        return max(self.data_parallel * self.context_parallel, self.engram_parallel)

    def groups(self) -> dict[str, tuple[tuple[int, ...], ...]]:
        """Return the ranks of every group by kind of group; each kind has every rank exactly once."""
        world, context = self.world_size, self.context_parallel
        block = self.data_parallel * context
        data = (
            tuple(range(start + offset, start + block, context))
            for start in range(0, world, block)
            for offset in range(context)
        )
        expert = _runs(world, self.expert_parallel)
        return {
            "world": _runs(world, world),
            "local": _runs(world, 1),
            "data": tuple(data),
            "context": _runs(world, context),
            "expert": expert,
            "expert_host": expert,
            "engram": _runs(world, self.engram_parallel),
        }

    def members(self, kind: str, rank: int) -> tuple[int, ...]:
        """Return the ranks of the group of one kind that a rank belongs to.

        Raises:
            ConfigError: a rank outside the world.
        """
        if not 0 <= rank < self.world_size:
            raise ConfigError(f"rank: expected 0 to {self.world_size - 1}, the ranks of {self}; found {rank}.")
        return next(group for group in self.groups()[kind] if rank in group)


def _runs(world: int, size: int) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(range(start, start + size)) for start in range(0, world, size))
