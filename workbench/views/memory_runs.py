"""The memory runs a journal holds: which allocations belong together, what was alive when, and who owned it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from workbench.journal import Journal
from workbench.records import Record
from workbench.records.memory import Allocation, Counts, MemoryPeak


@runtime_checkable
class HasRecords(Protocol):
    """Findings of a probe."""

    @property
    def records(self) -> Sequence[Record]:
        """In the order they go into a journal."""
        ...


Source = Journal | HasRecords | Iterable[Record]
"""Where a view takes its records from: a journal, findings, or any records."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRun:
    """One memory run, seen on one device.

    Attributes:
        peak: the answer shown; None where the run made no record of one.
        peaks: all answers of the run.
        baseline: storages alive before it.
        own: storages it made, as far as `peak` counts them.
    """

    peak: MemoryPeak | None
    peaks: tuple[MemoryPeak, ...]
    baseline: tuple[Allocation, ...]
    own: tuple[Allocation, ...]

    @property
    def at_peak(self) -> tuple[Allocation, ...]:
        """What the run had made and not given back when its sum was highest."""
        return () if self.peak is None else alive_at(self.own, self.peak.peak_event)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerTotal:
    """What one owner held at the peak.

    Attributes:
        owner: module path, "" for the root and outside of any module.
        nbytes: of its storages.
        count: how many.
        largest: the largest of them.
    """

    owner: str
    nbytes: int
    count: int
    largest: Allocation


def memory_runs(source: Source, *, device: str | None = None, counts: Counts | None = None) -> tuple[MemoryRun, ...]:
    """Return the memory runs of a source, in order.

    Args:
        source: a journal, findings, or records.
        device: which device to look at; None for each run's main one.
        counts: "tensors" or "allocator"; None for the allocator where a run has counted it, since that is more.
    """
    runs: list[MemoryRun] = []
    allocations: list[Allocation] = []
    peaks: list[MemoryPeak] = []
    for record in _records(source):
        if isinstance(record, Allocation):
            if peaks:
                runs.append(_run(allocations, peaks, device, counts))
                allocations, peaks = [], []
            allocations.append(record)
        elif isinstance(record, MemoryPeak):
            # A run that made nothing has a peak and no allocation; its peaks never count the same thing twice.
            if any((one.device, one.counts) == (record.device, record.counts) for one in peaks):
                runs.append(_run(allocations, peaks, device, counts))
                allocations, peaks = [], []
            peaks.append(record)
    if allocations or peaks:
        runs.append(_run(allocations, peaks, device, counts))
    return tuple(runs)


def last_run(source: Source, *, device: str | None = None, counts: Counts | None = None) -> MemoryRun:
    """Return the latest memory run of a source; an empty one where there is none."""
    runs = memory_runs(source, device=device, counts=counts)
    return runs[-1] if runs else MemoryRun(peak=None, peaks=(), baseline=(), own=())


def alive_at(allocations: Iterable[Allocation], event: int) -> tuple[Allocation, ...]:
    """Return the storages there are just after an event."""
    return tuple(one for one in allocations if one.born <= event and (one.died is None or one.died > event))


def owner_totals(allocations: Iterable[Allocation]) -> tuple[OwnerTotal, ...]:
    """Return the owners of these storages, the one with the most bytes first."""
    groups: dict[str, list[Allocation]] = {}
    for one in allocations:
        groups.setdefault(one.owner, []).append(one)
    totals = [
        OwnerTotal(
            owner=owner,
            nbytes=sum(one.nbytes for one in group),
            count=len(group),
            largest=max(group, key=lambda one: one.nbytes),
        )
        for owner, group in groups.items()
    ]
    return tuple(sorted(totals, key=lambda total: (-total.nbytes, total.owner)))


def _records(source: Source) -> Iterable[Record]:
    return source.records if isinstance(source, HasRecords) else source  # pyright: ignore[reportReturnType]


def _run(
    allocations: Sequence[Allocation], peaks: Sequence[MemoryPeak], device: str | None, counts: Counts | None
) -> MemoryRun:
    wanted = device or (peaks[0].device if peaks else None)
    here = [one for one in allocations if wanted in (None, one.device)]
    kinds = {one.counts: one for one in peaks if one.device == wanted}
    peak = kinds.get(counts or ("allocator" if "allocator" in kinds else "tensors"))
    counted = ("tensors",) if peak is None or peak.counts == "tensors" else ("tensors", "allocator")
    return MemoryRun(
        peak=peak,
        peaks=tuple(peaks),
        baseline=tuple(one for one in here if not one.born),
        own=tuple(one for one in here if one.born and one.counts in counted),
    )
