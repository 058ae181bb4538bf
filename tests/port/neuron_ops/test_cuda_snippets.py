"""Ordinary CUDA code, unchanged, in host mode."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from port.neuron_ops.transfer_to_neuron import transfer_to_neuron
from tests.port.neuron_ops.cuda_snippets import NUMBERS, PLACES, Snippet

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def host() -> Iterator[None]:
    with transfer_to_neuron(host=True):
        yield
    torch._dynamo.reset()


@pytest.mark.parametrize("snippet", [*PLACES, *NUMBERS], ids=lambda snippet: snippet.__name__)
def test_cuda_code_runs_on_the_host(snippet: Snippet) -> None:
    snippet(CPU)


def test_streams_of_threads_are_their_own() -> None:
    import threading

    seen = []
    with torch.cuda.stream(torch.cuda.Stream()):
        thread = threading.Thread(target=lambda: seen.append(torch.cuda.current_stream()))
        thread.start()
        thread.join()
    assert seen == [torch.cuda.default_stream()]


def test_events_tell_no_time_they_were_not_made_for() -> None:
    plain, start, end = torch.cuda.Event(), *(torch.cuda.Event(enable_timing=True) for _ in range(2))
    with pytest.raises(RuntimeError, match="enable_timing=True"):
        plain.elapsed_time(end)
    with pytest.raises(RuntimeError, match="expected two recorded events"):
        start.elapsed_time(end)


def test_tensors_are_kept_for_streams_that_need_nothing() -> None:
    x = torch.ones(2)
    x.record_stream(torch.cuda.current_stream())
    assert torch.cuda.current_stream().cuda_stream == 0


def test_the_host_counts_no_memory() -> None:
    assert torch.cuda.memory_allocated() == torch.cuda.memory.max_memory_reserved() == 0
    assert torch.cuda.memory_stats() == torch.cuda.memory_stats_as_nested_dict() == {}


def test_ranges_are_seen_by_the_profiler() -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        assert torch.cuda.nvtx.range_push("outer") == 0
        assert torch.cuda.nvtx.range_push("inner") == 1
        torch.cuda.nvtx.mark("moment")
        with torch.cuda.nvtx.range("step {}", 3):
            torch.ones(2)
        assert torch.cuda.nvtx.range_pop() == 1
        assert torch.cuda.nvtx.range_pop() == 0
        assert torch.cuda.nvtx.range_pop() == -1
    assert {"outer", "inner", "moment", "step 3"} <= {event.name for event in profile.events()}


def test_custom_functions_see_the_autocast_of_cuda() -> None:
    class Twice(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="cuda", cast_inputs=torch.float32)
        def forward(ctx, x):
            return x * 2

        @staticmethod
        @torch.amp.custom_bwd(device_type="cuda")
        def backward(ctx, grad):
            return grad * 2

    x = torch.ones(1, dtype=torch.bfloat16, requires_grad=True)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        y = Twice.apply(x)
    assert y.dtype == torch.float32, "cast_inputs holds inside autocast only"
    y.backward()
    assert x.grad.tolist() == [2.0]


def test_loaders_pin_nothing_and_torch_says_so() -> None:
    loader = torch.utils.data.DataLoader([torch.ones(1)] * 4, batch_size=2, pin_memory=True)
    with pytest.warns(UserWarning, match="no accelerator is found"):
        batches = [batch.cuda(non_blocking=True) for batch in loader]
    assert [tuple(batch.shape) for batch in batches] == [(2, 1)] * 2


def test_settings_that_are_not_of_devices_are_untouched() -> None:
    assert torch.backends.cuda.matmul.allow_tf32 in (False, True)
    assert torch.version.cuda is None or isinstance(torch.version.cuda, str)
    assert torch.accelerator.is_available() in (False, True)


def test_a_storage_tagged_cuda_comes_back_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    import io

    buffer = io.BytesIO()
    with monkeypatch.context() as patch:
        patch.setattr(torch.serialization, "location_tag", lambda storage: "cuda:1")
        torch.save({"w": torch.ones(2)}, buffer)
    for location in (None, {"cuda:1": "cuda:0"}, {"cuda:0": "cpu"}, lambda storage, place: None):
        buffer.seek(0)
        read = torch.load(buffer, map_location=location, weights_only=True)
        assert (read["w"].device, read["w"].tolist()) == (CPU, [1.0, 1.0])
