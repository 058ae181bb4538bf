"""Every placement opens its device or says what to use instead."""

from __future__ import annotations

import pytest
import torch

from workbench.devices.names import LOADERS, open_device
from workbench.errors import DeviceError
from workbench.exit_codes import ExitCode
from workbench.plan import Placement


def test_host_opens_the_cpu_and_gives_back_what_needs_no_move() -> None:
    device = open_device(Placement())
    value = {"x": torch.ones(2), "model": torch.nn.Linear(2, 2)}
    with device.active(), device.inactive():
        assert device.place(value) is value
    assert (device.name, device.device, device.has_numbers) == ("host", torch.device("cpu"), True)
    assert device.memory_sample().allocated_bytes is None


def test_host_refuses_weights_that_were_never_loaded() -> None:
    with pytest.raises(DeviceError, match=r"expected numbers, found a tensor on meta, torch.float32\[3\]. Load"):
        open_device(Placement()).place(torch.nn.Linear(2, 3, device="meta"))


def test_host_has_one_core() -> None:
    with pytest.raises(DeviceError, match="expected index 0, the CPU; found 2"):
        open_device(Placement(index=2))


@pytest.mark.parametrize("name", ["virtual"])
def test_a_placement_of_a_later_version_says_what_to_use_instead(name) -> None:
    with pytest.raises(DeviceError, match=rf"{name}:3 .* 'host' for numbers, or 'dry'") as error:
        open_device(Placement(device=name, index=3))
    assert error.value.exit_code == ExitCode.ENVIRONMENT


def test_an_unknown_placement_lists_the_known_ones() -> None:
    with pytest.raises(DeviceError, match=f"expected one of {', '.join(LOADERS)}; found 'gpu'"):
        open_device(Placement(device="gpu"))  # pyright: ignore[reportArgumentType]


def test_a_core_without_its_library_says_what_to_use_instead() -> None:
    with pytest.raises(DeviceError, match=r"torch-neuronx is not installed.* use 'host' for numbers") as error:
        open_device(Placement(device="neuron", index=3))
    assert error.value.exit_code == 3
