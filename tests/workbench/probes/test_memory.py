"""Memory of a call, to the byte: against torch's own profiler, against hand counts, and on shapes alone."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import nn

from tests.hooks import take_traces
from tests.workbench.probes.memory_programs import PROGRAMS, Growing, Nested, Program, Tied, Training, Written, trained
from workbench.devices.dry import DryDevice
from workbench.errors import DryRunError, TargetCrash
from workbench.probes import memory
from workbench.probes.memory import MemoryRunFailed, record_memory
from workbench.records import Allocation, Fallback, MemoryPeak, StepFailure

SEEN_LATE = "storage resized"
"""Its storage changes size by itself, which no operation shows."""

CALM = [name for name in PROGRAMS if name != SEEN_LATE]


def record(program: Program, **options):
    target, args = program.build()
    with torch.set_grad_enabled(program.grad):
        return record_memory(target, args, **options)


def profiled(program: Program) -> tuple[int, int]:
    """Return peak and rest of a plain call, from the raw events of torch's profiler."""
    target, args = program.build()
    with torch.set_grad_enabled(program.grad), torch.profiler.profile(profile_memory=True) as profile:
        result = target(*args)
    events = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    del result
    live = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        live += event.nbytes()
        peak = max(peak, live)
    return peak, live


def story(findings, *, counts: str = "tensors") -> list[tuple]:
    """Return what a run did, without what two runs may number otherwise."""
    return [
        (one.op, one.nbytes, one.dtype, one.shape, one.role, one.owner, one.source, one.died is None)
        for one in findings.allocations
        if one.counts == counts
    ]


@pytest.mark.parametrize("name", CALM)
def test_the_allocator_peak_is_that_of_the_profiler(name) -> None:
    findings = record(PROGRAMS[name])
    assert not findings.notes
    assert findings.allocator_peak is not None
    found = findings.allocator_peak.peak_bytes_above_baseline, findings.allocator_peak.live_bytes_at_end
    assert found == profiled(PROGRAMS[name])


@pytest.mark.parametrize("name", CALM)
def test_tensors_alone_and_in_the_allocator_s_order_give_the_same(name) -> None:
    alone, both = record(PROGRAMS[name], allocator=False), record(PROGRAMS[name])
    assert alone.allocator_peak is None
    assert story(alone) == story(both)
    assert alone.peak.peak_bytes_above_baseline == both.peak.peak_bytes_above_baseline
    assert alone.peak.peak_op == both.peak.peak_op
    assert alone.peak.live_bytes_at_end == both.peak.live_bytes_at_end


@pytest.mark.parametrize("name", [name for name, program in PROGRAMS.items() if not program.grad])
def test_inference_mode_sees_what_no_grad_sees(name) -> None:
    with torch.inference_mode():
        target, args = PROGRAMS[name].build()
        seen = record_memory(target, args, allocator=False)
    assert story(seen) == story(record(PROGRAMS[name], allocator=False))


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_dry_device_computes_what_the_host_shows_or_refuses(name) -> None:
    program, dry = PROGRAMS[name], DryDevice()
    target, args = dry.place(program.build())
    with torch.set_grad_enabled(program.grad):
        if program.dry == "refused":
            with pytest.raises(DryRunError, match=r"memory_programs.py"):
                record_memory(target, args, device=dry)
            return
        computed = record_memory(target, args, device=dry)
    assert computed.peak.device == "neuron:0"
    assert {one.basis for one in computed.allocations} <= {"computed"}
    if program.dry == "same":
        host = record(program, allocator=False)
        assert story(computed) == story(host)
        assert computed.peak.peak_bytes_above_baseline == host.peak.peak_bytes_above_baseline
        assert computed.peak.baseline_bytes == host.peak.baseline_bytes


def test_a_hand_count() -> None:
    # y = x + 1 (128); relu_ and mul_ in place: nothing. Wrapped numbers: 8 + 4 for each of the two operations.
    findings = record(PROGRAMS["in place"])
    assert findings.peak.peak_bytes_above_baseline == findings.peak.live_bytes_at_end == 128
    assert findings.allocator_peak.peak_bytes_above_baseline == 128 + 12
    extras = [(one.op, one.nbytes, one.role) for one in findings.allocations if one.counts == "allocator"]
    assert extras == [
        ("aten::add", 8, "workspace"),
        ("aten::_to_copy", 4, "workspace"),
        ("aten::mul_", 8, "workspace"),
        ("aten::_to_copy", 4, "workspace"),
    ]


