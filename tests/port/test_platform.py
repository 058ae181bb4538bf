"""The platform object: the contract's answers on a core and in host mode."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch

from port.environment import ENV
from port.errors import PlatformError
from port.platform import COMPILER_FLAGS, PlatformNeuron


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    source: dict[str, str] = {}
    monkeypatch.setattr(ENV, "_source", source)
    ENV.rearm_all()
    yield
    ENV.rearm_all()


def test_the_layouts_are_those_of_ascend() -> None:
    platform = PlatformNeuron(host=False)
    assert (platform.is_neuron, platform.is_npu, platform.is_gpu) == (True, False, False)
    assert platform.fp8_sf_type == torch.int16
    assert platform.tilelang_ops_backend == "neuron"
    assert platform.moe_path == "unfused"
    assert platform.hc_gemm_splits == 1
    assert platform.distributed_backend == "neuron"
    assert platform.weight_fp8_max == 240.0
    assert platform.fp8_max == 224.0


def test_host_mode_is_the_same_class_on_the_cpu() -> None:
    ENV.set("DEEPINFER_NEURON_DEVICE", "cpu")
    platform = PlatformNeuron()
    assert platform.is_host
    assert platform.name == "cpu"
    assert platform.device(3) == torch.device("cpu")
    assert platform.distributed_backend == "gloo"
    assert platform.fp8_max == 448.0
    assert platform.weight_fp8_max == 448.0
    assert platform.compiler_flags() == ()
    assert not platform.apply_compiler_flags()


def test_a_negative_rank_is_refused() -> None:
    with pytest.raises(PlatformError, match="expected a local rank of at least 0; found -1"):
        PlatformNeuron(host=True).device(-1)


def test_a_torch_without_the_device_says_how_to_run_on_the_host() -> None:
    # In a process of its own: an earlier test of this one may have given the name to a simulation.
    program = (
        "from port.platform import PlatformNeuron\n"
        "from port.errors import PlatformError\n"
        "try:\n    PlatformNeuron(host=False).device(1)\n"
        "except PlatformError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "torch knows no device of this name here" in done.stdout
    assert "DEEPINFER_NEURON_DEVICE=cpu" in done.stdout


def test_compiler_flags_are_added_once_behind_those_that_are_set() -> None:
    ENV.set("NEURON_CC_FLAGS", "--verbose=info")
    platform = PlatformNeuron(host=False)
    assert platform.apply_compiler_flags()
    assert not platform.apply_compiler_flags()
    assert ENV.raw("NEURON_CC_FLAGS") == " ".join(["--verbose=info", *COMPILER_FLAGS])


def test_basic_mode_is_the_default() -> None:
    PlatformNeuron(host=False).check_basic_mode()


def test_modes_the_platform_lacks_are_refused_together() -> None:
    ENV.set("DEEPINFER_USE_NEXTN_DECODE", "5")
    ENV.set("DEEPINFER_YOCO_PREFILL_TRUNCATION_MODE", "mask")
    with pytest.raises(PlatformError) as caught:
        PlatformNeuron(host=True).check_basic_mode()
    text = str(caught.value)
    assert "DEEPINFER_USE_NEXTN_DECODE (draft tokens)" in text
    assert "DEEPINFER_YOCO_PREFILL_TRUNCATION_MODE (shortened prefill)" in text
    assert "DEEPINFER_USE_NEXTN_DECODE=0" in text
    assert "DEEPINFER_YOCO_PREFILL_TRUNCATION_MODE=off" in text


def test_the_platform_is_made_once_and_anew_when_forgotten() -> None:
    import port
    from port import platform

    platform.forget_platform()
    try:
        first = port.PLATFORM
        assert platform.PLATFORM is first
        assert not first.is_host
        ENV.set("DEEPINFER_NEURON_DEVICE", "cpu")
        assert platform.PLATFORM is first
        platform.forget_platform()
        assert platform.PLATFORM.is_host
    finally:
        platform.forget_platform()
