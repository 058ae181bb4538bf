"""What is installed, that all of it goes away again, what is refused, and what compilers see."""

from __future__ import annotations

import copyreg
import pickle
import threading
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch

from port.errors import PlatformError
from port.neuron_ops import torch_neuron
from port.neuron_ops.cuda_table import INSTEAD, STAYS, cuda_functions
from port.neuron_ops.device_mapping import DeviceMapping
from port.neuron_ops.transfer_to_neuron import _replacements, install, is_installed, remove, transfer_to_neuron
from tests.contracts.processes import run_python

CPU = torch.device("cpu")
REAL_DEVICE = torch.device


@pytest.fixture
def host() -> Iterator[None]:
    with transfer_to_neuron(host=True):
        yield
    torch._dynamo.reset()


PLACES = [(owner, name) for owner, name, _ in _replacements(DeviceMapping(host=True))]


def everything() -> list[object]:
    """Return what stands at every place where something is replaced; a marker where there is nothing."""
    return [(owner if isinstance(owner, dict) else vars(owner)).get(name, "absent") for owner, name in PLACES]


BEFORE = everything()


def differing() -> list[object]:
    now = everything()
    return [name for (_, name), one, other in zip(PLACES, BEFORE, now, strict=True) if one is not other]


def test_every_name_is_put_back_to_the_same_object() -> None:
    assert len(BEFORE) > 200
    with transfer_to_neuron(host=True):
        assert len(differing()) == len(BEFORE)
    assert differing() == []
    assert not is_installed()
    assert REAL_DEVICE not in copyreg.dispatch_table


def test_an_error_inside_puts_everything_back_too() -> None:
    with pytest.raises(KeyError), transfer_to_neuron(host=True):
        raise KeyError("of the code that runs")
    assert differing() == []


def test_an_installation_that_fails_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(mapping: DeviceMapping) -> Iterator[tuple[object, str, object]]:
        yield from _replacements(mapping)
        yield torch, "device", None
        yield object(), "no such owner", None

    monkeypatch.setattr("port.neuron_ops.transfer_to_neuron._replacements", fail)
    with pytest.raises(TypeError, match="vars"):
        install(host=True)
    assert not is_installed()
    assert differing() == []
    assert torch.device is REAL_DEVICE


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


def test_host_mode_is_asked_of_the_platform(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("port.platform._make", lambda: SimpleNamespace(is_host=True))
    with transfer_to_neuron() as mapping:
        assert mapping == DeviceMapping(host=True, devices="one")


def test_another_mapping_is_refused_while_one_is_installed(host: None) -> None:
    with pytest.raises(RuntimeError, match="Leave the other one first"):
        install(host=True, devices="same_index")
    assert is_installed()


def test_a_machine_without_the_device_is_told_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*args: object) -> None:
        raise RuntimeError("Expected one of cpu, cuda")

    monkeypatch.setattr(torch_neuron, "real_device", unknown)
    with pytest.raises(PlatformError, match=r"no device called neuron here.*DEEPINFER_NEURON_DEVICE=cpu"):
        install(host=False)
    assert not is_installed()


def test_an_unknown_rule_is_refused() -> None:
    with pytest.raises(ValueError, match=r"expected devices to be one of .*'one', 'same_index'.*found 'all'"):
        install(host=True, devices="all")


def test_threads_see_the_mapping_and_share_one_installation() -> None:
    rounds, wrong = 20, []
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
    assert differing() == []
    assert not is_installed()


def test_a_thread_started_inside_sees_the_mapping(host: None) -> None:
    seen = []
    thread = threading.Thread(target=lambda: seen.append((torch.device("cuda"), torch.cuda.is_available())))
    thread.start()
    thread.join()
    assert seen == [(CPU, True)]


