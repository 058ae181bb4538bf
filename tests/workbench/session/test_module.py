"""Any module or callable in a session: it stops after every leaf, goes back, is edited and compared."""

import threading

import pytest
import torch
from torch import nn

from tests.workbench.session.models import MODULE, ManyOutputs, Stack, example
from workbench.errors import PlanError, StepError
from workbench.plan import Inputs, Placement, Plan
from workbench.records import StepFailure, TensorDiff
from workbench.session import Session

LEAVES = [
    "norm",
    *(f"layers.{layer}.{part}" for layer in range(3) for part in ("up", "act", "down")),
    "norm",
    "dropout",
    "",
]


def session_of(target, *args, plan=MODULE, **kwargs) -> Session:
    return Session(plan, target=target, args=args, **kwargs)


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "workbench-step"]


def test_it_stops_after_every_leaf_and_at_the_end() -> None:
    model = Stack()
    with session_of(model, example()) as session:
        assert [point.module for point in session.points] == LEAVES
        assert [point.call for point in session.points if point.module == "norm"] == [0, 1]
        session.run()
        out = session.inspect("out")
        second = session.journal.records[-1]
    with torch.no_grad():
        assert torch.equal(out, Stack()(example()))
    assert second.stamp.module == ""
    assert threads() == []


def test_nothing_of_the_users_objects_changes() -> None:
    model, x = Stack(), example()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with session_of(model, x) as session:
        session.run(until="layers.1")
        session.rewind("layers.0")
        session.run()
    assert torch.equal(x, example())
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_going_back_gives_the_same_bits_with_dropout_and_counting_buffers() -> None:
    with session_of(Stack(dropout=0.5).train(), example()) as session:
        session.run()
        first = session.inspect("out")
        session.rewind("layers.1.act")
        assert session.next_point is not None
        assert session.next_point.module == "layers.1.act"
        session.run()
        assert torch.equal(session.inspect("out"), first)


def test_stepping_leaves_the_users_random_numbers_alone() -> None:
    model = Stack(dropout=0.5).train()
    torch.manual_seed(3)
    expected = torch.rand(3)
    torch.manual_seed(3)
    with session_of(model, example()) as session:
        session.run()
        assert torch.equal(torch.rand(3), expected)


def test_an_edit_of_a_leafs_output_reaches_its_caller() -> None:
    with session_of(Stack(), example()) as session:
        session.run(until="layers.2.down")
        down = session.inspect("layers.2.down")
        session.edit("layers.2.down", torch.zeros_like(down), side="reference")
        session.run()
        edited = session.inspect("out")
    with torch.no_grad():
        model = Stack()
        model.layers[2].down.weight.zero_()
        model.layers[2].down.bias.zero_()
        torch.testing.assert_close(edited, model(example()))


def test_an_edit_before_the_place_gone_back_to_stays() -> None:
    with session_of(Stack(), example()) as session:
        session.run(until="layers.0.up")
        session.edit("layers.0.up", torch.zeros(2, 16), side="reference")
        session.run()
        edited = session.inspect("out")
        session.rewind("layers.2")
        session.run()
        assert torch.equal(session.inspect("out"), edited)
        session.rewind("layers.0.up")
        session.run()
        assert not torch.equal(session.inspect("out"), edited)


def test_a_wrong_layer_of_a_second_module_is_the_only_isolated_error() -> None:
    wrong = Stack()
    with torch.no_grad():
        wrong.layers[1].down.bias += 0.1
    with session_of(Stack(), example(), candidate_target=wrong) as session:
        session.run(stop_at="never")
    diffs = session.journal.of_kind(TensorDiff)
    bad = {
        error: {d.name for d in diffs if d.error == error and d.verdict == "differ"}
        for error in ("isolated", "accumulated")
    }
    assert bad["isolated"] == {"layers.1.down", "out"}
    assert {"layers.1.down", "layers.2.up", "norm#2", "out"} <= bad["accumulated"]
    assert "layers.0.down" not in bad["accumulated"]


