"""Memory figures, by their names in `torch.cuda`. The host keeps no counters: 0, or nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from port.errors import PlatformError
from port.neuron_ops.device_mapping import DeviceMapping
from port.neuron_ops.torch_neuron import ask_neuron, one_core


class CudaMemory:
    """Functions of `torch.cuda`; each asks `torch.neuron` when it is called.

    Args:
        mapping: which device CUDA stands for.
    """

    def __init__(self, mapping: DeviceMapping) -> None:
        self._mapping = mapping

    def memory_allocated(self, device: Any = None) -> int:
        """Return bytes held by tensors."""
        return self._bytes("memory_allocated", device)

    def max_memory_allocated(self, device: Any = None) -> int:
        """Return the most bytes held by tensors."""
        return self._bytes("max_memory_allocated", device)

    def memory_reserved(self, device: Any = None) -> int:
        """Return bytes taken from the runtime."""
        return self._bytes("memory_reserved", device)

    def max_memory_reserved(self, device: Any = None) -> int:
        """Return the most bytes taken from the runtime."""
        return self._bytes("max_memory_reserved", device)

    def memory_stats(self, device: Any = None) -> dict[str, Any]:
        """Return the statistics under CUDA's flat names, such as `allocated_bytes.all.current`.

        Builds of April 2026 nest them (source) and newer ones do not (reported); both come out alike.
        """
        if self._mapping.host:
            return {}
        return dict(_flat(ask_neuron("memory_stats", *one_core(self._mapping, device))))

    def memory_stats_as_nested_dict(self, device: Any = None) -> dict[str, Any]:
        """Return the statistics of `memory_stats`, a dictionary for each part of a name."""
        nested: dict[str, Any] = {}
        for name, value in self.memory_stats(device).items():
            *parents, last = name.split(".")
            place = nested
            for parent in parents:
                place = place.setdefault(parent, {})
            place[last] = value
        return nested

    def memory_summary(self, device: Any = None, abbreviated: bool = False) -> str:
        """Return the device's own summary as text."""
        if self._mapping.host:
            return "the CPU keeps no counters"
        return str(ask_neuron("memory_summary", *one_core(self._mapping, device)))

    def reset_peak_memory_stats(self, device: Any = None) -> None:
        """Begin the highest figures anew."""
        if not self._mapping.host:
            ask_neuron("reset_peak_memory_stats", *one_core(self._mapping, device))

    def reset_accumulated_memory_stats(self, device: Any = None) -> None:
        """Begin the sums anew."""
        if not self._mapping.host:
            ask_neuron("reset_accumulated_memory_stats", *one_core(self._mapping, device))

    def empty_cache(self) -> None:
        """Give memory that nothing uses back to the runtime."""
        if not self._mapping.host:
            ask_neuron("empty_cache")

    def mem_get_info(self, device: Any = None) -> tuple[int, int]:
        """Return free and total bytes of the core, or of the host.

        Where a build does not tell, free is the total less what is reserved: other processes own no part of a core.

        Raises:
            PlatformError: the build tells no total.
        """
        if self._mapping.host:
            import psutil

            memory = psutil.virtual_memory()
            return memory.available, memory.total
        one = one_core(self._mapping, device)
        try:
            found = ask_neuron("mem_get_info", *one, default=None)
        except RuntimeError:
            found = None  # torch.accelerator has the name for every device; not every allocator behind it tells
        if found is not None:
            free, total = found
            return int(free), int(total)
        total = int(getattr(ask_neuron("get_device_properties", *one), "total_memory", 0))
        if not total:
            raise PlatformError("torch.cuda.mem_get_info: this build of torch-neuronx tells no total memory.")
        return max(total - self._bytes("memory_reserved", device), 0), total

    def _bytes(self, name: str, device: Any) -> int:
        return 0 if self._mapping.host else int(ask_neuron(name, *one_core(self._mapping, device)))


def _flat(given: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in given.items():
        if not isinstance(value, Mapping):
            found[name] = value
            continue
        for key, inner in value.items():
            if isinstance(inner, Mapping):
                found |= {f"{name}.{key}.{last}": figure for last, figure in inner.items()}
            else:  # one pool, which CUDA calls "all"
                found[f"{name}.all.{key}"] = inner
    return found
