"""The driver of a real core, against stand-ins of the builds of torch-neuronx that are known; no device is used."""

from __future__ import annotations

import importlib
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from workbench.devices import neuron
from workbench.devices.neuron import COMPILE_ONLY, NeuronDevice, load_library
from workbench.devices.neuron_errors import MEANINGS, explained, meaning_of
from workbench.devices.neuron_library import Counters, NeuronLibrary
from workbench.devices.neuron_name import claim_neuron
from workbench.errors import DeviceError
from workbench.installed import Installed

FLAT = {
    "allocated_bytes.all.current": 30,
    "allocated_bytes.all.peak": 40,
    "reserved_bytes.all.current": 64,
    "reserved_bytes.all.peak": 64,
    "active_bytes.all.current": 20,
    "num_ooms": 2,
}
NESTED = {
    "allocated_bytes": {"current": 30, "peak": 40, "allocated": 70, "freed": 40},
    "reserved_bytes": {"current": 64, "peak": 64},
    "active_bytes": {"current": 20},
    "num_ooms": 2,
}


def raises(*_: object) -> object:
    raise RuntimeError("memory_stats is not available in this build")


def library(device_module: object = None, module: object = None, accelerator: object = None) -> NeuronLibrary:
    return NeuronLibrary(module or SimpleNamespace(), device_module or SimpleNamespace(), accelerator=accelerator)


@pytest.mark.parametrize("stats", [FLAT, NESTED], ids=["flat", "nested"])
def test_both_layouts_of_statistics_give_the_same_counters(stats: dict[str, object]) -> None:
    found = library(SimpleNamespace(memory_stats=lambda index: stats)).counters(0)
    assert found == Counters(
        allocated=30, reserved=64, active=20, peak_allocated=40, peak_reserved=64, out_of_memory_count=2,
        source="memory_stats",
    )  # fmt: skip


def test_direct_figures_go_before_statistics() -> None:
    found = library(SimpleNamespace(memory_allocated=lambda index: 31, memory_stats=lambda index: FLAT)).counters(0)
    assert (found.allocated, found.reserved, found.source) == (31, 64, "memory_allocated")


def test_a_build_whose_statistics_raise_is_asked_through_the_accelerator() -> None:
    accelerator = SimpleNamespace(memory_stats=lambda index: FLAT)
    assert library(SimpleNamespace(memory_stats=raises), accelerator=accelerator).counters(0).allocated == 30


def test_what_nobody_tells_is_unknown_and_not_zero() -> None:
    assert library(SimpleNamespace(memory_stats=raises)).counters(0) == Counters()


def test_counters_are_read_after_a_synchronisation() -> None:
    said: list[str] = []
    module = SimpleNamespace(
        synchronize=lambda index: said.append(f"wait {index}"),
        memory_allocated=lambda index: said.append("read") or 5,
    )
    assert library(module).counters(3).allocated == 5
    assert said == ["wait 3", "read"]


def test_a_total_of_zero_means_that_the_runtime_could_not_be_asked() -> None:
    module = SimpleNamespace(get_device_properties=lambda index: SimpleNamespace(total_memory=0))
    assert library(module).counters(0).total is None


def test_free_and_total_memory_come_from_whatever_the_build_has() -> None:
    assert library(SimpleNamespace(mem_get_info=lambda index: (3, 24))).counters(0).free == 3
    accelerator = SimpleNamespace(get_memory_info=lambda index: (4, 24))
    found = library(accelerator=accelerator).counters(0)
    assert (found.free, found.total) == (4, 24)


@pytest.mark.parametrize("given", [{"aten::qr", "aten::sort"}, ["aten::qr", "aten::sort"]], ids=["set", "list"])
def test_operations_on_the_cpu_are_told_by_name(given: object) -> None:
    module = SimpleNamespace(get_fallback_ops=lambda: given)
    assert library(module=module).fallback_ops() == Counter({"aten::qr": 1, "aten::sort": 1})


def test_a_build_that_does_not_count_fallbacks_says_so() -> None:
    assert library().fallback_ops() is None
    assert library().clear_fallback_ops() is False
    assert library().snapshot(0) is None


