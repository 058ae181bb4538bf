"""The seam between a session and the place one side runs on.

Stand-ins used in tests satisfy the same protocol. Which name opens which device is in `names`.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol, TypeVar

import torch

from workbench.plan import DeviceName
from workbench.records.memory import MemorySample

T = TypeVar("T")


class Device(Protocol):
    """One place tensors live on and operations run on."""

    @property
    def name(self) -> DeviceName:
        """As in `Placement.device`."""
        ...

    @property
    def device(self) -> torch.device:
        """What its tensors report."""
        ...

    @property
    def has_numbers(self) -> bool:
        """False where tensors have shapes and no numbers."""
        ...

    def active(self) -> AbstractContextManager[object]:
        """Return the context in which tensors of this device are made and used; entering it twice is fine.

        Raises, from inside the context:
            DryRunError: on a dry device, an operation that needs numbers or mixes devices.
        """
        ...

    def inactive(self) -> AbstractContextManager[object]:
        """Return a context that lifts `active` for a while: for host work such as building a batch."""
        ...

    def place(self, value: T) -> T:
        """Return `value` with every tensor on this device.

        Tensors inside tuples, lists, mappings, dataclasses, objects and modules are found. What holds a tensor is
        rebuilt, so the original stays as it is; what needs no move comes back as the same object. Tensors that share
        a storage (tied weights, views) share one afterwards.

        Raises:
            DeviceError: a tensor that cannot be on this device.
        """
        ...

    def memory_sample(self) -> MemorySample:
        """Return the device's own counters, read after a synchronisation; None where it does not count."""
        ...
