"""CUDA code under `transfer_to_neuron` on `dry`: the device type is `neuron`, the numbers are none.

`torch.neuron` is a stand-in of these tests with the documented functions; it notes what it is asked.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from port.neuron_ops.transfer_to_neuron import transfer_to_neuron
from tests.port.neuron_ops.cuda_snippets import PLACES, Snippet, modules
from workbench.devices.dry import DryDevice

CORE = ("neuron", 0)


class Event:
    def __init__(self, enable_timing: bool = False, blocking: bool = False) -> None:
        self.at_s = 0.0

    def record(self, stream: object = None) -> None:
        self.at_s = time.monotonic()

    def wait(self, stream: object = None) -> None: ...

    def synchronize(self) -> None: ...

    def query(self) -> bool:
        return True

    def elapsed_time(self, end: Event) -> float:
        return (end.at_s - self.at_s) * 1e3


class Stream:
    def __init__(self, device: Any = None, priority: int = 0) -> None:
        self.device = device

    def wait_stream(self, stream: Stream) -> None: ...

    def wait_event(self, event: Event) -> None: ...

    def synchronize(self) -> None: ...

    def query(self) -> bool:
        return True

    def record_event(self, event: Event | None = None) -> Event:
        return event or Event()


class DocumentedNeuron:
    """`torch.neuron` as far as it is documented."""

    Event, Stream = Event, Stream

    def __init__(self) -> None:
        self.asked: list[tuple[object, ...]] = []
        self.streams = [Stream()]
        self.seeded = 0

    def is_available(self) -> bool:
        return True

    def device_count(self) -> int:
        return 4

    def current_device(self) -> int:
        return 0

    def set_device(self, device: int) -> None:
        self.asked.append(("set_device", device))

    def synchronize(self, device: Any = None) -> None:
        self.asked.append(("synchronize", device))

    def get_device_name(self, device: Any = None) -> str:
        return "neuron:0"

    def get_device_properties(self, device: Any = None) -> SimpleNamespace:
        return SimpleNamespace(name="neuron:0", total_memory=25769803776)

    def current_stream(self, device: Any = None) -> Stream:
        return self.streams[-1]

    def default_stream(self, device: Any = None) -> Stream:
        return self.streams[0]

    @contextlib.contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        self.streams.append(stream)
        yield
        self.streams.pop()

    def memory_allocated(self, device: Any = None) -> int:
        self.asked.append(("memory_allocated", device))
        return 3

    memory_reserved = max_memory_allocated = max_memory_reserved = memory_allocated

    def memory_stats(self, device: Any = None) -> dict[str, object]:
        return {"allocated_bytes": {"current": 3}}

    def memory_summary(self, device: Any = None) -> str:
        return "3 bytes"

    def empty_cache(self) -> None: ...

    def reset_peak_memory_stats(self, device: Any = None) -> None: ...

    def reset_accumulated_memory_stats(self, device: Any = None) -> None: ...

    def manual_seed(self, seed: int) -> None:
        self.seeded = seed

    manual_seed_all = manual_seed

    def initial_seed(self) -> int:
        return self.seeded

    def get_rng_state(self, device: Any = None) -> torch.Tensor:
        return torch.tensor([self.seeded], device="cpu")

    def set_rng_state(self, state: torch.Tensor, device: Any = None) -> None:
        self.asked.append(("set_rng_state", device))

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]

    def _is_in_bad_fork(self) -> bool:
        return False


@pytest.fixture
def neuron(monkeypatch: pytest.MonkeyPatch) -> Iterator[DocumentedNeuron]:
    device = DryDevice()
    found = DocumentedNeuron()
    monkeypatch.setattr(torch, "neuron", found)
    with device.active():
        yield found


# `Module.cuda` changes parameters in place, which torch refuses for fake tensors: `DryDevice.place` is for that.
WITHOUT_MODULES = [snippet for snippet in PLACES if snippet is not modules]


@pytest.mark.parametrize("snippet", WITHOUT_MODULES, ids=lambda snippet: snippet.__name__)
def test_cuda_code_runs_on_the_first_core(neuron: DocumentedNeuron, snippet: Snippet) -> None:
    with transfer_to_neuron(host=False):
        snippet(torch.device(*CORE))


def test_numbers_are_kept_where_a_process_has_several_cores(neuron: DocumentedNeuron) -> None:
    with transfer_to_neuron(host=False, devices="same_index"):
        assert torch.device("cuda", 3) == torch.device("neuron", 3)
        assert torch.zeros(2, device="cuda:2").device == torch.zeros(2).cuda(2).device == torch.device("neuron:2")
        assert torch.device("cuda") == torch.device("neuron"), "the current one, as with CUDA"
        assert torch.cuda.device_count() == 4
        torch.cuda.set_device(3)
        torch.cuda.set_device("cuda")
        with torch.cuda.device("cuda:2"):
            torch.cuda.synchronize("cuda:1")
            torch.cuda.synchronize()
    assert neuron.asked == [
        ("set_device", 3),
        ("set_device", 2),
        ("synchronize", torch.device("neuron:1")),
        ("synchronize", None),
        ("set_device", 0),
    ]


def test_autocast_of_cuda_is_that_of_the_core(neuron: DocumentedNeuron) -> None:
    with transfer_to_neuron(host=False):
        x, w = torch.ones(2, 2, device="cuda"), torch.ones(2, 2, device="cuda")
        with torch.autocast("cuda") as context:
            assert (context.device, context.fast_dtype) == ("neuron", torch.float16)
            assert torch.is_autocast_enabled("cuda")
            assert torch.is_autocast_enabled("neuron")
        with torch.cuda.amp.autocast(dtype=torch.bfloat16):
            assert torch.get_autocast_dtype("cuda") == torch.bfloat16
        assert (x @ w).dtype == torch.float32
        assert torch.amp.GradScaler("cuda").is_enabled()


def test_a_core_without_a_generator_draws_on_the_host_and_says_so(
    neuron: DocumentedNeuron, caplog: pytest.LogCaptureFixture
) -> None:
    with transfer_to_neuron(host=False):
        generator = torch.Generator(device="cuda")
        assert (generator.device.type, torch.device("cuda").type) == ("cpu", "neuron")
        assert "no generator on neuron:0, its numbers are drawn on the host" in caplog.text
        drawn = [
            torch.randn(4, generator=generator, device="cuda"),
            torch.empty(4, device="cuda").uniform_(generator=generator),
            torch.multinomial(torch.ones(4, device="cuda"), 1, generator=generator),
            torch.ones(4, device="cuda").bernoulli(generator=generator),
        ]
        assert {str(one.device) for one in drawn} == {"neuron:0"}


def test_an_installation_starts_no_runtime(neuron: DocumentedNeuron, monkeypatch: pytest.MonkeyPatch) -> None:
    class Untouched:
        def __getattr__(self, name: str) -> object:
            raise AssertionError(f"torch.neuron.{name} was asked for")

    monkeypatch.setattr(torch, "neuron", Untouched())
    with transfer_to_neuron(host=False):
        assert torch.device("cuda") == torch.device(*CORE)
