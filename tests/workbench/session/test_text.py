"""The text model in a session: stepping, going back, comparing, editing, streaming."""

import pytest
import torch

from port.runtime.text_model import open_text_model
from tests.workbench.session.models import CHECKPOINT, PROMPT, text_plan
from workbench.errors import PlanError, StepError
from workbench.plan import Inputs, Placement, Tolerance
from workbench.records import DiscreteFlip, StepFailure, StepTiming, TensorDiff, TensorEdit, TensorSummary
from workbench.session import Session

BOTH = {"candidate": Placement()}


def logits(session: Session, side: str = "reference") -> torch.Tensor:
    return session.inspect("logits", side)  # type: ignore[arg-type]


def test_stepping_to_the_end_gives_the_models_own_logits() -> None:
    model = open_text_model(CHECKPOINT)
    cache = model.cache_for([len(PROMPT)])
    from port.runtime.prefill_inputs import build_prefill

    with torch.inference_mode():
        expected = model.model(build_prefill(cache.layout, [cache.admit(PROMPT)], engram=model.engram), cache)
    with Session(text_plan()) as session:
        while session.next_point is not None:
            session.step()
        assert torch.equal(logits(session), expected)


def test_decode_steps_feed_the_tokens_the_reference_chose() -> None:
    from port.runtime.generate import generate

    (expected,) = generate(open_text_model(CHECKPOINT), [PROMPT], max_tokens=4)
    with Session(text_plan(inputs=Inputs(token_ids=(PROMPT,), max_tokens=3), **BOTH)) as session:
        chosen = []
        for _ in range(4):
            session.run(until="head", stop_at="never")
            chosen.append(int(logits(session)[-1].argmax()))
            assert torch.equal(logits(session), logits(session, "candidate"))
    assert tuple(chosen) == expected.token_ids


def test_a_batch_of_prompts_steps_as_each_alone() -> None:
    prompts = (PROMPT, PROMPT[:3])
    with Session(text_plan(inputs=Inputs(token_ids=prompts, max_tokens=2))) as session:
        session.run()
        together = logits(session)
    for row, prompt in enumerate(prompts):
        with Session(text_plan(inputs=Inputs(token_ids=(prompt,), max_tokens=2))) as alone:
            alone.run()
            torch.testing.assert_close(together[row], logits(alone)[0], rtol=1e-4, atol=1e-4)


def test_two_equal_sides_match_to_the_bit_accumulated_and_isolated() -> None:
    with Session(text_plan(inputs=Inputs(token_ids=(PROMPT,), max_tokens=1), **BOTH)) as session:
        result = session.run()
    assert (result.verdict, result.stopped) == ("match", "reached")
    diffs = session.journal.of_kind(TensorDiff)
    assert {diff.error for diff in diffs} == {"accumulated", "isolated"}
    assert all(diff.max_abs == 0 for diff in diffs)
    assert not any(flip.flipped_rows for flip in session.journal.of_kind(DiscreteFlip))


def test_a_wrong_weight_on_one_side_is_the_only_isolated_error(monkeypatch) -> None:
    monkeypatch.setattr("workbench.models._shareable", lambda plan: False)
    with Session(text_plan(**BOTH)) as session:
        spoilt = session._stepping.candidate.text_model.model.layers[2].ffn_norm.weight  # type: ignore[union-attr]
        with torch.no_grad():
            spoilt.mul_(1.01)
        result = session.run(stop_at="never")
    verdicts = {
        error: {d.stamp.module for s in result.steps for d in s.diffs if d.error == error and d.verdict == "differ"}
        for error in ("isolated", "accumulated")
    }
    assert verdicts["isolated"] == {"layers.2.ffn"}
    assert {"layers.2.ffn", "layers.3.attn", "head"} <= verdicts["accumulated"]
    assert not any(name.startswith(("layers.0", "layers.1", "embed")) for name in verdicts["accumulated"])


