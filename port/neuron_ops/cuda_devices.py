"""Devices and random numbers, by their names in `torch.cuda`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from port.neuron_ops.device_mapping import DeviceMapping
from port.neuron_ops.torch_neuron import ask_neuron, is_compiling, one_core


class DeviceProperties:
    """What CUDA code asks of a device.

    Attributes:
        name: of the device.
        total_memory: bytes.
        major: 0, as there is no compute capability of CUDA's.
        minor: 0.
    """

    major = 0
    minor = 0

    def __init__(self, name: str, total_memory: int) -> None:
        self.name = name
        self.total_memory = total_memory

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise AttributeError(
            f"torch.cuda.get_device_properties().{name} has no counterpart on Neuron; there are name, total_memory, "
            "major and minor."
        )


class CudaDevices:
    """Functions of `torch.cuda`; each asks `torch.neuron` when it is called.

    Args:
        mapping: which device CUDA stands for.
    """

    def __init__(self, mapping: DeviceMapping) -> None:
        self._mapping = mapping

    def is_available(self) -> bool:
        """False while a graph is compiled, so that no compiler takes its CUDA paths."""
        return not is_compiling() and (self._mapping.host or bool(ask_neuron("is_available")))

    def is_initialized(self) -> bool:
        """The device starts by itself."""
        return True

    def init(self) -> None:
        """Nothing: the device starts by itself."""

    def _lazy_init(self) -> None:
        """Nothing: the device starts by itself."""

    def device_count(self) -> int:
        """Return the devices CUDA code sees: one, or all cores with `same_index`; none while a graph is compiled."""
        if is_compiling():
            return 0
        if self._mapping.host or self._mapping.devices == "one":
            return 1
        return int(ask_neuron("device_count"))

    def current_device(self) -> int:
        """Return the number of the current device as CUDA code counts them; 0 where there is one."""
        return 0 if self._mapping.host or self._mapping.devices == "one" else int(ask_neuron("current_device"))

    def set_device(self, device: Any) -> None:
        """Make a device the current one; without a number it is the current one already."""
        target = self._mapping.number(device)
        if not self._mapping.host and target.index is not None:
            ask_neuron("set_device", target.index)

    @contextlib.contextmanager
    def device(self, device: Any) -> Iterator[None]:
        """Make a device the current one for a while; None and -1 change nothing, as with CUDA."""
        if self._mapping.host or device is None or (isinstance(device, int) and device < 0):
            yield
            return
        before = int(ask_neuron("current_device"))
        self.set_device(device)
        try:
            yield
        finally:
            ask_neuron("set_device", before)

    def device_of(self, tensor: torch.Tensor) -> contextlib.AbstractContextManager[None]:
        """Make the device of a tensor the current one for a while."""
        return self.device(tensor.device if tensor.device.type == "neuron" else None)

    def synchronize(self, device: Any = None) -> None:
        """Wait for what is queued on a core."""
        if not self._mapping.host:
            ask_neuron("synchronize", *one_core(self._mapping, device))

    def get_device_properties(self, device: Any = None) -> DeviceProperties:
        """Return the name and the total memory of a core, or of the host."""
        if self._mapping.host:
            import psutil

            return DeviceProperties("cpu", psutil.virtual_memory().total)
        found = ask_neuron("get_device_properties", *one_core(self._mapping, device))
        return DeviceProperties(str(found.name), int(found.total_memory))

    def get_device_name(self, device: Any = None) -> str:
        """Return the name of a core, `cpu` on the host."""
        return "cpu" if self._mapping.host else str(ask_neuron("get_device_name", *one_core(self._mapping, device)))

    def get_device_capability(self, device: Any = None) -> tuple[int, int]:
        """Return (0, 0): no compute capability, so that code for one of CUDA's is not chosen."""
        return (0, 0)

    def get_arch_list(self) -> list[str]:
        """Nothing was built for an architecture of CUDA."""
        return []

    def get_gencode_flags(self) -> str:
        """Nothing was built for an architecture of CUDA."""
        return ""

    def is_bf16_supported(self, including_emulation: bool = True) -> bool:
        """The device has bfloat16 (documented)."""
        return True

    def is_tf32_supported(self) -> bool:
        """There is no such mode."""
        return False

    def can_device_access_peer(self, device: Any, peer_device: Any) -> bool:
        """Tensors of another core are not read directly."""
        return False

    def ipc_collect(self) -> None:
        """Nothing: memory is not shared between processes."""


class CudaRandom:
    """Random numbers; on the host those of the CPU's generator, directly: `torch.manual_seed` calls some of these.

    Args:
        mapping: which device CUDA stands for.
    """

    def __init__(self, mapping: DeviceMapping) -> None:
        self._mapping = mapping

    def _is_in_bad_fork(self) -> bool:
        return False if self._mapping.host else bool(ask_neuron("_is_in_bad_fork", default=False))

    def manual_seed(self, seed: int) -> None:
        """Seed the current core."""
        if self._mapping.host:
            torch.default_generator.manual_seed(int(seed))
        else:
            ask_neuron("manual_seed", int(seed))

    def manual_seed_all(self, seed: int) -> None:
        """Seed every core."""
        if self._mapping.host:
            torch.default_generator.manual_seed(int(seed))
        else:
            ask_neuron("manual_seed_all", int(seed))

    def seed(self) -> None:
        """Seed the current core with a number nobody chose."""
        self.manual_seed(_any_seed())

    def seed_all(self) -> None:
        """Seed every core with a number nobody chose."""
        self.manual_seed_all(_any_seed())

    def initial_seed(self) -> int:
        """Return the seed the generator began with."""
        return torch.default_generator.initial_seed() if self._mapping.host else int(ask_neuron("initial_seed"))

    def get_rng_state(self, device: Any = None) -> torch.Tensor:
        """Return the state of a core's generator."""
        if self._mapping.host:
            return torch.default_generator.get_state()
        return ask_neuron("get_rng_state", *one_core(self._mapping, device))

    def set_rng_state(self, new_state: torch.Tensor, device: Any = None) -> None:
        """Put a state of `get_rng_state` back."""
        if self._mapping.host:
            torch.default_generator.set_state(new_state)
        else:
            ask_neuron("set_rng_state", new_state, *one_core(self._mapping, device))

    def get_rng_state_all(self) -> list[torch.Tensor]:
        """Return the states of all devices CUDA code sees."""
        return [self.get_rng_state(number) for number in range(self._count())]

    def set_rng_state_all(self, new_states: list[torch.Tensor]) -> None:
        """Put the states of `get_rng_state_all` back."""
        for number, state in enumerate(new_states):
            self.set_rng_state(state, number)

    def _count(self) -> int:
        return 1 if self._mapping.host or self._mapping.devices == "one" else int(ask_neuron("device_count"))


def _any_seed() -> int:
    return torch.Generator().seed()
