"""The ledger of a memory run as records: one per storage, and the peaks of each device and way of counting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from workbench.probes.storage_ledger import Block, Ledger
from workbench.records.base import Record, Stamp
from workbench.records.memory import Allocation, Counts, MemoryPeak
from workbench.records.steps import Fallback, StepFailure
from workbench.views.memory import peaks_table


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class MemoryFindings:
    """What one memory run found.

    Attributes:
        allocations: every storage in order of birth, those from before the run first.
        peaks: of each device and each way of counting, the main device's first.
        notes: what was done otherwise than asked.
        failure: the target's error, None when it returned.
        result: what the target returned.
    """

    allocations: tuple[Allocation, ...]
    peaks: tuple[MemoryPeak, ...]
    notes: tuple[Fallback, ...] = ()
    failure: StepFailure | None = None
    result: object = None

    @property
    def peak(self) -> MemoryPeak:
        """Peak of the main device, counting storages of tensors."""
        return next(peak for peak in self.peaks if peak.counts == "tensors")

    @property
    def allocator_peak(self) -> MemoryPeak | None:
        """Peak of the main device counting all memory; None where only tensors were counted.

        On the host as the allocator saw it, on a dry device with the rules of `workspace_rules`.
        """
        return next(
            (peak for peak in self.peaks if peak.counts == "allocator" and peak.device == self.peak.device), None
        )

    @property
    def records(self) -> tuple[Record, ...]:
        """All records, in the order they go into a journal."""
        failed = () if self.failure is None else (self.failure,)
        return (*self.allocations, *self.peaks, *self.notes, *failed)

    def __str__(self) -> str:
        return str(peaks_table(self))

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return peaks_table(self)._repr_html_()


def make_findings(
    ledger: Ledger,
    *,
    main_device: str | None,
    counted: Sequence[Counts],
    phase: str,
    notes: Sequence[Fallback] = (),
    failure: StepFailure | None = None,
    result: object = None,
) -> MemoryFindings:
    """Return the records of a finished ledger.

    Args:
        ledger: of the run.
        main_device: whose peak is the answer; None for the one with the highest peak, or where the baseline lies.
        counted: the ways of counting that were possible.
        phase: of the stamps.
        notes: see `MemoryFindings`.
        failure: see `MemoryFindings`.
        result: see `MemoryFindings`.
    """
    stamp = Stamp(phase=phase)
    main = main_device or next(iter((*ledger.devices(), *_by_size(ledger))), "cpu")
    devices = dict.fromkeys((main, *ledger.devices()))
    return MemoryFindings(
        allocations=tuple(_allocation(number, block, stamp) for number, block in enumerate(ledger.blocks)),
        peaks=tuple(_peak(ledger, device, counts, stamp) for device in devices for counts in counted),
        notes=tuple(notes),
        failure=failure,
        result=result,
    )


def _by_size(ledger: Ledger) -> list[str]:
    """Return the devices of the baseline, most bytes first."""
    sizes: dict[str, int] = {}
    for block in ledger.blocks:
        sizes[block.device] = sizes.get(block.device, 0) + block.nbytes
    return sorted(sizes, key=lambda device: (-sizes[device], device))


def _allocation(number: int, block: Block, stamp: Stamp) -> Allocation:
    return Allocation(
        stamp=stamp,
        block=number,
        nbytes=block.nbytes,
        device=block.device,
        dtype=block.dtype,
        shape=block.shape,
        role=block.role,
        owner=block.owner,
        op=block.op,
        source="" if block.line is None else str(block.line),
        source_text="" if block.line is None else block.line.text,
        key=block.key,
        born=block.born,
        died=block.died,
        basis="computed" if block.computed else "observed",
        counts=block.counts,
    )


def _peak(ledger: Ledger, device: str, counts: Counts, stamp: Stamp) -> MemoryPeak:
    total = ledger.sums[device, counts]
    here = [block for block in ledger.blocks if block.device == device]
    own = [block for block in here if not block.baseline and counts in ("allocator", block.counts)]
    at_peak = [block for block in own if block.is_alive_at(total.peak.event)]
    return MemoryPeak(
        stamp=stamp,
        device=device,
        counts=counts,
        baseline_bytes=sum(block.nbytes for block in here if block.baseline),
        peak_bytes_above_baseline=total.peak.nbytes,
        peak_event=total.peak.event,
        peak_op=total.peak.op,
        live_bytes_at_end=total.live,
        allocation_count=len(own),
        unknown_bytes_at_peak=sum(block.nbytes for block in at_peak if block.is_unknown),
    )
