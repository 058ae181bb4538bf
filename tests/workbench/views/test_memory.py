"""Views of memory from hand-made records: the right storages, sums and shares, and a picture that needs no colour."""

from __future__ import annotations

import json

import pytest

from workbench.journal import Journal
from workbench.records import Allocation, MemoryPeak, Note
from workbench.views.base import HATCHES, PALETTE, View
from workbench.views.memory import memory_table, memory_timeline, peaks_table, top_owners
from workbench.views.memory_roles import ROLES, look_of
from workbench.views.memory_runs import alive_at, memory_runs

VIEWS = (memory_table, memory_timeline, peaks_table, top_owners)


def allocation(block: int, nbytes: int, born: int, died: int | None = None, **changes) -> Allocation:
    fields = {
        "device": "cpu",
        "dtype": "float32",
        "shape": (nbytes // 4,),
        "role": "activation",
        "owner": "",
        "op": "aten::mul",
        "source": "model.py:3 forward",
        "source_text": "y = x * 2",
        "key": None,
        "basis": "observed",
    }
    return Allocation(block=block, nbytes=nbytes, born=born, died=died, **{**fields, **changes})


def peak(nbytes: int, event: int, **changes) -> MemoryPeak:
    fields = {
        "device": "cpu",
        "counts": "tensors",
        "baseline_bytes": 4096,
        "peak_op": "aten::mm",
        "live_bytes_at_end": 0,
        "allocation_count": 3,
        "unknown_bytes_at_peak": 0,
    }
    return MemoryPeak(peak_bytes_above_baseline=nbytes, peak_event=event, **{**fields, **changes})


RUN = (
    allocation(0, 4096, 0, role="weight", owner="up", op="", source="", source_text="", key="up.weight"),
    allocation(1, 1024, 1, 5, owner="up"),
    allocation(2, 2048, 2, 3, role="workspace", owner="down"),
    allocation(3, 512, 4, None, owner="up", op="aten::mm"),
    peak(3072, 2, unknown_bytes_at_peak=1536),
)


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("source", [(), Journal(), (Note(text="nothing here"),)], ids=["none", "journal", "other"])
def test_a_view_of_nothing_says_so(view, source) -> None:
    shown = view(source)
    assert isinstance(shown, View)
    assert "(nothing)" in str(shown)
    assert "<table>" in shown._repr_html_()
    json.dumps(shown.to_dict())


@pytest.mark.parametrize("view", VIEWS)
def test_a_view_fits_100_columns_and_is_data(view) -> None:
    long = [
        allocation(n, 1 << 30, n, owner="layers.10.ffn.experts.100.w1" * 3, op="aten::" + "x" * 80) for n in range(1, 9)
    ]
    shown = view([*long, peak(8 << 30, 8)])
    assert max(len(line) for line in str(shown).splitlines()) <= 100
    json.dumps(shown.to_dict())


def test_the_table_holds_what_was_alive_at_the_peak_largest_first() -> None:
    shown = memory_table(RUN)
    assert [row["nbytes"] for row in shown.to_dict()["rows"]] == [2048, 1024]
    assert [row[1] for row in shown.rows] == ["67 %", "33 %"]
    assert "Storages at the peak: 3.00 KiB on cpu, at aten::mm" in str(shown)
    assert "owner and line unknown for 50 %" in str(shown)
    assert "1 storage of 1.00 KiB not shown" in memory_table(RUN, top=1).note


def test_owners_are_summed_at_the_peak_and_split_by_role() -> None:
    held = (*RUN[:3], allocation(4, 256, 2, None, owner="down", role="cache"), peak(3328, 2))
    shown = top_owners(held)
    assert [(row["owner"], row["bytes"], row["roles"]) for row in shown.to_dict()["rows"]] == [
        ("down", 2304, {"cache": 256, "workspace": 2048}),
        ("up", 1024, {"activation": 1024}),
    ]
    assert "1 owner with less not shown" in str(top_owners(held, top=1))


def test_the_timeline_follows_every_birth_and_death() -> None:
    shown = memory_timeline(RUN)
    assert [(point.event, point.total) for point in shown.points] == [
        (1, 1024),
        (2, 3072),
        (3, 1024),
        (4, 1536),
        (5, 512),
    ]
    assert shown.baseline == {"weight": 4096}
    assert "given back" in str(shown)
    assert "before the run: 4.00 KiB" in str(shown)


def test_a_long_timeline_keeps_its_highest_points() -> None:
    own = [allocation(n, 4, 2 * n - 1, 2 * n) for n in range(1, 5001)]
    own[3210] = allocation(3211, 9999, 2 * 3211 - 1, 2 * 3211)
    shown = memory_timeline([*own, peak(9999, 2 * 3211 - 1)])
    assert len(shown.points) == 600
    assert max(shown.points, key=lambda point: point.total).event == 2 * 3211 - 1
    assert shown.events == 10000
    assert "of each stretch its highest point is shown" in str(shown)
    assert "9.76 KiB" in str(shown)


def test_the_latest_run_is_shown_and_each_can_be_found() -> None:
    second = (allocation(0, 64, 1), peak(64, 1))
    empty = (peak(0, 0), peak(0, 0, counts="allocator"))
    journal = Journal()
    for record in (*RUN, Note(text="between"), *second, *empty):
        journal.append(record)
    runs = memory_runs(journal)
    assert [len(run.own) for run in runs] == [3, 1, 0]
    assert [run.peak.peak_bytes_above_baseline for run in runs] == [3072, 64, 0]
    assert "(nothing)" in str(memory_table(journal))


def test_what_only_the_allocator_saw_counts_where_asked() -> None:
    extra = allocation(4, 100, 2, 3, counts="allocator", role="workspace", dtype="", shape=())
    both = (*RUN[:4], extra, peak(3072, 2), peak(3172, 2, counts="allocator"))
    assert [row["nbytes"] for row in memory_table(both).to_dict()["rows"]] == [2048, 1024, 100]
    assert [row["nbytes"] for row in memory_table(both, counts="tensors").to_dict()["rows"]] == [2048, 1024]
    assert "counting everything the allocator gave" in str(memory_table(both))


def test_a_storage_is_there_from_its_birth_until_just_before_its_death() -> None:
    assert [len(alive_at(RUN[1:4], event)) for event in range(6)] == [0, 1, 2, 1, 2, 1]


def test_another_device_of_the_run_can_be_asked_for() -> None:
    other = allocation(4, 77, 6, None, device="neuron:0", basis="computed")
    run = (*RUN[:4], other, peak(3072, 2), peak(77, 6, device="neuron:0"))
    shown = memory_table(run, device="neuron:0")
    assert [row["nbytes"] for row in shown.to_dict()["rows"]] == [77]
    assert "computed from shapes, not run on a device" in str(shown)
    assert len(peaks_table(run).rows) == 2


def test_every_role_has_a_colour_and_a_hatch_of_its_own() -> None:
    looks = [look_of(role) for role in ROLES]
    assert len({colour for colour, _ in looks}) == len({hatch for _, hatch in looks}) == len(ROLES)
    assert set(looks) <= set(zip(PALETTE, HATCHES, strict=True))


@pytest.mark.parametrize("view", [memory_timeline, top_owners])
def test_pictures_tell_roles_apart_without_colour(view, tmp_path) -> None:
    figure = view(RUN).figure()
    (axes,) = figure.axes
    drawn = [*axes.collections, *axes.patches]
    assert len({patch.get_hatch() for patch in drawn}) == 2, "activation and workspace"
    labels = axes.get_legend_handles_labels()[1]
    assert {"activation", "workspace"} <= set(labels)
    figure.savefig(tmp_path / "memory.png")
    view(()).figure().savefig(tmp_path / "empty.png")


def test_the_peak_and_the_baseline_are_drawn() -> None:
    figure = memory_timeline(RUN).figure(baseline=True)
    (axes,) = figure.axes
    assert "weight" in axes.get_legend_handles_labels()[1]
    (marker,) = axes.lines
    assert tuple(marker.get_xydata()[0]) == (2.0, (3072 + 4096) / 2**20)


def test_markup_in_names_is_escaped() -> None:
    shown = memory_table([allocation(1, 8, 1, owner="<b>", source_text="<script>"), peak(8, 1)])
    assert "<script>" not in shown._repr_html_()