def test_a_number_written_into_a_tensor_is_no_tensor_and_seen_by_the_allocator_alone() -> None:
    findings = record(PROGRAMS["from data"])
    tensors = [(one.op, one.nbytes) for one in findings.allocations if one.born and one.counts == "tensors"]
    assert tensors == [("aten::tensor", 32), ("aten::add", 128)]
    assert len([one for one in findings.allocations if one.counts == "allocator"]) >= 2


def test_a_growing_storage_needs_old_and_new_at_once() -> None:
    # clone 128; resize_ to 256 while the 128 are there: 384; a smaller size keeps its storage.
    findings = record(PROGRAMS["resized"])
    assert findings.peak.peak_bytes_above_baseline == 384
    assert findings.peak.peak_op == "aten::resize_"
    assert findings.peak.live_bytes_at_end == 256


def test_an_out_argument_without_bytes_becomes_an_allocation_where_it_grows() -> None:
    (grown,) = [one for one in record(PROGRAMS["out"]).allocations if one.born]
    assert (grown.nbytes, grown.op) == (128, "aten::add")


def test_views_never_count() -> None:
    findings = record(PROGRAMS["views only"])
    assert findings.peak.allocation_count == 0
    assert findings.peak.peak_bytes_above_baseline == 0


def test_baseline_is_weights_buffers_and_inputs_once_each() -> None:
    findings = record(PROGRAMS["tied weights"])
    assert findings.peak.baseline_bytes == 10 * 4 * 4 + 3 * 8
    assert [(one.role, one.key, one.owner) for one in findings.allocations if not one.born] == [
        ("weight", "embed.weight", "embed"),
        ("input", None, ""),
    ]


def test_owners_are_module_paths_and_lines_are_the_user_s() -> None:
    findings = record(PROGRAMS["nested modules, one called twice"])
    owners = [one.owner for one in findings.allocations if one.born]
    assert owners == ["body.0", "body.1", "body.2", "body.0", "body.1", "body.2", ""]
    own = [one for one in findings.allocations if one.born]
    assert own[0].source_text == "x = self.body(x)"
    assert own[3].source_text == own[-1].source_text == "return self.body(x) + x"
    assert all("memory_programs.py" in one.source for one in own)
    assert findings.peak.unknown_bytes_at_peak == 0


def test_a_backward_belongs_to_the_module_and_line_of_its_forward() -> None:
    module = Training()
    findings = record_memory(trained, (module, torch.ones(4, 8)), module=module)
    gradients = {one.owner: one for one in findings.allocations if one.op == "aten::mm" and one.shape == (16, 8)}
    assert set(gradients) == {"up"}
    assert gradients["up"].source_text == "return self.down(torch.tanh(self.up(x)))"
    assert gradients["up"].died is None


def test_modules_outside_the_root_are_named_by_their_class() -> None:
    inner = nn.Linear(2, 2)
    findings = record_memory(lambda x: inner(x), (torch.ones(1, 2),), module=nn.Identity(), allocator=False)
    assert [one.owner for one in findings.allocations if one.born] == ["(Linear)"]