def test_what_was_kept_from_inside_is_the_original_again() -> None:
    with transfer_to_neuron(host=True):
        from torch import device, zeros
        from torch.cuda import FloatTensor, Stream, device_count, is_available

        x = torch.ones(1)
        assert x.is_cuda
    assert device("cuda", 1) == REAL_DEVICE("cuda", 1)
    assert isinstance(CPU, device)
    assert zeros(1).device == CPU
    assert (is_available(), device_count()) == (torch.cuda.is_available(), torch.cuda.device_count())
    assert not isinstance(x, FloatTensor)
    assert not isinstance(x, Stream)
    assert not x.is_cuda


KEEPS_NOTHING = """
import gc, weakref, torch
from port.neuron_ops.transfer_to_neuron import transfer_to_neuron
from tests.port.neuron_ops.cuda_snippets import NUMBERS, PLACES
with transfer_to_neuron(host=True):
    for snippet in (*PLACES, *NUMBERS):
        snippet(torch.device("cpu"))
    torch.overrides.resolve_name(torch.ones)
    torch.overrides.is_tensor_method_or_property(torch.Tensor.add)
    device = torch.device
    kept = (torch.zeros, torch.Tensor.to, torch.autocast, torch.cuda.amp.autocast, torch.load, torch.Generator)
    kept += (torch.cuda.is_available, torch.cuda.Stream, torch.cuda.FloatTensor, torch.cuda.CUDAGraph)
    kept = {str(one): weakref.ref(one) for one in kept}
del snippet
torch._dynamo.reset()
gc.collect()
left = {name: gc.get_referrers(one()) for name, one in kept.items() if one() is not None}
assert not left, left
# Modules first imported inside keep `torch.device` in their annotations; what decides by class must not.
tables = [one for one in gc.get_referrers(device) if isinstance(one, (set, frozenset, dict))]
assert not [one for one in tables if any(key is device for key in one)], tables
"""


def test_no_table_of_torch_keeps_a_stand_in() -> None:
    finished = run_python(KEEPS_NOTHING)
    assert finished.returncode == 0, finished.stderr[-3000:]


def test_devices_pickled_by_cuda_code_come_back_as_what_cuda_stands_for() -> None:
    written = pickle.dumps({"where": torch.device("cuda", 1)})
    with transfer_to_neuron(host=True):
        assert pickle.loads(written) == {"where": CPU}
    assert pickle.loads(written) == {"where": REAL_DEVICE("cuda", 1)}


def test_devices_pickled_inside_can_be_read_outside() -> None:
    with transfer_to_neuron(host=True):
        written = pickle.dumps([torch.device("cuda"), torch.device])
    assert pickle.loads(written) == [CPU, REAL_DEVICE]


def test_a_stand_in_equals_the_class_it_stands_for(host: None) -> None:
    assert torch.device == REAL_DEVICE
    assert type(CPU) in {torch.device}
    assert issubclass(REAL_DEVICE, torch.device)
    assert {REAL_DEVICE: 1}[torch.device] == 1
    assert repr(torch.device) == repr(REAL_DEVICE)

    class Own(torch.autocast):
        pass

    assert isinstance(Own("cpu"), Own)
    assert not isinstance(torch.autocast("cpu"), Own)


def test_code_generated_inside_runs_outside() -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    with transfer_to_neuron(host=True):
        graph = make_fx(lambda y: y + torch.zeros(2, device="cuda"))(torch.ones(2))
    graph.recompile()
    assert graph(torch.ones(2)).tolist() == [1.0, 1.0]


