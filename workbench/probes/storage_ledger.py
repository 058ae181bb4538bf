"""The books of a memory run: every storage with its birth and death, in one count of events, and the highest sum.

No torch: a ledger is told what was born and what died. Storages alive before the run are its baseline; the peak sums
only what the run itself made.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from workbench.records.memory import Counts, Role
from workbench.user_lines import UserLine


@dataclass(slots=True, kw_only=True, eq=False)
class Block:
    """One storage. Mutable while the run lasts; see `records.memory.Allocation` for the plain attributes.

    Attributes:
        baseline: alive before the run.
        kept: it is state that a run may write: a buffer, or a tensor some object holds.
        line: of the user's that made it, None when unknown.
        scope: number of the module call it was made in, 0 outside of any.
        crossed: it was handed into or out of a module call.
        outlived_scope: it was still there when that module call ended.
        written: an operation of the run changed it.
        computed: its size comes from shapes, and there is no memory behind it.
        ignored: known so that it is not taken for something else, and not counted.
        given_role: what the caller or the module tree says it is, None where its life decides.
    """

    nbytes: int
    device: str
    dtype: str
    shape: tuple[int, ...]
    baseline: bool
    owner: str = ""
    op: str = ""
    line: UserLine | None = None
    key: str | None = None
    born: int = 0
    died: int | None = None
    scope: int = 0
    crossed: bool = False
    outlived_scope: bool = False
    kept: bool = False
    written: bool = False
    given_role: Role | None = None
    computed: bool = False
    ignored: bool = False
    counts: Counts = "tensors"

    @property
    def is_unknown(self) -> bool:
        """Neither a module nor a line is known to have made it."""
        return not self.owner and self.line is None

    @property
    def role(self) -> Role:
        """What it is: what it was given as, else what its life shows."""
        if self.kept and self.written:
            return "cache"
        if self.given_role is not None:
            return self.given_role
        if self.baseline or self.is_unknown:
            return "unknown"
        stays = self.died is None if self.scope == 0 else self.outlived_scope
        return "activation" if self.crossed or stays else "workspace"

    def changed_size(self, nbytes: int) -> bool:
        """Say whether a storage that is `nbytes` now was another size when it was last seen."""
        return self.nbytes != nbytes and not self.ignored

    def is_alive_at(self, event: int) -> bool:
        """Say whether it exists just after an event."""
        return self.born <= event and (self.died is None or self.died > event)


@dataclass(slots=True)
class Peak:
    """Highest sum of the run's own blocks, and the event that reached it first."""

    nbytes: int = 0
    event: int = 0
    op: str = ""


@dataclass(slots=True)
class Sum:
    """Bytes of the run's own blocks alive now, and their peak."""

    live: int = 0
    peak: Peak = field(default_factory=Peak)


@dataclass(slots=True)
class Ledger:
    """Blocks in order of birth, and what their lives add up to.

    Attributes:
        blocks: in order of birth, baseline first.
        event: number of the latest birth or death.
        sums: by device and by what they count: "tensors" sums storages of tensors, "allocator" everything.
    """

    blocks: list[Block] = field(default_factory=list[Block])
    event: int = 0
    sums: dict[tuple[str, Counts], Sum] = field(default_factory=lambda: defaultdict(Sum))

    def found(self, block: Block) -> None:
        """Enter a block that was alive before the run, whenever it comes to light."""
        self.blocks.append(block)

    def birth(self, block: Block) -> None:
        """Enter a block the run made just now."""
        self.event += 1
        block.born = self.event
        self.blocks.append(block)
        self._add(block, block.nbytes)

    def death(self, block: Block) -> None:
        """Enter the end of a block."""
        self.event += 1
        block.died = self.event
        if not block.baseline:
            self._add(block, -block.nbytes)

    def devices(self) -> tuple[str, ...]:
        """Return the devices the run's own blocks were on, the one with the highest peak first."""
        peaks = {device: total.peak.nbytes for (device, counts), total in self.sums.items() if counts == "allocator"}
        return tuple(sorted(peaks, key=lambda device: (-peaks[device], device)))

    def _add(self, block: Block, nbytes: int) -> None:
        kinds: tuple[Counts, ...] = ("tensors", "allocator") if block.counts == "tensors" else ("allocator",)
        for counts in kinds:
            total = self.sums[block.device, counts]
            total.live += nbytes
            if total.live > total.peak.nbytes:
                total.peak = Peak(total.live, self.event, block.op)


def reentered(blocks: list[Block]) -> Ledger:
    """Return the ledger of blocks whose births and deaths are known already; event numbers stay."""
    ledger = Ledger(blocks=sorted(blocks, key=lambda block: block.born))
    own = [block for block in ledger.blocks if not block.baseline]
    happened = [(block.born, block.nbytes, block) for block in own]
    happened += [(block.died, -block.nbytes, block) for block in own if block.died is not None]
    for event, nbytes, block in sorted(happened, key=lambda one: one[0]):
        ledger.event = event
        ledger._add(block, nbytes)
    return ledger