def test_an_edit_shows_in_every_later_step_and_only_accumulated() -> None:
    plan = text_plan(candidate=Placement(profile="fp32kv"), reference=Placement(profile="fp32kv"))
    with Session(plan) as session:
        session.run(until="layers.2")
        stream = session.inspect("stream", "candidate")
        edit = session.edit("stream", stream + 0.5, note="push")
        assert edit == session.journal.of_kind(TensorEdit)[0]
        assert session.journal.capture(edit.after or "").shape == tuple(stream.shape)
        result = session.run(stop_at="never")
    assert result.steps[0].verdict == "differ"
    isolated = [diff for step in result.steps for diff in step.diffs if diff.error == "isolated"]
    assert isolated
    assert all(diff.max_abs == 0 for diff in isolated)


def test_an_intermediate_to_come_can_be_edited() -> None:
    with Session(text_plan(**BOTH)) as session:
        session.run(until="layers.1.engram")
        shape = session.inspect("stream").shape
        session.edit("layers.1.attn.in", torch.zeros(shape[0], shape[2]))
        result = session.step()
    assert result.verdict in ("differ", "flipped")
    wrong = {diff.name for diff in result.diffs if diff.verdict == "differ"}
    assert "layers.1.attn.in" in wrong
    assert "layers.1.attn.kv" in wrong


def test_an_edit_of_another_shape_is_refused() -> None:
    with Session(text_plan(**BOTH)) as session:
        session.step()
        with pytest.raises(StepError, match=r"edit of stream: expected torch.float32\[6, 4, \d+\], found .*\[2\]"):
            session.edit("stream", torch.zeros(2))


def test_rewinding_brings_back_the_same_bits_in_prefill_and_decode() -> None:
    with Session(text_plan(inputs=Inputs(token_ids=(PROMPT,), max_tokens=2))) as session:
        session.run()
        first = logits(session)
        for place in ("layers.2", "head", "layers.4.attn"):
            assert session.rewind(place) is not None
            session.run()
            assert torch.equal(logits(session), first)
        session.rewind()
        assert session.position == 0
        session.run()
        assert torch.equal(logits(session), first)


def test_rewinding_takes_edits_back() -> None:
    with Session(text_plan()) as session:
        session.run()
        expected = logits(session)
        session.rewind("layers.1")
        session.edit("stream", session.inspect("stream") * 2, side="reference")
        session.run()
        assert not torch.equal(logits(session), expected)
        session.rewind("layers.0")
        session.run()
        assert torch.equal(logits(session), expected)


def test_streaming_holds_one_step_of_weights_and_gives_the_same_bits() -> None:
    with Session(text_plan()) as resident:
        resident.run()
        expected = logits(resident)
    with Session(text_plan(residency="stream")) as session:
        model = session._stepping.reference.text_model.model  # type: ignore[attr-defined]
        largest = 0
        while session.next_point is not None:
            session.step()
            largest = max(largest, sum(not tensor.is_meta for tensor in model.state_dict().values()))
        assert torch.equal(logits(session), expected)
        timings = session.journal.of_kind(StepTiming)
    assert largest == 0, "weights stay after their step"
    assert all(timing.weight_bytes > 0 for timing in timings)
    assert sum(timing.weight_bytes for timing in timings) == _checkpoint_bytes()


def _checkpoint_bytes() -> int:
    model = open_text_model(CHECKPOINT, load=False).model
    return sum(tensor.numel() * tensor.element_size() for tensor in model.state_dict().values())


def test_profiles_differ_by_rounding_and_flips_are_reported_apart() -> None:
    with Session(text_plan(candidate=Placement(profile="bf16"))) as session:
        result = session.run(stop_at="never")
    diffs = session.journal.of_kind(TensorDiff)
    assert any(diff.max_abs for diff in diffs)
    assert all("8-bit" in diff.tolerance for diff in diffs if diff.verdict != "incomparable")
    flips = {flip.name for flip in session.journal.of_kind(DiscreteFlip)}
    assert "layers.0.ffn.router_ids" in flips
    assert not flips & {diff.name for diff in diffs}
    assert len(result.steps) == len(session.points)