def test_a_module_in_bfloat16_is_judged_in_its_steps() -> None:
    plan = Plan(model="module", candidate=Placement(profile="bf16"))
    with session_of(Stack(), example(), plan=plan) as session:
        assert session.run().verdict == "match"
        assert session.inspect("out", "candidate").dtype == torch.bfloat16
    assert any("bfloat16" in diff.tolerance for diff in session.journal.of_kind(TensorDiff))


def test_a_compiled_candidate_runs_leaf_by_leaf() -> None:
    plan = Plan(model="module", candidate=Placement(compile="eager"))
    with session_of(Stack(), example(), plan=plan) as session:
        assert session.run().verdict == "match"
    torch._dynamo.reset()


def test_a_plain_function_is_one_step() -> None:
    with session_of(lambda x: {"a": x + 1, "b": (x, x * 2)}, example()) as session:
        assert [str(point) for point in session.points] == ["(whole call)"]
        session.step()
        assert list(session.tensors()) == ["out.a", "out.b.0", "out.b.1"]
        with pytest.raises(StepError, match=r"the run is over; use session\.rewind"):
            session.step()


def test_nested_outputs_have_names_and_can_be_edited() -> None:
    with session_of(ManyOutputs(), example()) as session:
        session.step()
        assert list(session.tensors()) == ["split.0", "split.1.b"]
        session.edit("split.1.b", torch.zeros(1, 8), side="reference")
        session.run()
        assert not session.inspect("out.rest").any()


def test_a_method_of_a_module_is_stepped_too() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = nn.Linear(8, 8)

        def apply_twice(self, x: torch.Tensor) -> torch.Tensor:
            return self.lin(self.lin(x))

    with session_of(Twice().apply_twice, example()) as session:
        assert [point.module for point in session.points] == ["lin", "lin", ""]


def test_inputs_changed_in_place_are_each_sides_own() -> None:
    def adds(x: torch.Tensor) -> torch.Tensor:
        return x.add_(1)

    x = example()
    with session_of(adds, x, candidate_target=adds) as session:
        assert session.run().verdict == "match"
    assert torch.equal(x, example())


def test_a_target_that_raises_is_stepped_up_to_where_it_does() -> None:
    model = Stack()
    model.layers[1].down = nn.Linear(3, 8)
    with session_of(model, example()) as session:
        assert [point.module for point in session.points] == [*LEAVES[:6], "layers.1.down"]
        result = session.run()
        assert (result.verdict, result.stopped) == ("failed", "failure")
        assert session.inspect("layers.1.act").shape == (2, 16)
        (failure,) = session.journal.of_kind(StepFailure)
        assert failure.name == "layers.1.down"
        assert "mat1 and mat2 shapes cannot be multiplied (2x16 and 3x8)" in failure.error
        session.rewind("layers.0")
        assert session.run().stopped == "failure"
    assert threads() == []


def test_a_function_that_raises_is_a_failed_step() -> None:
    def raises(x: torch.Tensor) -> torch.Tensor:
        raise ValueError("not today")

    with session_of(raises, example()) as session:
        assert session.run().verdict == "failed"
        assert session.journal.of_kind(StepFailure)[0].error.endswith("ValueError: not today")


def test_two_different_modules_cannot_be_stepped_side_by_side() -> None:
    with pytest.raises(PlanError, match=r"the two sides run different modules \(13 and 2 steps; step 0"):
        session_of(Stack(), example(), candidate_target=ManyOutputs())


def test_leaving_a_session_half_way_ends_its_thread() -> None:
    session = session_of(Stack(), example())
    session.run(until="layers.1")
    assert threads() == ["workbench-step"]
    session.close()
    assert threads() == []


