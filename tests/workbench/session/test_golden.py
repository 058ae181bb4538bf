"""Golden data in the reference's place."""

import dataclasses

import pytest

from tests.workbench.session.models import CHECKPOINT, GOLDEN
from workbench.errors import PlanError, StepError
from workbench.plan import Inputs, Placement, Plan
from workbench.records import CheckRow, DiscreteFlip, TensorDiff
from workbench.session import Session
from workbench.subjects.golden_side import golden_prompt

NAME = "window_plus1"
PLAN = Plan(
    checkpoint=str(CHECKPOINT),
    golden=str(GOLDEN),
    inputs=Inputs(token_ids=(golden_prompt(GOLDEN, None, NAME)[1],), max_tokens=2),
    candidate=Placement(),
)


def test_the_model_agrees_with_the_data_step_by_step() -> None:
    with Session(PLAN) as session:
        result = session.run()
    assert (result.verdict, result.stopped) == ("match", "reached")
    compared = {diff.name for diff in session.journal.of_kind(TensorDiff)}
    assert {"logits", "layers.0.out", "layers.1.engram.out", "layers.2.attn.index_score", "norm.out"} <= compared
    chosen = {flip.name for flip in session.journal.of_kind(DiscreteFlip)}
    assert {"layers.0.ffn.router_ids", "layers.4.attn.index_topk", "layers.2.attn.candidate_blocks"} & chosen
    assert any(diff.error == "isolated" for diff in session.journal.of_kind(TensorDiff))
    assert {flip.stamp.phase for flip in session.journal.of_kind(DiscreteFlip)} == {"prefill", "decode"}


def test_another_profile_than_the_datas_is_told_apart() -> None:
    with Session(dataclasses.replace(PLAN, candidate=Placement(profile="bf16"))) as session:
        assert session.run(stop_at="never").verdict in ("differ", "flipped")


def test_an_unknown_prompt_lists_the_known_ones() -> None:
    with pytest.raises(PlanError, match=r"expected one of the prompts len1, .*; found token ids \[1, 2\]"):
        Session(dataclasses.replace(PLAN, inputs=Inputs(token_ids=((1, 2),))))
    with pytest.raises(PlanError, match="found prompt 'nobody'"):
        golden_prompt(GOLDEN, None, "nobody")


def test_more_decode_steps_than_the_data_holds_are_refused() -> None:
    with pytest.raises(PlanError, match=r"inputs\.max_tokens: expected at most 15"):
        Session(dataclasses.replace(PLAN, inputs=dataclasses.replace(PLAN.inputs, max_tokens=16)))


def test_an_unknown_mode_lists_the_known_ones() -> None:
    with pytest.raises(PlanError, match=r"expected data of mode 'fp32q', found bf16, .*fp32"):
        Session(dataclasses.replace(PLAN, reference=Placement(profile="fp32q")))


def test_golden_data_runs_nothing() -> None:
    with Session(PLAN) as session:
        session.step()
        with pytest.raises(StepError, match="it has no call to look at"):
            session.trace_graphs()
        session.rewind()
        assert session.run().verdict == "match"


def test_verification_is_a_verb_of_the_session() -> None:
    with Session(Plan(checkpoint=str(CHECKPOINT), inputs=Inputs(token_ids=((1,),)))) as session:
        assert session.verify(str(GOLDEN), prompts=("len3",))
    rows = session.journal.of_kind(CheckRow)
    assert {row.subject for row in rows} == {"len3"}
    assert {"prefill logits", "decode logits", "greedy tokens"} <= {row.check for row in rows}
