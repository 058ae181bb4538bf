"""CUDA-written snippets, unchanged, in host mode; what is installed, and that all of it goes away again."""

from __future__ import annotations

import copy
import io
import pickle
import threading
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from port.errors import PlatformError
from port.neuron_ops.cuda_names import CudaNames
from port.neuron_ops.device_mapping import DeviceMapping
from port.neuron_ops.transfer_to_neuron import (
    _replacements,
    install,
    is_installed,
    remove,
    transfer_to_neuron,
)

CPU = torch.device("cpu")
REAL_DEVICE = torch.device


@pytest.fixture
def host() -> Iterator[None]:
    with transfer_to_neuron(host=True):
        yield
    torch._dynamo.reset()


def everything() -> dict[tuple[str, str], object]:
    """Return what stands under every name that is replaced, by owner and name; a marker where there is none."""
    places = [(owner, name) for owner, name, _ in _replacements(DeviceMapping(host=True))]
    return {(repr(owner), name): vars(owner).get(name, "absent") for owner, name in places}


def test_every_name_is_put_back_to_the_same_object() -> None:
    before = everything()
    with transfer_to_neuron(host=True):
        during = everything()
        assert all(during[place] is not before[place] for place in before)
    after = everything()
    assert len(before) > 80
    assert all(after[place] is before[place] for place in before)
    assert not is_installed()


def test_an_error_inside_puts_everything_back_too() -> None:
    before = everything()
    with pytest.raises(KeyError), transfer_to_neuron(host=True):
        raise KeyError("of the code that runs")
    assert all(everything()[place] is value for place, value in before.items())


def test_an_installation_that_fails_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    before = everything()

    def fail(*args: object) -> object:
        raise RuntimeError("in the middle of it")

    monkeypatch.setattr("port.neuron_ops.transfer_to_neuron._load", fail)
    with pytest.raises(RuntimeError, match="in the middle"):
        install(host=True)
    monkeypatch.undo()
    assert not is_installed()
    assert all(everything()[place] is value for place, value in before.items())


def test_uses_are_counted_and_the_last_one_out_restores() -> None:
    with transfer_to_neuron(host=True):
        inner = torch.device
        with transfer_to_neuron(host=True):
            assert torch.device is inner
        assert torch.device is inner
        install(host=True)
        remove()
        assert is_installed()
    assert torch.device is REAL_DEVICE
    remove()
    assert torch.device is REAL_DEVICE


def test_another_mapping_is_refused_while_one_is_installed(host: None) -> None:
    with pytest.raises(RuntimeError, match="Leave the other one first"):
        install(host=False)
    assert is_installed()


def test_threads_see_the_mapping_and_share_one_installation() -> None:
    rounds, wrong = 30, []
    start = threading.Barrier(4)

    def work() -> None:
        start.wait()
        for _ in range(rounds):
            with transfer_to_neuron(host=True):
                if torch.zeros(1, device="cuda").device != CPU or torch.device("cuda", 3) != CPU:
                    wrong.append("not mapped")

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert torch.device is REAL_DEVICE
    assert not is_installed()


def test_factories_take_cuda_in_every_spelling(host: None) -> None:
    made = [
        torch.zeros(2, device="cuda"),
        torch.ones(2, device="cuda:1"),
        torch.empty((2,), device=torch.device("cuda")),
        torch.full((2,), 1.0, device=torch.device("cuda", 1)),
        torch.arange(2, device=0),
        torch.tensor([1, 2], device=torch.device(type="cuda", index=1)),
        torch.as_tensor([1, 2], device="cuda"),
        torch.rand(2, device="cuda"),
        torch.zeros(2).new_ones(2, device="cuda"),
        torch.empty_like(torch.zeros(2), device="cuda"),
        torch.zeros(2, device="cuda", pin_memory=True),
    ]
    assert [tensor.device for tensor in made] == [CPU] * len(made)
    assert torch.zeros(1, device="meta").device.type == "meta"


def test_tensors_and_modules_move(host: None) -> None:
    x = torch.ones(2, 2)
    assert x.cuda().device == x.cuda(1).device == x.to("cuda:1").device == x.to(0).device == CPU
    assert x.to(torch.device("cuda"), torch.bfloat16).dtype == torch.bfloat16
    assert x.to("cuda", non_blocking=True, copy=True) is not x
    assert x.cuda(non_blocking=True).is_cuda
    assert x.pin_memory() is x
    layer = nn.Linear(2, 2).cuda().to("cuda:0").to(device="cuda", dtype=torch.float64)
    assert {parameter.device for parameter in layer.parameters()} == {CPU}
    assert x.double().type() == "torch.DoubleTensor"


