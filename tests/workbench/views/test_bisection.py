"""Views of a bisection from hand-made records: words, table, picture."""

from __future__ import annotations

import pytest

from workbench.journal import Journal
from workbench.records.compiling import BisectionResult, CompileTrial, FailureSignature
from workbench.views.base import View
from workbench.views.bisection import SIMULATED, bisection_report, trial_table
from workbench.views.narrowing import narrowing_plot

_BUG = FailureSignature(outcome="compile_error", code="NCC_ITIN902", stage="TensorInitialization")
_HANG = FailureSignature(outcome="timeout")
_LINES = ("add", "sort", "dot", "slice")


def trial(
    kept: tuple[str, ...],
    signature: FailureSignature | None,
    phase: str,
    *,
    cached: bool = False,
    simulated: bool = True,
) -> CompileTrial:
    return CompileTrial(
        subject=kept,
        subject_digest="-".join(kept),
        backend="planted:sort+slice (SIMULATED)",
        simulated=True,
        outcome="ok" if signature is None else signature.outcome,
        signature=signature,
        exit_status=None if signature is _HANG else 0 if signature is None else 70,
        trial_s=0.25,
        error="" if signature is None else "[NCC_ITIN902]",
        cached=cached,
        phase_of_search=phase,
    )


def result(level: str, culprit: tuple[str, ...], **changes: object) -> BisectionResult:
    fields: dict = {
        "question": "smallest part that planted:sort+slice (SIMULATED) fails on",
        "level": level,
        "culprit": culprit,
        "minimal": True,
        "signature": _BUG,
        "trials": 5,
        "cached_trials": 1,
        "trial_seqs": (),
        "verdict": "found",
        "simulated": True,
        "leftover_processes": 0,
    }
    return BisectionResult(**{**fields, **changes})


@pytest.fixture
def journal() -> Journal:
    journal = Journal()
    for record in (
        trial(_LINES, _BUG, "whole"),
        trial(_LINES[:2], None, "prefix"),
        trial(_LINES[1:], _BUG, "suffix"),
        trial(("sort", "slice"), _BUG, "ddmin"),
        trial(("sort",), _HANG, "ddmin"),
        trial((), None, "ddmin"),
        result("layers", ("layers.2",)),
        trial(("sort", "slice"), _BUG, "whole", cached=True),
        result("nodes", ("sort", "slice"), note="graph 2 of 2", repro="out/repro.py"),
    ):
        journal.append(record)
    return journal


def test_the_report_names_what_fails_and_how_sure_that_is(journal: Journal) -> None:
    text = str(bisection_report(journal))
    assert text.splitlines() == [
        "smallest part that planted:sort+slice (SIMULATED) fails on",
        SIMULATED,
        "layers: found (5 trials, 1 more from before)",
        "    layers.2",
        "nodes: found (5 trials, 1 more from before)",
        "    sort",
        "    slice",
        "failure: compile error NCC_ITIN902 in TensorInitialization",
        "proof: without any single one of them the failure is gone",
        "note: graph 2 of 2",
        "script that shows it: out/repro.py",
    ]


def test_what_is_not_sure_is_told() -> None:
    changes = {"minimal": False, "doubts": ("dot",), "flaky": True, "whole_runs": 12, "failing_runs": 5}
    text = str(bisection_report([result("lines", ("sort",), simulated=False, leftover_processes=1, **changes)]))
    for words in ("not shown to be minimal; not judged: dot", "failed in 5 of 12 runs", "left over: 1 process"):
        assert words in text
    assert SIMULATED not in text
    passed = str(bisection_report([result("lines", _LINES, verdict="not_reproduced", signature=None)]))
    assert "the whole compiles" in passed
    assert "proof" not in passed


def test_only_the_last_bisection_is_reported() -> None:
    records = [result("lines", ("a",)), result("lines", ("b",)), result("layers", ("c",)), result("nodes", ("d",))]
    assert [one.culprit for one in bisection_report(records).results] == [("b",), ("c",), ("d",)]
    assert [one.culprit for one in bisection_report(records[:2]).results] == [("b",)]


def test_the_table_has_a_row_a_trial(journal: Journal) -> None:
    table = trial_table(journal)
    assert [row["phase"] for row in table.data] == ["whole", "prefix", "suffix", "ddmin", "ddmin", "ddmin", "whole"]
    assert table.data[4]["outcome"] == "timeout"
    assert table.rows[0][3] == "compile error NCC_ITIN902 in TensorInitialization"
    assert table.rows[4][4:] == ("-", "250 ms")
    assert table.rows[6][5] == "from before"
    assert table.note == f"6 trials run, 1 taken from before; {SIMULATED}"


def test_the_picture_shows_what_each_trial_kept(journal: Journal) -> None:
    first, second = narrowing_plot(journal).levels
    assert first.items == _LINES
    assert [step.kept for step in first.steps] == [((0, 4),), ((0, 2),), ((1, 4),), ((1, 2), (3, 4)), ((1, 2),), ()]
    assert [step.answer for step in first.steps] == ["fails", "passes", "fails", "fails", "other", "passes"]
    assert (second.items, second.steps[0].number) == (("sort", "slice"), 7)


def test_the_picture_as_text_and_figure(journal: Journal) -> None:
    plot = narrowing_plot(journal)
    lines = str(plot).splitlines()
    assert lines[2].split() == ["1", "whole", "####"]
    assert lines[3].split() == ["2", "prefix", "--.."]
    assert lines[6].split() == ["5", "ddmin", ".?.."]
    figure = plot.figure()
    assert len(figure.axes) == 2
    assert len(figure.axes[0].patches) == 6
    assert figure.axes[0].get_title(loc="right") == SIMULATED
    assert {text.get_text() for text in figure.legends[0].get_texts()} >= {"compiles", "fails in the same way"}
    assert {patch.get_hatch() for patch in figure.axes[0].patches} >= {"", "///"}


def test_equal_lines_are_told_apart_by_their_order() -> None:
    lines = ("add", "add", "sort", "add")
    plot = narrowing_plot([trial(lines, _BUG, "whole"), trial(("add", "sort", "add"), _BUG, "ddmin")])
    assert plot.levels[0].steps[1].kept == ((0, 1), (2, 4))


@pytest.mark.parametrize("view", [bisection_report, trial_table, narrowing_plot])
def test_every_view_takes_an_empty_journal_and_fits_the_terminal(view, journal: Journal) -> None:
    for source in (Journal(), journal):
        made = view(source)
        assert isinstance(made, View)
        assert max(map(len, str(made).splitlines())) <= 100
        assert made._repr_html_().startswith("<")
        assert made.to_dict()["title"]
    assert narrowing_plot(Journal()).figure().axes