def test_a_method_called_without_its_module_still_belongs_to_it() -> None:
    class Helpful(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.ModuleList([nn.Linear(2, 2)])

        def help(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2

    root = nn.Sequential(Helpful(), nn.Linear(2, 2))
    findings = record_memory(lambda x: root[1](root[0].help(x)), (torch.ones(1, 2),), module=root, allocator=False)
    assert [one.owner for one in findings.allocations if one.born] == ["0", "1"]


def test_roles_follow_what_a_storage_was_for() -> None:
    module = Written()
    findings = record_memory(module, (torch.ones(2, 8),))
    roles = {one.key: one.role for one in findings.allocations if one.key}
    assert roles == {"scale": "weight", "rows": "cache"}
    by_op = {one.op: one.role for one in findings.allocations if one.born}
    assert by_op["aten::mul"] == "activation", "saved for a backward, so it outlives its module"
    with torch.no_grad():
        again = record_memory(module, (torch.ones(2, 8),))
    assert {one.op: one.role for one in again.allocations if one.born}["aten::mul"] == "workspace"


def test_what_goes_into_or_out_of_a_module_is_an_activation_however_short_it_lives() -> None:
    with torch.no_grad():
        findings = record_memory(Training(), (torch.ones(4, 8),))
    by_op = {(one.owner, one.op): one.role for one in findings.allocations if one.born}
    assert by_op == {
        ("up", "aten::addmm"): "activation",
        ("", "aten::tanh"): "activation",
        ("down", "aten::addmm"): "activation",
    }


def test_a_view_of_a_host_constant_on_a_dry_device_is_no_allocation() -> None:
    dry, constant = DryDevice(), torch.ones(1, 1)
    findings = record_memory(lambda x: x * constant.view(-1)[0], dry.place((torch.ones(4),)), device=dry)
    assert [(one.device, one.op) for one in findings.allocations if one.born] == [("neuron:0", "aten::mul")]
    assert {one.device for one in findings.allocations if not one.born} == {"neuron:0", "cpu"}


def test_the_second_call_draws_the_same_random_numbers() -> None:
    def sized(x: torch.Tensor) -> torch.Tensor:
        return x.repeat(int(torch.randint(1, 1000, (1,))))

    assert not record_memory(sized, (torch.ones(4),)).notes


def test_a_cache_by_the_caller_s_word_and_one_held_by_an_argument() -> None:
    class Holder:
        def __init__(self) -> None:
            self.rows = torch.zeros(4)
            self.table = torch.zeros(8)

    def call(holder: Holder, past: torch.Tensor) -> torch.Tensor:
        holder.rows.add_(1)
        return holder.rows + past + holder.table.sum()

    past = torch.ones(4)
    findings = record_memory(call, (Holder(), past), cache=past)
    assert [(one.nbytes, one.role) for one in findings.allocations if not one.born] == [
        (16, "cache"),
        (16, "cache"),
        (32, "input"),
    ]


def test_the_second_call_leaves_the_user_s_state_and_random_numbers_alone() -> None:
    grown, written = Growing(), Written()
    record_memory(grown, (torch.ones(4, 8),))
    assert grown.rows.shape == (4, 8)
    rows = torch.ones(2, 8)
    record_memory(written, (rows,))
    torch.manual_seed(0)
    expected = torch.rand(3), torch.rand(3)
    torch.manual_seed(0)
    first = record_memory(torch.rand, (3,)).result
    assert torch.equal(first, expected[0])
    assert torch.equal(torch.rand(3), expected[1])


def test_gradients_are_added_once() -> None:
    module = Training()
    record_memory(trained, (module, torch.ones(4, 8)), module=module)
    gradient = module.up.weight.grad.clone()
    module.zero_grad()
    trained(module, torch.ones(4, 8))
    assert torch.equal(gradient, module.up.weight.grad)


def test_the_result_is_handed_over_and_counts_as_alive() -> None:
    findings = record_memory(Nested().eval(), (torch.ones(4, 8),), allocator=False)
    assert isinstance(findings.result, torch.Tensor)
    assert findings.peak.live_bytes_at_end >= 128


def test_a_tensor_that_comes_from_elsewhere_is_baseline_of_unknown_role() -> None:
    hidden = torch.ones(16)
    findings = record_memory(lambda x: x + hidden, (torch.ones(16),))
    assert [(one.nbytes, one.role) for one in findings.allocations if not one.born] == [(64, "input"), (64, "unknown")]
    assert findings.peak.baseline_bytes == 128
    assert findings.peak.peak_bytes_above_baseline == 64


def test_an_error_of_the_target_keeps_what_was_recorded() -> None:
    def failing(x: torch.Tensor) -> None:
        y = x * 2
        raise RuntimeError(f"mine {y.shape}")

    records = []
    before = take_traces()
    with pytest.raises(
        MemoryRunFailed, match=r"RuntimeError: mine .*; the 2 storages until then are recorded"
    ) as error:
        record_memory(failing, (torch.ones(4),), sink=records.append, side="candidate")
    assert isinstance(error.value, TargetCrash)
    assert [type(one) for one in records] == [Allocation, Allocation, MemoryPeak, StepFailure]
    assert records[-1].side == "candidate"
    assert "raise RuntimeError" in records[-1].traceback_text
    assert error.value.findings.peak.peak_bytes_above_baseline == 16
    assert take_traces().module_hooks == before.module_hooks
    assert take_traces().dispatch_modes == before.dispatch_modes


def test_an_interruption_keeps_what_was_recorded() -> None:
    def interrupted(x: torch.Tensor) -> None:
        x = x * 2
        raise KeyboardInterrupt

    records = []
    with pytest.raises(KeyboardInterrupt):
        record_memory(interrupted, (torch.ones(4),), sink=records.append)
    assert [one.op for one in records if isinstance(one, Allocation)] == ["", "aten::mul"]


def test_records_go_to_the_sink_in_the_order_of_the_findings() -> None:
    records = []
    findings = record_memory(Tied(), (torch.tensor([1]),), sink=records.append, phase="decode")
    assert records == list(findings.records)
    assert {one.stamp.phase for one in records} == {"decode"}
    assert [one.block for one in findings.allocations] == list(range(len(findings.allocations)))


def fallback_of(findings) -> Fallback:
    (note,) = findings.notes
    assert findings.allocator_peak is None
    assert note.used == "storages of tensors"
    return note


def test_a_storage_that_changes_by_itself_leaves_a_note() -> None:
    assert "without an operation that shows it" in fallback_of(record(PROGRAMS[SEEN_LATE])).why


def test_a_call_that_does_not_do_the_same_twice_leaves_a_note() -> None:
    calls = []

    def changing(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return x.exp() if len(calls) == 1 else x

    assert "aten::exp made 16 bytes" in fallback_of(record_memory(changing, (torch.ones(4),))).why


def test_a_second_call_that_fails_leaves_a_note() -> None:
    calls = []

    def once(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        if len(calls) > 1:
            raise ValueError("only once")
        return x + 1

    assert "ValueError: only once" in fallback_of(record_memory(once, (torch.ones(4),))).why


def test_written_weights_and_an_active_profiler_leave_a_note() -> None:
    module = nn.Linear(2, 2)

    def step(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            module.weight.mul_(0.5)
        return module(x)

    findings = record_memory(step, (torch.ones(1, 2),), module=module)
    assert "writes weights (weight)" in fallback_of(findings).why
    with torch.profiler.profile():
        assert "a profiler is active" in fallback_of(record_memory(torch.exp, (torch.ones(4),))).why


def test_a_dry_run_that_is_refused_keeps_what_was_recorded() -> None:
    dry, records = DryDevice(), []

    def reads(x: torch.Tensor) -> float:
        y = x * 2
        return y.sum().item()

    with pytest.raises(DryRunError, match=r"reads a number.*\n.*return y.sum\(\).item\(\)"):
        record_memory(reads, dry.place((torch.ones(4),)), device=dry, sink=records.append)
    assert [one.op for one in records if isinstance(one, Allocation)] == ["", "aten::mul", "aten::sum"]


def test_progress_is_told_by_time(monkeypatch) -> None:
    clock = iter(range(0, 100_000, 3))
    monkeypatch.setattr("workbench.probes.storage_watch.time.monotonic", lambda: float(next(clock)))
    said = []

    def long(x: torch.Tensor) -> torch.Tensor:
        for _ in range(600):
            x = x.view(-1)
        return x

    record_memory(long, (torch.ones(4),), progress=said.append, allocator=False)
    assert said == ["memory: 256 operations, in the root", "memory: 512 operations, in the root"]


def test_nothing_of_the_run_is_kept_alive() -> None:
    findings = record_memory(lambda x: [x + 1, x + 2][0], (torch.ones(4),), allocator=False)
    gc.collect()
    dropped = [one for one in findings.allocations if one.born and one.died is not None]
    assert len(dropped) == 1
    assert memory.record_memory is record_memory


def test_frees_are_seen_by_the_weak_reference(monkeypatch) -> None:
    """Without them the peak would be wrong: the law against the profiler can fail."""
    from workbench.probes.storage_watch import StorageWatch

    monkeypatch.setattr(StorageWatch, "_died", lambda *_: None)
    name = "nested modules, one called twice"
    findings = record(PROGRAMS[name], allocator=False)
    assert (findings.peak.peak_bytes_above_baseline, findings.peak.live_bytes_at_end) != profiled(PROGRAMS[name])


def test_a_stored_weight_is_dequantised_one_piece_at_a_time() -> None:
    from port.kernels.linear import stored_linear

    rows, columns, pieces = 1024, 256, 8
    weight = torch.randn(rows, columns, generator=torch.Generator().manual_seed(0)).to(torch.float8_e4m3fn)
    scale = torch.full((rows // 32, columns // 32), 127, dtype=torch.uint8).view(torch.float8_e8m0fnu)
    elements = rows * columns // pieces

    def product(x: torch.Tensor) -> torch.Tensor:
        return stored_linear(x, weight, scale, operands=torch.float32, out_dtype=torch.float32, max_elements=elements)

    found = record_memory(product, (torch.ones(16, columns),), allocator=False)
    # One piece in float32, and beside it only the products and the scales.
    assert elements * 4 <= found.peak.peak_bytes_above_baseline < elements * 4 * 1.6


def test_looking_for_the_owner_keeps_nothing_alive() -> None:
    class Inner(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2

    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Inner()

        def work(self, x: torch.Tensor) -> torch.Tensor:
            large = x + 1
            small = large[:1] + 1
            del large
            return self.inner(small)

    model = Whole()
    found = record_memory(lambda x: model.work(x), (torch.ones(8),), module=model, allocator=False)
    made = [one for one in found.allocations if one.born]
    assert [one.owner for one in made] == ["", "", "inner"]
    large, _, last = made
    assert large.died is not None
    assert large.died < last.born