def test_the_plans_own_tolerances_decide() -> None:
    strict = Tolerance(reason="bits must agree", names="layers.0.attn.*")
    loose = Tolerance(reason="anything", rel_l2=1e9)
    plan = text_plan(candidate=Placement(profile="bf16"), tolerances=(strict, loose))
    with Session(plan) as session:
        session.run(stop_at="never")
    by_rule = {diff.name: diff.verdict for diff in session.journal.of_kind(TensorDiff) if diff.error == "accumulated"}
    assert by_rule["layers.0.attn.out"] == "differ"
    assert by_rule["layers.0.ffn.in"] == "match"


def test_a_run_stops_at_the_first_difference() -> None:
    plan = text_plan(candidate=Placement(profile="bf16"), tolerances=(Tolerance(reason="bits must agree"),))
    with Session(plan) as session:
        result = session.run()
    assert result.stopped == "difference"
    assert result.steps[-1].verdict == "differ"
    assert all(step.verdict != "differ" for step in result.steps[:-1])
    assert str(result).startswith("2 steps: differ; ended: at the first difference at layers.0.attn")


def test_the_first_divergence_is_found_by_halving() -> None:
    plan = text_plan(candidate=Placement(profile="fp32kv"), reference=Placement(profile="fp32kv"))
    with Session(plan) as session:
        session.run(until="layers.3.attn")
        session.edit("stream", session.inspect("stream", "candidate") + 1)
        session.run(stop_at="never")
        found = session.first_divergence()
        assert found.first is None, "going back to the start took the edit back"
        session.rewind()
        session.edit("layers.3.ffn.in", torch.ones_like(_intermediate("layers.3.ffn.in")))
        found = session.first_divergence()
        assert (found.first, found.method) == ("layers.3.ffn", "bisection")
        assert found.comparisons <= 5 < found.steps
        assert session.next_point is not None
        assert session.next_point.index == found.index + 1


def _intermediate(name: str) -> torch.Tensor:
    with Session(text_plan()) as session:
        session.run(until=name.rpartition(".")[0])
        return session.inspect(name)


def test_every_intermediate_is_summarised_once_per_side() -> None:
    with Session(text_plan(**BOTH)) as session:
        result = session.step(count=3)
    names = [record.name for record in result.records if isinstance(record, TensorSummary)]
    assert names.count("layers.0.ffn.out") == 2
    assert [timing.name for timing in session.journal.of_kind(StepTiming)[::2]] == [
        "embed",
        "layers.0.attn",
        "layers.0.ffn",
    ]


def test_a_capture_can_be_read_back() -> None:
    with Session(text_plan()) as session:
        session.step()
        summary = session.capture("embed.out")
        stored = session.journal.capture(summary.capture or "")
        assert stored.shape == tuple(session.inspect("embed.out").shape)
        with pytest.raises(StepError, match=r"nothing cannot be seen on the reference side now; there are embed\.out"):
            session.capture("nothing")


def test_a_step_that_raises_is_a_record_and_leaves_both_sides_level(monkeypatch) -> None:
    with Session(text_plan(**BOTH)) as session:
        session.run(until="layers.1")
        model = session._stepping.candidate.text_model.model  # type: ignore[union-attr]
        whole = model.run_step
        calls = {"count": 0}

        def broken(*args, **kwargs):
            calls["count"] += 1
            if calls["count"] == 2:
                raise RuntimeError("out of patience")
            return whole(*args, **kwargs)

        for side in (session._stepping.reference, session._stepping.candidate):
            monkeypatch.setattr(side, "_run_step", broken)
        result = session.run()
        assert (result.verdict, result.stopped) == ("failed", "failure")
        (failure,) = session.journal.of_kind(StepFailure)
        assert failure.side == "candidate"
        assert failure.error == "RuntimeError: out of patience"
        assert "in broken" in failure.traceback_text
        monkeypatch.undo()
        assert session.run().verdict == "match"