def test_devices_are_real_devices(host: None) -> None:
    device = torch.device("cuda", 1)
    assert type(device) is REAL_DEVICE
    assert isinstance(device, torch.device)
    assert not isinstance("cuda", torch.device)
    assert device == torch.device("cuda:0") == torch.device("cuda")
    assert hash(device) == hash(torch.device("cuda:0"))
    assert repr(device) == "device(type='cpu')"
    assert f"{device}" == "cpu"
    assert torch.zeros(1, device="cuda").device == device
    assert torch.device("meta").type == "meta"
    assert torch.device == REAL_DEVICE
    with pytest.raises(RuntimeError, match="Expected one of cpu, cuda"):
        torch.device("gpu")


def test_a_device_is_a_context_of_the_factories(host: None) -> None:
    with torch.device("cuda"):
        assert torch.zeros(2).device == CPU
        assert torch.tensor([1]).device == CPU
        with torch.device("meta"):
            assert torch.zeros(2).device.type == "meta"
    torch.set_default_device("cuda:0")
    try:
        assert torch.get_default_device() == CPU
        assert torch.ones(1).device == CPU
    finally:
        torch.set_default_device(None)


def test_the_constructors_of_device_contexts_stay_the_real_ones() -> None:
    from torch.utils._device import _device_constructors

    with transfer_to_neuron(host=True), torch.device("cuda"):
        torch.zeros(1)
    assert torch.zeros in _device_constructors()
    with torch.device("meta"):
        assert torch.zeros(1).device.type == "meta"


def test_devices_are_copied_and_pickled(host: None) -> None:
    device = torch.device("cuda:1")
    assert pickle.loads(pickle.dumps(device)) == device
    assert copy.deepcopy({"device": device}) == {"device": device}


def test_devices_pickled_by_cuda_code_come_back_as_what_cuda_stands_for() -> None:
    written = pickle.dumps({"where": torch.device("cuda", 1)})
    with transfer_to_neuron(host=True):
        assert pickle.loads(written) == {"where": CPU}
    assert pickle.loads(written) == {"where": REAL_DEVICE("cuda", 1)}


def test_devices_pickled_inside_can_be_read_outside() -> None:
    with transfer_to_neuron(host=True):
        written = pickle.dumps(torch.device("cuda"))
    assert pickle.loads(written) == CPU


def test_generated_code_names_devices_as_ever(host: None) -> None:
    def program(y: torch.Tensor) -> torch.Tensor:
        return y + torch.zeros(2, device=torch.device("cuda:1")) + torch.empty_like(y, device="cuda").fill_(1)

    from torch.fx.experimental.proxy_tensor import make_fx

    graph = make_fx(program)(torch.ones(2))
    assert "device(type='cpu')" in graph.code
    graph.recompile()
    assert graph(torch.ones(2)).tolist() == [2.0, 2.0]
    traced = torch.fx.symbolic_trace(lambda y: y.to(torch.device("cuda")))
    assert traced(torch.ones(2)).device == CPU


def test_code_generated_inside_runs_outside() -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    with transfer_to_neuron(host=True):
        graph = make_fx(lambda y: y + torch.zeros(2, device="cuda"))(torch.ones(2))
    graph.recompile()
    assert graph(torch.ones(2)).tolist() == [1.0, 1.0]


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_cuda_code_compiles(host: None, backend: str) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        y = torch.ones(2, device="cuda") * torch.arange(2, device=torch.device("cuda"))
        return x.cuda() + y.to("cuda:1")

    compiled = torch.compile(program, backend=backend, fullgraph=True, dynamic=False)
    assert compiled(torch.zeros(2)).tolist() == [0.0, 1.0]


def test_cuda_is_hidden_while_a_graph_is_compiled(host: None) -> None:
    seen: list[tuple[bool, int]] = []

    def backend(graph: torch.fx.GraphModule, example_inputs: list[object]) -> object:
        seen.append((torch.cuda.is_available(), torch.cuda.device_count()))
        return graph.forward

    torch.compile(lambda x: x + 1, backend=backend)(torch.zeros(2))
    assert seen == [(False, 0)]
    assert (torch.cuda.is_available(), torch.cuda.device_count()) == (True, 1)


def test_seeding_does_not_go_round_in_circles(host: None) -> None:
    torch.manual_seed(7)
    one = torch.rand(3, device="cuda")
    torch.cuda.manual_seed_all(7)
    two = torch.rand(3, device="cuda")
    torch.cuda.manual_seed(7)
    assert torch.equal(one, two)
    assert torch.cuda.initial_seed() == 7
    state = torch.cuda.get_rng_state()
    three = torch.rand(3)
    torch.cuda.set_rng_state(state)
    assert torch.equal(torch.rand(3), three)