def test_a_file_of_the_user_is_a_target(tmp_path) -> None:
    source = tmp_path / "model.py"
    source.write_text(
        "import torch\n"
        "def build_model():\n"
        "    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())\n"
        "def example_inputs():\n    return torch.ones(1, 4)\n"
    )
    with Session(Plan(model="module", source=str(source))) as session:
        assert [point.module for point in session.points] == ["0", "1", ""]
        assert len(session.journal.header.fingerprint) == 64
    with pytest.raises(PlanError, match="expected a Python file"):
        Session(Plan(model="module", source=str(tmp_path / "none.py")))
    with pytest.raises(PlanError, match=r"plan\.source: expected a Python file"):
        Session(MODULE)
    with pytest.raises(
        PlanError, match=r"expected fp32 \(as it is\) or bf16 \(converted\) for a module, found 'fp32q'"
    ):
        Session(Plan(model="module", source=str(source), reference=Placement(profile="fp32q")))


class Growing(nn.Module):
    """A buffer that another tensor takes the place of, one filled from None, and one counted between two leaves."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(4, 4)
        self.register_buffer("kv", None)
        self.register_buffer("seen", torch.zeros(1))
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x):
        y = self.linear(x)
        self.kv = y if self.kv is None else torch.cat([self.kv, y])
        self.seen = torch.cat([self.seen, y.sum().reshape(1)])
        self.count += 1
        return self.linear(self.kv) * self.count + self.seen[-1]


def test_buffers_that_a_call_replaces_or_fills_are_put_back() -> None:
    target, x = Growing(), torch.ones(2, 4)
    expected = Growing()(x)
    seen = target.seen
    with session_of(target, x) as session:
        session.run()
        assert torch.equal(session.inspect("out"), expected)
        session.rewind()
        session.run()
        assert torch.equal(session.inspect("out"), expected)
    assert target.kv is None
    assert target.seen is seen
    assert seen.shape == (1,)
    assert target.count == 0


def test_two_sides_of_one_module_have_buffers_of_their_own_and_share_its_parameters() -> None:
    target, x = Growing(), torch.ones(2, 4)
    plan = Plan(model="module", candidate=Placement())
    with session_of(target, x, plan=plan) as session:
        assert session.run().verdict == "match"
        expected = Growing()(x)
        for side in ("reference", "candidate"):
            assert torch.equal(session.inspect("out", side), expected)
        candidate = session._stepping.side("candidate")._root
        assert candidate is not target
        assert candidate.linear.weight is target.linear.weight


class Locked(Growing):
    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


def test_a_module_that_cannot_be_copied_is_refused_with_what_to_do() -> None:
    with pytest.raises(PlanError, match=r"copy of Locked of its own.*TypeError.*candidate_target"):
        session_of(Locked(), torch.ones(2, 4), plan=Plan(model="module", candidate=Placement()))


class _Twice(nn.Module):
    """A leaf that stops for Ctrl-C once, in the middle."""

    def __init__(self, started: threading.Event, go_on: threading.Event) -> None:
        super().__init__()
        self.started, self.go_on = started, go_on

    def forward(self, x):
        noise = torch.rand(2)
        self.started.set()
        assert self.go_on.wait(30)
        return x + noise + torch.rand(2)


def test_a_leaf_that_was_interrupted_runs_again_with_the_same_random_numbers(monkeypatch) -> None:
    started, go_on = threading.Event(), threading.Event()
    go_on.set()
    target = nn.Sequential(nn.Identity(), _Twice(started, go_on), nn.Identity())
    x = torch.zeros(2)
    with session_of(target, x) as session:
        session.run()
        expected = session.inspect("out")
        session.rewind()
        session.step()
        go_on.clear()
        started.clear()
        call = session._stepping.reference._call

        def interrupted():
            assert started.wait(30)
            monkeypatch.setattr(call, "_baton", held)
            raise KeyboardInterrupt

        held = call._baton
        monkeypatch.setattr(call, "_baton", _Interrupting(held, interrupted))
        assert session.run().stopped == "interrupted"
        torch.rand(5)
        go_on.set()
        assert session.run().verdict == "observed"
        assert torch.equal(session.inspect("out"), expected)
    assert threads() == []


class _Interrupting:
    def __init__(self, baton, interrupted) -> None:
        self.to_call, self.to_driver = baton.to_call, self
        self.acquire = interrupted


class _Swallows(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.after = nn.Identity(), nn.Identity()

    def forward(self, x):
        try:
            x = self.inner(x)
        except:  # noqa: E722 - code of users has it
            x = x + 1
        return self.after(x)


def test_a_target_that_catches_everything_can_be_left_half_way() -> None:
    with session_of(_Swallows(), torch.ones(2)) as session:
        session.step()
    assert threads() == []


class _Raises(nn.Module):
    def forward(self, x):
        raise ValueError("caught")


class _CatchesThenFails(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = _Raises(), nn.Identity()

    def forward(self, x):
        try:
            self.first(x)
        except ValueError:
            x = self.second(x)
        raise KeyError("later")


def test_a_leaf_whose_error_was_caught_is_not_blamed_for_a_later_one() -> None:
    with session_of(_CatchesThenFails(), torch.ones(2)) as session:
        assert [point.module for point in session.points] == ["second", ""]


class _Packs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.last = nn.Linear(4, 4), nn.Identity()

    def forward(self, x):
        return self.last(self.linear(x).nonzero())


def test_a_dry_side_that_cannot_go_on_is_stepped_up_to_there() -> None:
    with session_of(
        _Packs(), torch.ones(2, 4), plan=Plan(model="module", candidate=Placement(device="dry"))
    ) as session:
        result = session.run()
        assert result.verdict == "failed"
        (failure,) = session.journal.of_kind(StepFailure)
        assert failure.side == "candidate"
        assert "nonzero" in failure.error


def test_two_different_modules_name_the_side_that_raises() -> None:
    class Early(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.other = nn.Identity()

        def forward(self, x):
            self.other(x)
            raise ValueError("too early")

    with pytest.raises(PlanError, match=r"different modules.*On the candidate side the target raised.*too early"):
        session_of(Stack(), example(), plan=MODULE, candidate_target=Early())


class _Turned(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, x):
        return self.linear(x.transpose(0, 1))


def test_a_dry_side_takes_strided_inputs_and_keeps_their_strides() -> None:
    with session_of(
        _Turned(), torch.ones(3, 5), plan=Plan(model="module", candidate=Placement(device="dry"))
    ) as session:
        assert session.run().verdict == "incomparable"
        feed = session._stepping.side("candidate").feed(0)
        assert feed.args[0].stride() == (1, 5)


def test_shapes_alone_have_no_first_divergence() -> None:
    with (
        session_of(
            _Turned(), torch.ones(3, 5), plan=Plan(model="module", candidate=Placement(device="dry"))
        ) as session,
        pytest.raises(StepError, match="expected two sides with numbers, found a dry candidate"),
    ):
        session.first_divergence()


class _Sparse(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.leaf = nn.Identity()

    def forward(self, x):
        return self.leaf(x.to_sparse()).to_dense()


def test_a_sparse_output_is_summed_up_and_compared_as_its_dense_form() -> None:
    plan = Plan(model="module", candidate=Placement())
    with session_of(_Sparse(), torch.eye(8) * 0.3, plan=plan) as session:
        assert session.run().verdict == "match"


def test_an_unknown_backend_is_named_before_anything_runs() -> None:
    plan = Plan(model="module", reference=Placement(compile="inducto"))
    with pytest.raises(PlanError, match=r"expected a Dynamo backend.*Did you mean 'inductor'"):
        session_of(Stack(), example(), plan=plan)


def test_a_file_that_draws_its_weights_without_a_seed_is_the_same_in_every_run(tmp_path) -> None:
    file = tmp_path / "drawn.py"
    file.write_text(
        "import torch\ndef build_model():\n    return torch.nn.Linear(4, 4)\n"
        "def example_inputs():\n    return (torch.rand(2, 4),)\n",
        encoding="utf-8",
    )
    before = torch.get_rng_state()
    answers = []
    for seed in (0, 0, 1):
        with Session(Plan(model="module", source=str(file), inputs=Inputs(seed=seed))) as session:
            session.run()
            answers.append(session.inspect("out"))
    assert torch.equal(answers[0], answers[1])
    assert not torch.equal(answers[0], answers[2])
    assert torch.equal(torch.get_rng_state(), before)