def test_an_interrupt_keeps_what_there_was_and_the_run_goes_on_later(monkeypatch) -> None:
    with Session(text_plan(**BOTH)) as session:
        step, seen = session._stepping.step, []

        def interrupted():
            if len(seen) == 4:
                seen.append(None)
                raise KeyboardInterrupt
            seen.append(step())
            return seen[-1]

        monkeypatch.setattr(session._stepping, "step", interrupted)
        result = session.run()
        assert (len(result.steps), result.stopped) == (4, "interrupted")
        monkeypatch.undo()
        assert session.run().verdict == "match"


def test_only_some_layers_can_be_run() -> None:
    with Session(text_plan(layers=(0, 2))) as session:
        assert [point.module for point in session.points][-1] == "layers.1.ffn"
        assert session.run().stopped == "reached"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"inputs": Inputs()}, "expected either a prompt or token_ids"),
        ({"inputs": Inputs(token_ids=((5, 999999),))}, r"each from 0 to \d+; found \[999999\]"),
        ({"inputs": Inputs(token_ids=((),))}, "expected at least one token id"),
        ({"checkpoint": None}, "expected the folder of a checkpoint, found None"),
        ({"model": "other"}, "plan.model: expected one of deepseek_v41, module, found 'other'"),
        ({"layers": (3, 99)}, r"plan.layers: expected a range within 0:\d+"),
        ({"layers": (0, 2), "inputs": Inputs(token_ids=((1,),), max_tokens=2)}, "decode steps need every layer"),
        ({"layers": (3, 4)}, "layer 3 reads what layer"),
        ({"golden": "nowhere"}, "expected a candidate placement too"),
    ],
)
def test_a_plan_that_cannot_be_carried_out_says_why(changes: dict[str, object], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        Session(text_plan(**changes))


def test_a_compiled_candidate_runs_every_step_in_a_graph_of_its_own() -> None:
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    with Session(text_plan(candidate=Placement(compile="eager", fullgraph=True))) as session:
        result = session.run(until="layers.2")
    torch._dynamo.reset()
    assert (result.verdict, result.stopped) == ("match", "reached")
    assert counters["stats"]["unique_graphs"] == len(result.steps)


def test_a_dry_candidate_shows_shapes_on_its_own_device() -> None:
    with Session(
        text_plan(candidate=Placement(device="dry"), inputs=Inputs(token_ids=(PROMPT,), max_tokens=1))
    ) as session:
        result = session.run()
        assert str(session.inspect("logits", "candidate").device) == "neuron:0"
        assert session.inspect("logits", "candidate").shape == logits(session).shape
    assert result.verdict == "incomparable"
    assert {step.verdict for step in result.steps} == {"incomparable"}


def test_wrong_words_and_values_are_named_before_they_are_recorded() -> None:
    with Session(text_plan(**BOTH)) as session:
        session.step()
        with pytest.raises(StepError, match=r"stop_at: expected one of difference, flip, never; found 'diff'"):
            session.run(stop_at="diff")  # type: ignore[arg-type]
        with pytest.raises(StepError, match=r"error: expected one of accumulated, isolated; found 'both'"):
            session.first_divergence("both")  # type: ignore[arg-type]
        with pytest.raises(StepError, match=r"edit of pre: expected a tensor, found 3\.0"):
            session.edit("pre", 3.0)  # type: ignore[arg-type]
        assert [action.verb for action in session.journal.actions] == ["step"]
        with pytest.raises(
            StepError, match=r"expected max_tokens of at most \d+, .*after a prompt of 6; found 1000000"
        ):
            session.generate(1_000_000)


def test_token_ids_are_whole_numbers() -> None:
    with pytest.raises(PlanError, match=r"each from 0 to \d+; found \[1\.5\]"):
        Session(text_plan(inputs=Inputs(token_ids=((1.5,),))))  # type: ignore[arg-type]
