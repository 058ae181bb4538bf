"""Which device a CUDA name stands for while `transfer_to_neuron` is installed.

`devices="one"`: the process owns one logical core, so every CUDA device, numbered or not, is `neuron:0`.
`devices="same_index"`: numbers stay (`cuda:1` is `neuron:1`), and `cuda` without one is the current core, as with CUDA;
for a process that sees several cores, or whose core has its local rank as number.
In host mode every CUDA device is the CPU, which has no number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch

Devices = Literal["one", "same_index"]

real_device: Any = torch.device
"""The class itself: `torch.device` is a stand-in for it while the mapping is installed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMapping:
    """The rule.

    Attributes:
        host: CUDA is the CPU.
        devices: "one" core for every number, or the "same_index".

    Raises:
        ValueError: another value of `devices`.
    """

    host: bool
    devices: Devices = "one"

    def __post_init__(self) -> None:
        if self.devices not in get_args(Devices):
            raise ValueError(
                f"transfer_to_neuron: expected devices to be one of {get_args(Devices)}; found {self.devices!r}."
            )

    @property
    def type(self) -> str:
        """Device type that CUDA stands for."""
        return "cpu" if self.host else "neuron"

    def device(self, value: Any) -> Any:
        """Return what a device argument stands for; anything that does not name CUDA comes back as it is.

        Args:
            value: a device, a string such as `cuda:1`, or anything else.
        """
        if isinstance(value, str):
            if value != "cuda" and not value.startswith("cuda:"):
                return value
            value = real_device(value)
        if not isinstance(value, real_device) or value.type != "cuda":
            return value
        if self.host:
            return real_device("cpu")
        if self.devices == "one":
            return real_device("neuron", 0)
        return real_device("neuron") if value.index is None else real_device("neuron", value.index)

    def number(self, value: Any) -> Any:
        """Return the device that a bare number means where CUDA code gives one; else as `device`."""
        if isinstance(value, int) and not isinstance(value, bool):
            return self.device(real_device("cuda", value))
        return self.device(value)

    def default(self) -> Any:
        """Return what `cuda` without a number stands for."""
        return self.device("cuda")

    def keywords(self, keywords: Mapping[str, Any]) -> dict[str, Any]:
        """Return keyword arguments with `device` mapped, and without pinning."""
        mapped = dict(keywords)
        if "device" in mapped:
            mapped["device"] = self.number(mapped["device"])
        if mapped.get("pin_memory"):
            # torch pins for an accelerator it knows how to pin for; for this one that is not documented.
            mapped["pin_memory"] = False
        return mapped

    def location(self, given: Any) -> Any:
        """Return a `map_location` of `torch.load` that brings CUDA storages to what CUDA stands for."""
        if given is None:
            return self._restore
        if callable(given):
            return self._after(given)
        if isinstance(given, Mapping):
            return lambda storage, location: self._restore(storage, str(given.get(location, location)))
        return self.device(given)

    def _restore(self, storage: Any, location: str) -> Any:
        from torch.serialization import default_restore_location

        return default_restore_location(storage, str(self.device(location)))

    def _after(self, given: Callable[[Any, str], Any]) -> Callable[[Any, str], Any]:
        def restore(storage: Any, location: str) -> Any:
            found = given(storage, location)
            return self._restore(storage, location) if found is None else found

        return restore
