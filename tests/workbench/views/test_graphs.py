"""Graph breaks, recompiles and the map of graphs, from hand-made records and from nothing."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from workbench.journal import Journal
from workbench.records.base import Stamp
from workbench.records.graphs import CapturedGraph, GraphBreak, GraphSummary, Recompile, SourceFrame
from workbench.views.base import View
from workbench.views.graphs import break_report, break_table, graph_map, recompile_table

_BREAK = GraphBreak(
    file="model.py",
    line=20,
    function="forward",
    text="slot, token = torch.where(mask[e])",
    reason="Dynamic shape operator",
    reason_class="dynamic_shape_op",
    registry_id="GB0036",
    explanation="The output's shape depends on <input> data.",
    hints=("Set a flag.", "Use a mask."),
    frames=(
        SourceFrame(file="model.py", line=20, function="forward", text="slot, token = torch.where(mask[e])"),
        SourceFrame(file="main.py", line=3, function="run", text="model(x)"),
    ),
    modules=("layers.0.ffn", "layers.1.ffn"),
    frame_skipped=True,
    in_loop=True,
    intentional=False,
    log_records=1,
    calls=4,
)
_BEHIND = replace(_BREAK, line=21, in_loop=False, frame_skipped=False, pass_index=1, calls=None, modules=())


def _graph(index, *modules, nodes=3):
    return CapturedGraph(index=index, node_count=nodes, op_counts=(("linear", nodes),), modules=modules, guard_count=2)


def _summary(**changes):
    values = {
        "backend": "eager",
        "graph_count": 2,
        "break_sites": 2,
        "recompile_count": 1,
        "skipped_frames": 1,
        "warnings": (),
        "complete": True,
        "modules": ("", "layers.0.attn", "layers.0.ffn", "layers.1.attn", "layers.1.ffn"),
    }
    return GraphSummary(**{**values, **changes})


_RECORDS = (
    _graph(0, "layers.0.attn", "layers.1.attn"),
    _graph(1, "layers.0.ffn", nodes=5),
    _BREAK,
    _BEHIND,
    Recompile(function="forward", file="model.py", line=18, reason="x.shape[0] == 2\nmore"),
    _summary(),
)


@pytest.mark.parametrize("view", [break_table, break_report, graph_map, recompile_table])
def test_nothing_gives_an_empty_view(view):
    for source in ([], Journal()):
        shown = view(source)
        assert isinstance(shown, View)
        assert "(nothing)" in str(shown)
        assert "(nothing)" in shown._repr_html_() or "<tbody></tbody>" in shown._repr_html_()
        json.dumps(shown.to_dict())


@pytest.mark.parametrize("view", [break_table, break_report, graph_map, recompile_table])
def test_every_line_fits_the_terminal_and_the_same_records_give_the_same_text(view):
    long = replace(_BREAK, file="a/" * 60 + "m.py", text="x" * 300, explanation="words " * 90, reason="r " * 99)
    records = (*_RECORDS, long, _summary(warnings=("w " * 120,)))
    assert str(view(records)) == str(view(records))
    assert max(len(line) for line in str(view(records)).splitlines()) <= 100


def test_a_journal_and_its_records_show_the_same():
    journal = Journal()
    for record in _RECORDS:
        journal.append(record)
    assert str(break_table(journal)) == str(break_table(_RECORDS))
    assert graph_map(journal).to_dict() == graph_map(_RECORDS).to_dict()


def test_the_table_says_where_what_and_how_often():
    text = str(break_table(_RECORDS))
    assert text.splitlines()[3].split("  ")[:3] == ["1", "model.py:20", "dynamic_shape_op"]
    assert "eager frame, loop" in text
    assert "goes on, behind" in text
    assert "2 breaks, 2 graphs, 1 recompile, 1 function wholly eager" in text
    assert break_table(_RECORDS).to_dict()["rows"][0]["calls"] == 4


def test_an_incomplete_search_is_admitted_with_its_obstacles():
    shown = break_table([_summary(complete=False, warnings=("not looked past: f is a generator",))])
    text = " ".join(str(shown).split())
    assert "not every line reached was examined" in text
    assert "note: not looked past: f is a generator" in text


def test_the_report_marks_the_source_line_and_gives_reason_and_advice():
    text = str(break_report(_RECORDS[2:3]))
    assert text == (
        "1. model.py:20 in forward: dynamic_shape_op (GB0036)\n"
        "    > slot, token = torch.where(mask[e])\n"
        "      ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n"
        "    Dynamic shape operator\n"
        "    in a loop; the whole frame runs eagerly; reached 4 times; by layers.0.ffn, layers.1.ffn\n"
        "    why: The output's shape depends on <input> data.\n"
        "    try: Set a flag.\n"
        "    try: Use a mask.\n"
        "    from main.py:3 in run: model(x)"
    )


def test_the_report_escapes_what_a_program_says():
    page = break_report([replace(_BREAK, text="<script>x</script>")])._repr_html_()
    assert "<script>" not in page
    assert "&lt;input&gt;" in page


def test_the_report_says_what_was_asked_for_and_what_a_plain_run_hides():
    asked = replace(_BREAK, intentional=True, pass_index=2)
    assert "asked for by the author; behind an earlier break" in " ".join(str(break_report([asked])).split())


def test_the_map_has_a_row_for_each_module_with_its_graphs_and_breaks():
    rows = {row.module: row for row in graph_map(_RECORDS, depth=3).rows}
    assert rows["layers.0.attn"].graphs == (0,)
    assert rows["layers.0.ffn"].graphs == (1,)
    assert rows["layers.0.ffn"].breaks == (1,)
    assert rows["layers.1.ffn"].graphs == ()
    assert rows["layers.1.ffn"].note.startswith("in no graph")
    assert rows["layers.0.attn"].note == ""


def test_the_map_gathers_modules_to_a_depth():
    shown = graph_map(_RECORDS, depth=2)
    assert [(row.label, row.graphs, row.breaks) for row in shown.rows] == [
        ("(root)", (), ()),
        ("layers.0", (0, 1), (1,)),
        ("layers.1", (0,), (1,)),
    ]
    assert "layers.0  0-1     #1" in str(shown)


def test_the_map_chooses_a_depth_that_fits():
    graphs = [_graph(0, *(f"layers.{layer}.attn.{part}" for layer in range(6) for part in range(9)))]
    assert len(graph_map(graphs).rows) == 6
    many = [_graph(0, *(f"part{number}" for number in range(50)))]
    assert (len(graph_map(many).rows), graph_map(many).truncated) == (40, 10)
    assert "10 rows more" in str(graph_map(many))


def test_a_module_that_was_not_watched_is_not_called_eager():
    (row,) = graph_map([_graph(0, "fc"), _summary(modules=())]).rows
    assert (row.ran, row.note) == (None, "")


def test_a_map_shows_one_capture_of_a_journal():
    two = [*_RECORDS, _graph(0, "head"), _summary(modules=())]
    assert [row.module for row in graph_map(two).rows] == ["head"]
    assert len(graph_map(two, capture=0).rows) == 5
    with pytest.raises(ValueError, match="capture: expected 0 to 1, found 2"):
        graph_map(two, capture=2)


def test_a_depth_below_one_is_refused():
    with pytest.raises(ValueError, match="depth: expected at least 1, found 0"):
        graph_map([], depth=0)


def test_the_map_is_drawn_with_colours_and_hatches():
    figure = graph_map(_RECORDS, depth=3).figure()
    (axes,) = figure.axes
    looks = {(patch.get_facecolor(), patch.get_hatch()) for patch in axes.patches}
    assert len(looks) == 3, "two graphs and the mark of no graph"
    assert len({hatch for _, hatch in looks}) == 3, "told apart without colour"
    assert [label.get_text() for label in axes.get_yticklabels()][:2] == ["(root)", "layers.0.attn"]
    assert "break #1" in [text.get_text() for text in axes.texts]


def test_nothing_is_drawn_as_an_empty_picture():
    (axes,) = graph_map([]).figure().axes
    assert [text.get_text() for text in axes.texts] == ["no graph was captured"]


def test_a_recompile_names_the_guard():
    assert "x.shape[0] == 2 more" in str(recompile_table(_RECORDS))


def test_the_phase_of_a_capture_is_shown():
    assert "decode: 2 breaks" in str(break_table([_summary(stamp=Stamp(phase="decode"))]))