class FakeBuild:
    """`torch.neuron` of a machine with two free cores."""

    def __init__(self, *, cores: int = 2, problem: str = "") -> None:
        self.cores = cores
        self.problem = problem
        self.waits: list[int] = []
        self.entered: list[torch.device] = []

    def device_count(self) -> int:
        if self.problem:
            raise RuntimeError(self.problem)
        return self.cores

    def synchronize(self, index: int) -> None:
        self.waits.append(index)

    def memory_allocated(self, index: int) -> int:
        return 7

    @contextmanager
    def device(self, device: torch.device) -> Iterator[None]:
        self.entered.append(device)
        yield


def open_fake(build: FakeBuild, index: int = 0, **more: Any) -> NeuronDevice:
    claim_neuron()  # stands in for the back-end's own registration of the name
    return NeuronDevice(index, library=library(build), **more)


def test_an_opened_core_is_current_and_waited_for() -> None:
    build = FakeBuild()
    device = open_fake(build, 1)
    with device.active():
        assert build.entered == [torch.device("neuron", 1)]
        assert build.waits == []
    assert build.waits == [1]
    assert device.has_numbers
    sample = device.memory_sample()
    assert (sample.device, sample.allocated_bytes, sample.reserved_bytes) == ("neuron:1", 7, None)


def test_a_core_that_is_not_there_names_those_that_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEURON_RT_VISIBLE_CORES", "4-5")
    with pytest.raises(DeviceError) as caught:
        open_fake(FakeBuild(), 2)
    text = str(caught.value)
    assert "expected one of the 2 logical cores this process may use (0 to 1); found 2" in text
    assert "NEURON_RT_VISIBLE_CORES=4-5" in text
    assert caught.value.exit_code == 3


@pytest.mark.parametrize(
    "text",
    [
        "NRT:nrt_allocate_neuron_cores NeuronCore(s) not available - Requested:nc1-nc1 Available:0",
        "Logical Neuron Core(s) not available - Requested:4 Available:0",
    ],
)
def test_busy_cores_say_who_holds_them_and_why_they_stay_held(text: str) -> None:
    with pytest.raises(DeviceError) as caught:
        open_fake(FakeBuild(problem=text), holders=lambda: ("pid 1966 (python serve.py)",))
    told = str(caught.value)
    assert text in told
    assert "owns its cores from the first use until it ends" in told
    assert "Held by pid 1966 (python serve.py)." in told
    assert "shut its kernel down" in told


def test_a_forked_process_is_told_to_spawn() -> None:
    text = "Cannot re-initialize Neuron runtime in forked subprocess. To use Neuron with multiprocessing, use 'spawn'"
    with pytest.raises(DeviceError, match="What to do: start processes with the method 'spawn'"):
        open_fake(FakeBuild(problem=text))


def test_an_error_of_the_program_stays_its_own_with_a_note() -> None:
    device = open_fake(FakeBuild())
    with pytest.raises(RuntimeError, match="NRT allocation failed") as caught, device.active():
        raise RuntimeError("NRT allocation failed for size 180355072 (OOM)")
    assert not isinstance(caught.value, DeviceError)
    assert "workbench memory" in caught.value.__notes__[0]
    with pytest.raises(RuntimeError, match="something else") as caught, device.active():
        raise RuntimeError("something else")
    assert not hasattr(caught.value, "__notes__")


def test_every_known_text_has_a_meaning_and_a_way_out() -> None:
    texts = {
        "no driver": "Unable to determine Neuron Driver version",
        "wrong architecture": "NEFF arch: v4, instance arch: v2",
        "out of memory": "NRT_RESOURCE in nrt_load()",
        "hung": "(FATAL-RT-UNDEFINED-STATE) [ND 0][NC 0] execution timeout (30000 ms) on model module.neff",
        "out of bounds": "failed to run scatter/gather (indirect memory copy), due to out-of-bound access",
        "core lost": "NRT_EXEC_UNIT_UNRECOVERABLE",
        "cores busy": "NRT_EXEC_NC_BUSY",
        "forked": "Cannot re-initialize Neuron runtime in forked subprocess",
    }
    assert set(texts) == {meaning.kind for meaning in MEANINGS}
    for kind, text in texts.items():
        meaning = meaning_of(text)
        assert meaning is not None
        assert meaning.kind == kind
        assert meaning.advice in explained(text)
    assert meaning_of("IndexError") is None
    assert explained("IndexError") == "IndexError"


