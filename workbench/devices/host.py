"""The CPU, with real numbers."""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager

import torch
from torch import Tensor

from workbench.devices.placing import Placing, T
from workbench.errors import DeviceError
from workbench.plan import DeviceName
from workbench.records.memory import MemorySample


class HostDevice:
    """The CPU; see `Device` for the methods."""

    name: DeviceName = "host"
    has_numbers = True

    def __init__(self) -> None:
        self.device = torch.device("cpu")

    def active(self) -> AbstractContextManager[object]:
        """Return a context without effect."""
        return contextlib.nullcontext()

    def inactive(self) -> AbstractContextManager[object]:
        """Return a context without effect."""
        return contextlib.nullcontext()

    def place(self, value: T) -> T:
        """Return `value` with every tensor on the CPU.

        Raises:
            DeviceError: a tensor on `meta`, which has no numbers to bring.
        """
        return Placing(_on_cpu).of(value)

    def memory_sample(self) -> MemorySample:
        """Return a sample without figures: the CPU's allocator keeps no counters; `record_memory` counts instead."""
        return MemorySample(device="cpu", reserved_bytes=None, allocated_bytes=None, active_bytes=None)


def _on_cpu(tensor: Tensor) -> Tensor:
    if tensor.is_meta:
        raise DeviceError(
            f"host: expected numbers, found a tensor on meta, {tensor.dtype}{list(tensor.shape)}. "
            "Load its weights first, or use the placement 'dry'."
        )
    return tensor if tensor.device.type == "cpu" else tensor.cpu()
