"""Where memory went: the storages that made the peak, and who owned them.

Each view shows the latest memory run of a journal on its main device; the timeline is in `memory_timeline`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import TYPE_CHECKING, Any, cast

from workbench.records.base import Json
from workbench.records.memory import Allocation, Counts, MemoryPeak
from workbench.units import bytes_text, count_text, table_text
from workbench.views.base import TableView, html_table
from workbench.views.memory_roles import ROLES, look_of
from workbench.views.memory_runs import MemoryRun, OwnerTotal, Source, last_run, owner_totals
from workbench.views.memory_timeline import MemoryTimeline, memory_timeline

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COUNTED: dict[tuple[Counts, bool], str] = {
    ("tensors", False): "observed, counting storages of tensors",
    ("allocator", False): "observed, counting everything the allocator gave",
    ("tensors", True): "computed from shapes, not run on a device, counting storages of tensors",
    ("allocator", True): "computed from shapes, not run on a device, counting tensors and the workspaces of the rules",
}
"""By way of counting, and whether it was computed."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class OwnersView:
    """Owners at the peak, as a table and as bars.

    Attributes:
        title: what is shown.
        totals: most bytes first; the last one stands for all others where there are more.
        roles: bytes by role of each of them, in the same order.
        note: share of the unknown, and what was left out.
    """

    title: str
    totals: tuple[OwnerTotal, ...]
    roles: tuple[dict[str, int], ...]
    note: str = ""

    def __str__(self) -> str:
        body = table_text(_OWNER_HEADER, self._cells(), align="prrll") if self.totals else "(nothing)"
        return "\n".join([self.title, body, *wrap(self.note, width=100)])

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return html_table(self.title, _OWNER_HEADER, self._cells(), self.note, "prrll")

    def to_dict(self) -> dict[str, Json]:
        """Return one dict per owner, with bytes by role."""
        rows: list[Json] = [
            {
                "owner": total.owner,
                "bytes": total.nbytes,
                "count": total.count,
                "roles": dict(roles),
                "largest_op": total.largest.op,
                "largest_bytes": total.largest.nbytes,
                "source": total.largest.source,
            }
            for total, roles in zip(self.totals, self.roles, strict=True)
        ]
        return {"title": self.title, "rows": rows, "note": self.note}

    def figure(self) -> Figure:
        """Return horizontal bars, one an owner, split by role; a role has a colour and a hatch."""
        from matplotlib.figure import Figure

        count = max(1, len(self.totals))
        figure = Figure(figsize=(9.0, 1.6 + 0.32 * count), layout="constrained")
        # matplotlib types the keywords of its methods as unknown.
        axes = cast("Any", figure.add_subplot())
        axes.set_title(self.title, loc="left", fontsize=10)
        if not self.totals:
            axes.text(0.5, 0.5, "nothing was allocated", ha="center", va="center", transform=axes.transAxes)
        lefts = [0.0] * len(self.totals)
        for role in ROLES:
            widths = [roles.get(role, 0) / 2**20 for roles in self.roles]
            if not any(widths):
                continue
            colour, hatch = look_of(role)
            axes.barh(range(len(widths)), widths, left=lefts, color=colour, hatch=hatch, edgecolor="white", label=role)
            lefts = [left + width for left, width in zip(lefts, widths, strict=True)]
        axes.set_yticks(range(len(self.totals)), [total.owner or "(root)" for total in self.totals], fontsize=8)
        axes.invert_yaxis()
        axes.set_xlabel("MiB at the peak")
        if self.totals:
            axes.legend(fontsize=8)
        return figure

    def _cells(self) -> list[tuple[str, ...]]:
        whole = sum(total.nbytes for total in self.totals) or 1
        return [
            (
                total.owner or "(root)",
                bytes_text(total.nbytes),
                f"{100 * total.nbytes / whole:.0f} %",
                ", ".join(f"{role} {bytes_text(size)}" if len(roles) > 1 else role for role, size in roles.items()),
                f"{total.largest.op.removeprefix('aten::')}: {total.largest.source_text}",
            )
            for total, roles in zip(self.totals, self.roles, strict=True)
        ]


_OWNER_HEADER = ("owner", "bytes", "share", "roles", "largest")


