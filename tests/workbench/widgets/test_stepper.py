"""The buttons are the session's verbs: what a click does is an action, stands in the script, and is shown."""

from __future__ import annotations

import pytest

from tests.workbench.session.models import Stack, example, text_plan
from workbench.plan import Placement, Plan, Tolerance
from workbench.script import to_script
from workbench.session import Session
from workbench.widgets.stepper import Stepper


def _module_session(candidate: Placement) -> Session:
    rules = (Tolerance(reason="bf16 keeps 8 bits", rel_l2=0.05),)
    plan = Plan(model="module", tolerances=rules, candidate=candidate)
    return Session(plan, target=Stack().eval(), args=(example(),))


def _verbs(session: Session) -> list[tuple[str, dict[str, object]]]:
    return [(action.verb, dict(action.arguments)) for action in session.journal.actions]


def test_every_button_issues_one_verb() -> None:
    with _module_session(Placement(profile="bf16")) as session:
        stepper = session.widget()
        stepper.step.click()
        stepper.module.value = "layers.1"
        stepper.run.click()
        stepper.back.click()
        stepper.rewind.click()
        stepper.divergence.click()
        assert _verbs(session) == [
            ("step", {}),
            ("run", {"until": "layers.1"}),
            ("rewind", {"to": "layers.1"}),
            ("rewind", {"to": "start"}),
            ("first_divergence", {"error": "accumulated"}),
        ]


def test_a_click_stands_in_the_script() -> None:
    with Session(text_plan()) as session:
        session.widget().step.click()
        assert "session.step()" in to_script(session.journal)


def test_the_status_tells_the_answer_and_what_comes_next() -> None:
    with Session(text_plan()) as session:
        stepper = session.widget()
        first, second = session.points[:2]
        assert f"next: {first.module} (step 0 of" in stepper.status.value
        stepper.step.click()
        assert stepper.status.value.startswith(f"<pre>{first.module}: observed")
        assert f"next: {second.module} (step 1 of" in stepper.status.value


def test_views_are_those_of_the_journal() -> None:
    with Session(text_plan()) as session:
        stepper = session.widget()
        assert stepper.views()[0].rows == ()
        stepper.step.click()
        table, picture = stepper.views()
        assert [row[1] for row in table.rows] == [session.points[0].module]
        assert picture.rows == (), "nothing is compared without a candidate"


def test_a_refused_verb_is_told_of_and_the_buttons_work_on() -> None:
    with Session(text_plan()) as session:
        stepper = session.widget()
        stepper.module.value = "layers.<99>"
        stepper.run.click()
        assert "StepError" in stepper.status.value
        assert "layers.&lt;99&gt;" in stepper.status.value
        stepper.step.click()
        assert "observed" in stepper.status.value
        assert not stepper.step.disabled


def test_buttons_are_off_while_a_verb_runs() -> None:
    with Session(text_plan()) as session:
        stepper = session.widget()
        seen: list[bool] = []
        stepper.status.observe(lambda change: seen.append(stepper.step.disabled), "value")
        stepper.step.click()
        assert seen[0], "the first change says that it runs"
        assert not stepper.step.disabled


def test_an_error_of_our_own_gives_the_buttons_back(monkeypatch) -> None:
    def broken(self: Session) -> None:
        raise RuntimeError("planted")

    with Session(text_plan()) as session:
        stepper = Stepper(session)
        monkeypatch.setattr(Session, "step", broken)
        with pytest.raises(RuntimeError, match="planted"):
            stepper._ask(lambda: session.step())
        assert not stepper.step.disabled


def test_the_modules_of_the_run_are_offered() -> None:
    with Session(text_plan()) as session:
        options = session.widget().module.options
        assert {point.module for point in session.points} <= set(options)
        assert options[-1] == "end"


def test_shown_in_a_notebook_the_views_below_follow_every_click(monkeypatch) -> None:
    shown: list[object] = []

    def show_live(widget: object, table: object, picture: object) -> object:
        shown.extend([widget, table, picture])
        return lambda table, picture: shown.extend([table, picture])

    monkeypatch.setattr("workbench.ipython.show_live", show_live)
    with Session(text_plan()) as session:
        stepper = session.widget()
        stepper._ipython_display_()
        assert shown[0] is stepper.box
        stepper.step.click()
        assert [str(view).splitlines()[0] for view in shown[3:]] == [
            str(view).splitlines()[0] for view in stepper.views()
        ]