def found(kind: str, version: str | None = None) -> Installed:
    return Installed(name="torch-neuronx", kind=kind, version=version)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("kind", "version", "words"),
    [
        ("absent", None, "torch-neuronx is not installed"),
        ("placeholder", "1.0", "torch-neuronx 1.0 is a placeholder wheel"),
        ("xla", "2.9.0", "torch-neuronx 2.9.0 is the torch-xla one"),
    ],
)
def test_a_library_that_cannot_be_it_is_not_imported(
    monkeypatch: pytest.MonkeyPatch, kind: str, version: str | None, words: str
) -> None:
    monkeypatch.setattr(neuron, "look_up", lambda *names: found(kind, version))
    with pytest.raises(DeviceError, match=words) as caught:
        load_library()
    assert "use 'host' for numbers" in str(caught.value)
    assert "torch_neuronx" not in sys.modules


def on_import(monkeypatch: pytest.MonkeyPatch, give: Callable[[], object]) -> None:
    """Have `import torch_neuronx` give something; other imports stay as they are."""
    real = importlib.import_module
    monkeypatch.setattr(importlib, "import_module", lambda name: give() if name == "torch_neuronx" else real(name))


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A module that imports as the library; the name of the device is given as the real one would give it."""
    claim_neuron()
    module = SimpleNamespace()
    monkeypatch.setattr(neuron, "look_up", lambda *names: found("installed", "2.14.3.0"))
    on_import(monkeypatch, lambda: module)
    for name in (*COMPILE_ONLY, "NEURON_CC_FLAGS"):
        # Set and deleted, so that it is put back whatever the test does.
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    return module


def test_the_fp8_flag_is_set_before_the_import(installed: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str | None] = []
    on_import(monkeypatch, lambda: seen.append(os.environ.get("NEURON_CC_FLAGS")) or installed)
    assert load_library().version == "2.14.3.0"
    assert seen == ["--internal-hlo2tensorizer-options=--experimental-unsafe-fp8e4m3fn-as-fp8e4m3"]


def test_compile_only_sets_its_variables_before_the_import_and_has_no_numbers(installed: SimpleNamespace) -> None:
    device = NeuronDevice(3, compile_only=True)
    assert not device.has_numbers
    assert {name: os.environ[name] for name in COMPILE_ONLY} == COMPILE_ONLY


def test_compile_only_after_the_import_asks_for_a_new_process(
    installed: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch_neuronx", installed)  # pyright: ignore[reportArgumentType]
    with pytest.raises(DeviceError, match=r"must be set before torch_neuronx is imported.*restart the kernel"):
        load_library(compile_only=True)
    assert load_library().version == "2.14.3.0"


def test_the_torch_xla_one_is_told_by_its_trace(installed: SimpleNamespace) -> None:
    installed.trace = lambda: None
    with pytest.raises(DeviceError, match="found the torch-xla one"):
        load_library()


def test_an_import_that_fails_is_told_with_its_reason(
    installed: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> object:
        raise ImportError("libnrt.so.1: cannot open shared object file")

    on_import(monkeypatch, fail)
    with pytest.raises(DeviceError, match=r"2\.14\.3\.0 cannot be imported: libnrt\.so\.1"):
        load_library()


def test_tensors_that_cannot_cross_are_named_before_they_do() -> None:
    device = open_fake(FakeBuild())
    with pytest.raises(DeviceError, match=r"found a tensor on meta, torch\.float32\[2, 3\]"):
        device.place(torch.empty(2, 3, device="meta"))
    with pytest.raises(DeviceError, match=r"complex numbers are not native .* torch\.complex64\[4\]"):
        device.place(torch.zeros(4, dtype=torch.complex64))
    with pytest.raises(DeviceError, match="expected a strided tensor"):
        device.place(torch.eye(2).to_sparse())
