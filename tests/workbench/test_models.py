"""The profile a side runs in: on a real core with the core's range, elsewhere as it was named."""

from __future__ import annotations

import pytest

from workbench.models import device_profile
from workbench.plan import DeviceName, Placement


@pytest.mark.parametrize("device", ["host", "virtual", "dry"])
def test_simulated_placements_keep_the_profile_of_the_host(device: DeviceName) -> None:
    assert device_profile(Placement(device=device, profile="bf16")) == "bf16"


def test_a_real_core_takes_its_own_range_unless_one_is_named() -> None:
    assert device_profile(Placement(device="neuron", profile="bf16")) == "bf16@224"
    assert device_profile(Placement(device="neuron", profile="bf16@448")) == "bf16@448"