def test_a_graph_with_cuda_in_its_code_runs_inside() -> None:
    graph = torch.fx.Graph()
    y = graph.placeholder("y")
    zeros = graph.call_function(torch.zeros, (2,), {"device": torch.device("cuda", 0)})
    moved = graph.call_method("to", (y, torch.device("cuda", 0)))
    graph.output(graph.call_function(torch.add, (moved, zeros)))
    module = torch.fx.GraphModule({}, graph)
    assert "device(type='cuda', index=0)" in module.code
    with transfer_to_neuron(host=True):
        assert module(torch.ones(2)).tolist() == [1.0, 1.0]
        module.recompile()
        assert "device(type='cuda', index=0)" in module.code
        assert module(torch.ones(2)).device == CPU


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_what_was_compiled_inside_is_compiled_anew_outside(backend: str) -> None:
    def places(x: torch.Tensor) -> torch.Tensor:
        return x.to(torch.device("cuda").type)

    run = torch.compile(places, backend=backend, dynamic=False)
    with transfer_to_neuron(host=True):
        assert run(torch.ones(2)).device == CPU
    with pytest.raises(Exception, match=r"(?i)cuda"):
        run(torch.ones(2))
    with transfer_to_neuron(host=True):
        assert run(torch.ones(2)).device == CPU
    torch._dynamo.reset()


def test_cuda_is_hidden_while_a_graph_is_compiled(host: None) -> None:
    seen: list[tuple[bool, int, bool]] = []

    def backend(graph: torch.fx.GraphModule, example_inputs: list[object]) -> object:
        seen.append((torch.cuda.is_available(), torch.cuda.device_count(), torch.ones(1).is_cuda))
        with pytest.raises((AssertionError, RuntimeError), match=r"CUDA|NVIDIA"):
            torch.cuda.get_device_properties(0)
        return graph.forward

    torch.compile(lambda x: x + 1, backend=backend)(torch.zeros(2))
    assert seen == [(False, 0, False)]
    assert (torch.cuda.is_available(), torch.cuda.device_count()) == (True, 1)


def test_importing_asks_nothing_and_replaces_nothing() -> None:
    finished = run_python(
        """
        import torch
        before = dict(vars(torch)), dict(vars(torch.cuda))
        from port import platform
        import port.neuron_ops.transfer_to_neuron
        assert platform._make.cache_info().currsize == 0
        after = dict(vars(torch)), dict(vars(torch.cuda))
        assert all(now[name] is value for now, old in zip(after, before) for name, value in old.items())
        """
    )
    assert finished.returncode == 0, finished.stderr


def test_every_name_of_torch_cuda_is_decided() -> None:
    names = cuda_functions(DeviceMapping(host=True))
    assert set(STAYS) <= set(torch.cuda.__all__)
    assert set(names) & STAYS == set()
    assert set(names) & set(INSTEAD) == set()
    replaced = {name for owner, name, _ in _replacements(DeviceMapping(host=True)) if owner is torch.cuda}
    assert not [name for name in set(torch.cuda.__all__) - STAYS - replaced if callable(getattr(torch.cuda, name))]


@pytest.mark.parametrize(
    "path",
    [
        *("CUDAGraph", "graph", "make_graphed_callables", "cudart", "MemPool", "utilization", "FloatStorage"),
        *("memory_snapshot", "memory._record_memory_history", "nvtx.range_start", "set_per_process_memory_fraction"),
        "graphs.CUDAGraph",
    ],
)
def test_what_has_no_counterpart_says_so_by_name(host: None, path: str) -> None:
    owner, _, name = path.rpartition(".")
    found = getattr(getattr(torch.cuda, owner) if owner else torch.cuda, name)
    with pytest.raises(NotImplementedError, match=rf"torch\.cuda\.(\w+\.)?{name} has no counterpart on Neuron: \w+"):
        found()


def test_refused_classes_can_stand_in_annotations(host: None) -> None:
    assert (torch.cuda.CUDAGraph | None) is not None
    assert not isinstance(1, torch.cuda.CUDAGraph)
    with pytest.raises(NotImplementedError, match=r"torch\.compile\(dynamic=False\), one graph per batch size"):
        torch.cuda.CUDAGraph()
    with pytest.raises(NotImplementedError, match=r"set_default_dtype and torch\.set_default_device"):
        torch.set_default_tensor_type("torch.cuda.FloatTensor")
