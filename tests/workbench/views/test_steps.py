"""Views of hand-made journals: data first, then text, HTML and pictures."""

import pytest

from workbench.journal import Journal
from workbench.records import CheckRow, DiscreteFlip, Stamp, StepFailure, StepTiming, TensorDiff
from workbench.views.base import View
from workbench.views.checks import check_details, check_table
from workbench.views.errors import error_plot
from workbench.views.steps import diff_table, flip_table, step_table


def diff(step: int, name: str, rel_l2: float | None, verdict: str, error: str = "accumulated") -> TensorDiff:
    return TensorDiff(
        stamp=Stamp(step=step, module=name.rpartition(".")[0], phase="prefill"),
        name=name,
        error=error,  # type: ignore[arg-type]
        max_abs=rel_l2,
        max_rel=rel_l2,
        rel_l2=rel_l2,
        cosine=1.0,
        worst_index=(0,),
        max_steps=2.0,
        tolerance="any (because)",
        verdict=verdict,  # type: ignore[arg-type]
    )


def timing(step: int, module: str, side: str = "reference", weight_bytes: int = 0) -> StepTiming:
    stamp = Stamp(step=step, module=module, phase="prefill")
    return StepTiming(stamp=stamp, side=side, name=module, step_kind="ffn", step_s=0.25, weight_bytes=weight_bytes)


@pytest.fixture
def journal() -> Journal:
    journal = Journal()
    for record in (
        timing(0, "embed"),
        timing(0, "embed", "candidate"),
        diff(0, "embed.out", 0.0, "match"),
        timing(1, "layers.0.ffn"),
        timing(1, "layers.0.ffn", "candidate"),
        diff(1, "layers.0.ffn.in", 1e-6, "match"),
        diff(1, "layers.0.ffn.out", 0.5, "differ"),
        diff(1, "layers.0.ffn.out", 0.4, "differ", "isolated"),
        timing(2, "layers.1.ffn", weight_bytes=2048),
        DiscreteFlip(
            stamp=Stamp(step=2, module="layers.1.ffn", phase="prefill"),
            name="layers.1.ffn.router_ids",
            error="accumulated",
            rows=6,
            flipped_rows=2,
            first_row=4,
        ),
        timing(3, "head"),
        StepFailure(stamp=Stamp(step=3, module="head"), side="candidate", name="head", error="X: y", traceback_text=""),
        CheckRow(subject="len3", check="prefill logits", passed=True, worst=1e-6, limit=1e-4),
        CheckRow(subject="len3", check="greedy tokens", passed=False, worst=1.0, limit=0.0, note="token 2 differs"),
    ):
        journal.append(record)
    return journal


def test_rows_hold_the_worst_tensor_of_each_step(journal: Journal) -> None:
    rows = step_table(journal).to_dict()["rows"]
    assert [row["verdict"] for row in rows] == ["match", "differ", "flipped", "failed"]
    assert (rows[1]["accumulated_rel_l2"], rows[1]["isolated_rel_l2"]) == (0.5, 0.4)
    assert rows[1]["worst_tensor"] == "layers.0.ffn.out"
    assert rows[1]["isolated_differs"] is True
    assert (rows[2]["flipped_rows"], rows[2]["weight_bytes"]) == (2, 2048)


def test_text_says_verdicts_in_words(journal: Journal) -> None:
    text = str(step_table(journal))
    for word in ("ok", "DIFFER", "flipped", "FAILED", "0.4 !", "2.00 KiB", "250 ms"):
        assert word in text
    assert "4 steps, 2 out of tolerance, 1 with flips alone" in text
    assert max(map(len, text.splitlines())) <= 100


def test_only_what_differs(journal: Journal) -> None:
    assert [row["step"] for row in step_table(journal, differing=True).to_dict()["rows"]] == [1, 2, 3]
    assert [row["name"] for row in diff_table(journal, differing=True).to_dict()["rows"]] == ["layers.0.ffn.out"] * 2
    assert len(diff_table(journal, module="layers.0").to_dict()["rows"]) == 3


def test_a_step_run_again_shows_its_newer_run(journal: Journal) -> None:
    for record in (timing(1, "layers.0.ffn"), diff(1, "layers.0.ffn.out", 0.0, "match")):
        journal.append(record)
    rows = step_table(journal).to_dict()["rows"]
    assert [row["step"] for row in rows] == [0, 1, 2, 3]
    assert rows[1]["verdict"] == "match"


def test_checks_are_counted_per_prompt(journal: Journal) -> None:
    table = check_table(journal)
    assert table.rows[0][:3] == ("len3", "1/2", "FAILED")
    assert "greedy tokens: token 2 differs" in str(table)
    assert len(check_details(journal, failed=True).rows) == 1


def test_the_error_picture_has_its_points_as_data_and_marks_them_twice(journal: Journal) -> None:
    plot = error_plot(journal)
    assert [point["step"] for point in plot.to_dict()["points"]] == [0, 1]
    figure = plot.figure()
    lines = [line for line in figure.axes[0].get_lines() if line.get_label() in ("accumulated", "isolated")]
    assert {line.get_marker() for line in lines} == {"s", "o"}
    assert {line.get_linestyle() for line in lines} == {"-", "--"}
    assert figure.axes[0].get_title(loc="left") == "first out of tolerance, accumulated: layers.0.ffn (step 1)"
    assert "#" in str(plot)
    assert "o" in str(plot)


@pytest.mark.parametrize("view", [step_table, diff_table, flip_table, check_table, check_details, error_plot])
def test_every_view_of_an_empty_journal_says_so(view) -> None:
    made = view(Journal())
    assert isinstance(made, View)
    assert "noth" in str(made) or "no tensor" in str(made) or "both sides" in str(made)
    assert made._repr_html_().startswith("<table>")
    assert isinstance(made.to_dict(), dict)


def test_html_escapes_what_it_shows() -> None:
    journal = Journal()
    journal.append(diff(0, "<b>.out", 1.0, "differ"))
    assert "<b>" not in diff_table(journal)._repr_html_()
