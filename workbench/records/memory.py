"""Records about memory: every allocation with owner and lifetime, counters of the device, and the peak of a run."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from workbench.records.base import Record

Role = Literal["weight", "cache", "input", "activation", "workspace", "collective", "unknown"]
Counts = Literal["tensors", "allocator"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation(Record):
    """One storage, from its birth to its death.

    Attributes:
        block: number of the storage in order of birth, from 0.
        nbytes: bytes of the storage (not of the view).
        device: as in `cpu` or `neuron:0`.
        dtype, shape: of the tensor that brought the storage to light.
        role: weight, cache, input, activation, workspace, collective or unknown.
        owner: module path, "" outside any module.
        op: operation that made it, as in `aten::addmm`; "" for storages alive before the run.
        source: user line `file:line function`, "" when unknown.
        source_text: that line's text.
        key: checkpoint key for weights, None otherwise.
        born: event number of the birth, 0 for storages alive before the run.
        died: event number of the death, None while alive at the end.
        basis: "observed" or "computed" (dry).
        counts: "tensors" for storages of tensors, "allocator" for what only the allocator sees (scalar
            wrappers, kernel scratch).
    """

    kind: ClassVar[str] = "allocation"
    volatile: ClassVar[frozenset[str]] = frozenset({"source"})
    block: int
    nbytes: int
    device: str
    dtype: str
    shape: tuple[int, ...]
    role: Role
    owner: str
    op: str
    source: str
    source_text: str
    key: str | None
    born: int
    died: int | None
    basis: Literal["observed", "computed"]
    counts: Counts = "tensors"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPeak(Record):
    """The answer of one memory run on one device.

    Attributes:
        device: where.
        counts: what the figures count, see `Allocation.counts`.
        baseline_bytes: alive before the run began.
        peak_bytes_above_baseline: highest sum of what the run itself allocated.
        peak_event: event at which the peak was reached first.
        peak_op: operation at that event.
        live_bytes_at_end: of the run's own allocations, still alive.
        allocation_count: storages the run made.
        unknown_bytes_at_peak: share of the peak without owner or line.
    """

    kind: ClassVar[str] = "memory_peak"
    device: str
    counts: Counts
    baseline_bytes: int
    peak_bytes_above_baseline: int
    peak_event: int
    peak_op: str
    live_bytes_at_end: int
    allocation_count: int
    unknown_bytes_at_peak: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySample(Record):
    """Counters of a device, read after a synchronisation.

    Attributes:
        device: where.
        reserved_bytes, allocated_bytes, active_bytes: None where the device does not count them.
    """

    kind: ClassVar[str] = "memory_sample"
    device: str
    reserved_bytes: int | None
    allocated_bytes: int | None
    active_bytes: int | None