def memory_table(
    source: Source, *, top: int = 20, device: str | None = None, counts: Counts | None = None
) -> TableView:
    """Return the storages that made the peak, largest first.

    Args:
        source: a journal, findings, or records.
        top: rows at most.
        device: which device; None for the main one.
        counts: "tensors" or "allocator"; None for the one that counts more, where it was counted.
    """
    run = last_run(source, device=device, counts=counts)
    held = sorted(run.at_peak, key=lambda one: (-one.nbytes, one.born))
    rows = tuple(_table_row(one, run.peak) for one in held[:top])
    left = held[top:]
    note = _note(run)
    if left:
        note += f"; {count_text(len(left), 'storage')} of {bytes_text(sum(one.nbytes for one in left))} not shown"
    return TableView(
        title=_title("Storages at the peak", run),
        header=("bytes", "share", "role", "owner", "operation", "tensor", "line"),
        rows=rows,
        data=tuple(one.to_json() for one in held[:top]),
        note=note,
        align="rrlplll",
    )


def top_owners(source: Source, *, top: int = 10, device: str | None = None, counts: Counts | None = None) -> OwnersView:
    """Return who held the most when the sum was highest; arguments as in `memory_table`."""
    run = last_run(source, device=device, counts=counts)
    totals = owner_totals(run.at_peak)
    shown = totals[:top]
    note = _note(run)
    if len(totals) > top:
        note += f"; {count_text(len(totals) - top, 'owner')} with less not shown"
    return OwnersView(
        title=_title("Owners at the peak", run),
        totals=shown,
        roles=tuple(_by_role([one for one in run.at_peak if one.owner == total.owner]) for total in shown),
        note=note,
    )


def peaks_table(source: Source) -> TableView:
    """Return every answer of the latest memory run: device, way of counting, baseline, peak, rest."""
    run = last_run(source)
    return TableView(
        title="Memory of the run",
        header=("device", "counts", "baseline", "peak above it", "at", "left at the end", "storages", "unknown"),
        rows=tuple(
            (
                one.device,
                one.counts,
                bytes_text(one.baseline_bytes),
                f"{one.peak_bytes_above_baseline:,} B",
                one.peak_op or "-",
                f"{one.live_bytes_at_end:,} B",
                f"{one.allocation_count:,}",
                _unknown_text(one),
            )
            for one in run.peaks
        ),
        data=tuple(one.to_json() for one in run.peaks),
        align="llrrlrrr",
    )


def _table_row(one: Allocation, peak: MemoryPeak | None) -> tuple[str, ...]:
    whole = 0 if peak is None else peak.peak_bytes_above_baseline
    return (
        bytes_text(one.nbytes),
        f"{100 * one.nbytes / whole:.0f} %" if whole else "-",
        one.role,
        one.owner or "(root)",
        one.op.removeprefix("aten::"),
        f"{_short(one.dtype)}[{'x'.join(map(str, one.shape))}]" if one.dtype else "-",
        one.source_text or "(unknown)",
    )


def _short(dtype: str) -> str:
    """Return a dtype as short as compilers write it: `f32`, `bf16`, `f8_e4m3fn`, `i64`."""
    for long, short in (("bfloat", "bf"), ("float", "f"), ("uint", "u"), ("int", "i")):
        if dtype.startswith(long):
            return short + dtype.removeprefix(long)
    return dtype


def _by_role(allocations: Sequence[Allocation]) -> dict[str, int]:
    sums: dict[str, int] = {}
    for one in allocations:
        sums[one.role] = sums.get(one.role, 0) + one.nbytes
    return {role: sums[role] for role in ROLES if role in sums}


def _title(what: str, run: MemoryRun) -> str:
    if run.peak is None:
        return f"{what}: no memory run recorded"
    above = bytes_text(run.peak.peak_bytes_above_baseline)
    return f"{what}: {above} on {run.peak.device}, at {run.peak.peak_op or 'no operation'}"


def _note(run: MemoryRun) -> str:
    if run.peak is None:
        return ""
    computed = {one.basis for one in (*run.own, *run.baseline)} == {"computed"}
    return f"{_COUNTED[run.peak.counts, computed]}; owner and line unknown for {_unknown_text(run.peak)}"


def _unknown_text(peak: MemoryPeak) -> str:
    whole = peak.peak_bytes_above_baseline
    return f"{100 * peak.unknown_bytes_at_peak / whole:.0f} %" if whole else "0 %"


__all__ = ["MemoryTimeline", "OwnersView", "memory_table", "memory_timeline", "peaks_table", "top_owners"]