def test_generators_draw_where_they_are(host: None) -> None:
    generator = torch.Generator(device="cuda").manual_seed(3)
    assert isinstance(generator, torch.Generator)
    drawn = torch.randn(4, generator=generator, device="cuda")
    assert torch.equal(drawn, torch.randn(4, generator=torch.Generator().manual_seed(3)))
    with torch.random.fork_rng(devices=[0]):
        torch.manual_seed(1)
    assert torch.Generator("cuda:1").device == CPU


def test_streams_and_events_keep_their_protocol(host: None) -> None:
    stream = torch.cuda.Stream()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    with pytest.raises(RuntimeError, match="expected two recorded events"):
        start.elapsed_time(end)
    with torch.cuda.stream(stream):
        start.record()
        y = torch.ones(2, device="cuda") * 2
        end.record(stream)
    stream.wait_stream(torch.cuda.current_stream())
    torch.cuda.current_stream().wait_event(stream.record_event())
    end.synchronize()
    torch.cuda.synchronize()
    assert start.elapsed_time(end) >= 0
    assert stream.query()
    assert end.query()
    assert y.tolist() == [2.0, 2.0]
    assert not torch.cuda.is_current_stream_capturing()


def test_memory_and_devices_answer_for_the_host(host: None) -> None:
    torch.cuda.set_device(0)
    with torch.cuda.device(0), torch.cuda.device_of(torch.zeros(1)):
        assert torch.cuda.current_device() == 0
    free, total = torch.cuda.mem_get_info()
    assert 0 < free <= total == torch.cuda.get_device_properties(0).total_memory
    assert torch.cuda.memory_allocated() == torch.cuda.max_memory_allocated("cuda:0") == 0
    assert torch.cuda.memory_stats() == {}
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.get_device_name() == "cpu"
    assert torch.cuda.get_device_capability() == (0, 0)
    assert torch.cuda.is_bf16_supported()


def test_autocast_of_cuda_is_that_of_the_device(host: None) -> None:
    layer, x = nn.Linear(2, 2), torch.ones(1, 2)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        assert layer(x).dtype == torch.bfloat16
    with torch.amp.autocast(device_type="cuda", dtype=torch.bfloat16):
        assert layer(x).dtype == torch.bfloat16
    with torch.cuda.amp.autocast(dtype=torch.bfloat16):
        assert layer(x).dtype == torch.bfloat16
    with torch.autocast("cuda", enabled=False):
        assert layer(x).dtype == torch.float32


def test_checkpoints_written_on_cuda_are_read(host: None) -> None:
    buffer = io.BytesIO()
    torch.save({"w": torch.ones(2)}, buffer)
    for location in (
        None,
        "cuda",
        "cuda:1",
        torch.device("cuda"),
        {"cuda:0": "cuda:1"},
        lambda storage, place: storage,
    ):
        buffer.seek(0)
        assert torch.load(buffer, map_location=location, weights_only=True)["w"].device == CPU


def test_a_storage_tagged_cuda_is_restored_on_the_host() -> None:
    storage = torch.ones(2).untyped_storage()
    restore = DeviceMapping(host=True).location(None)
    assert restore(storage, "cuda:1").device == CPU
    assert DeviceMapping(host=True).location({"cuda:0": "cuda:1"}) == {"cpu": "cpu", "cuda:0": "cpu"}


def test_what_means_something_to_cuda_only_says_so(host: None) -> None:
    with pytest.raises(NotImplementedError, match=r"torch\.cuda\.CUDAGraph .* torch\.compile\(dynamic=False\)"):
        torch.cuda.CUDAGraph()
    with pytest.raises(NotImplementedError, match=r"torch\.cuda\.cudart has no counterpart"):
        torch.cuda.cudart()


def test_several_cores_keep_their_numbers_when_asked() -> None:
    torch.utils.rename_privateuse1_backend  # noqa: B018 - named only: the rule needs no device
    one, same = DeviceMapping(host=False), DeviceMapping(host=False, devices="same_index")
    assert (one.index(3), one.index(None)) == (0, 0)
    assert (same.index(3), same.index(None)) == (3, 0)
    assert one.device("cpu") == "cpu"
    assert one.device(None) is None


def test_a_build_without_a_counterpart_is_told_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "neuron", SimpleNamespace(memory_reserved=lambda *one: 5), raising=False)
    names = CudaNames(DeviceMapping(host=False))
    assert names.memory_reserved() == 5
    with pytest.raises(PlatformError, match=r"torch\.cuda\.memory_summary: torch\.neuron has no counterpart"):
        names.memory_summary()
