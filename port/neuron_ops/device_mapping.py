"""Which device a CUDA name stands for while `transfer_to_neuron` is installed.

One process owns one logical core, so every CUDA device is the same one: `neuron:0`, or the CPU in host mode. Where a
process owns several cores, `devices="same_index"` keeps the numbers: `cuda:1` is `neuron:1`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

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
    """

    host: bool
    devices: Devices = "one"

    @property
    def type(self) -> str:
        """Device type that CUDA stands for."""
        return "cpu" if self.host else "neuron"

    def index(self, cuda_index: int | None) -> int:
        """Return the number of the core that a CUDA number stands for; none stands for the first."""
        return 0 if self.devices == "one" or cuda_index is None else cuda_index

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
        return real_device("cpu") if self.host else real_device("neuron", self.index(value.index))

    def number(self, value: Any) -> Any:
        """Return the device that a bare number means where CUDA code gives one: a core, or the CPU."""
        if isinstance(value, int) and not isinstance(value, bool):
            return self.device(real_device("cuda", value))
        return self.device(value)

    def keywords(self, keywords: Mapping[str, Any]) -> dict[str, Any]:
        """Return keyword arguments with `device` mapped; a CUDA host has no pinned memory to offer."""
        mapped = dict(keywords)
        if "device" in mapped:
            mapped["device"] = self.number(mapped["device"])
        if mapped.get("pin_memory"):
            # Pinning asks for an accelerator; host memory of the device needs none (documented).
            mapped["pin_memory"] = False
        return mapped

    def location(self, given: Any) -> Any:
        """Return a `map_location` of `torch.load` that brings CUDA storages to what CUDA stands for."""
        if given is None:
            return self._restore
        if callable(given):
            return self._after(given)
        if isinstance(given, Mapping):
            return {self._text(key): self._text(value) for key, value in given.items()} | {
                key: self._text(value) for key, value in given.items()
            }
        return self.device(given)

    def _text(self, location: Any) -> Any:
        mapped = self.device(location)
        return str(mapped) if isinstance(location, str) else mapped

    def _restore(self, storage: Any, location: str) -> Any:
        from torch.serialization import default_restore_location

        return default_restore_location(storage, str(self.device(location)))

    def _after(self, given: Callable[[Any, str], Any]) -> Callable[[Any, str], Any]:
        def restore(storage: Any, location: str) -> Any:
            found = given(storage, location)
            return self._restore(storage, location) if found is None else found

        return restore
