"""A real logical NeuronCore through torch-neuronx; the only module that imports it.

Written to the documented interface of 2.14 and to a public source tree of April 2026, and tested against stand-ins of
both; it has not been run on a device. What a build does not tell is unknown, never 0.

The library reads its variables when it is imported, and a process owns its cores from the first use until it ends. So
everything that must be in the environment is put there before the import, and an import that came first is told of.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Protocol, cast

import torch
from torch import Tensor, nn

from workbench.devices.neuron_errors import explained, meaning_of
from workbench.devices.neuron_library import Counters, NeuronLibrary
from workbench.devices.placing import Placing, T
from workbench.errors import DeviceError
from workbench.installed import look_up
from workbench.plan import DeviceName
from workbench.records.memory import MemorySample
from workbench.settings import put_environment, variables

MODULE = "torch_neuronx"

COMPILE_ONLY: dict[str, str] = {"TORCH_NEURONX_COMPILE_ONLY": "1", "NEURON_PLATFORM_TARGET_OVERRIDE": "trn2"}
"""Variables that make graphs compile without a device and without numbers (documented; the second, in the field)."""


class Holders(Protocol):
    """Says who holds the cores of this machine, in words."""

    def __call__(self) -> tuple[str, ...]:
        """Return one text a process."""
        ...


class NeuronDevice:
    """One logical core; see `Device` for the methods.

    Args:
        index: of the core among those this process may use.
        compile_only: compile for trn2 without a device; tensors have no numbers then.
        library: a loaded build, in place of the installed one.
        holders: asked who holds the cores when they are busy.

    Raises:
        DeviceError: the library is missing, is not the native one, or the core cannot be had; says what to do.
    """

    name: DeviceName = "neuron"

    def __init__(
        self,
        index: int = 0,
        *,
        compile_only: bool = False,
        library: NeuronLibrary | None = None,
        holders: Holders | None = None,
    ) -> None:
        if index < 0:
            raise DeviceError(f"placement neuron: expected a core number of at least 0, found {index}.")
        self.has_numbers = not compile_only
        self._holders = holders or _processes_on_cores
        with self._told("opening the device"):
            self.library = library or load_library(compile_only=compile_only)
            cores = self.library.core_count()
        if not compile_only and index >= cores:
            raise DeviceError(_no_such_core(index, cores))
        self.device = torch.device("neuron", index)

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Return the context in which this core is the current one; errors of the runtime carry what they mean."""
        with self._told(str(self.device)):
            guard = self.library.find("device")
            current = cast("AbstractContextManager[object]", guard(self.device)) if guard else contextlib.nullcontext()
            with current:
                yield
                # Errors come late: the first one since the last wait is raised here, inside the caller's block.
                if self.has_numbers:
                    self.library.synchronize(self.device.index)

    def inactive(self) -> AbstractContextManager[object]:
        """Return a context without effect: host work needs no other state."""
        return contextlib.nullcontext()

    def place(self, value: T) -> T:
        """Return `value` with every tensor on this core; see `Device.place`.

        Raises:
            DeviceError: a tensor without numbers, one that is not strided, or a dtype the device has not.
        """
        return Placing(_Copies(self.device)).of(value)

    def memory_sample(self) -> MemorySample:
        """Return the device's own counters, read after a synchronisation."""
        counters = self.counters()
        return MemorySample(
            device=str(self.device),
            reserved_bytes=counters.reserved,
            allocated_bytes=counters.allocated,
            active_bytes=counters.active,
        )

    def counters(self) -> Counters:
        """Return everything the build tells of this core's memory."""
        return self.library.counters(self.device.index)

    @contextlib.contextmanager
    def _told(self, where: str) -> Iterator[None]:
        try:
            yield
        except DeviceError:
            raise
        except Exception as error:
            meaning = meaning_of(str(error))
            if meaning is None:
                raise
            held = self._holders() if meaning.kind == "cores busy" else ()
            if meaning.kind in _MACHINE:
                raise DeviceError(f"{where}: {explained(str(error), holders=held)}") from error
            error.add_note(f"{where}: {meaning.means}. What to do: {meaning.advice}. [{meaning.basis}]")
            raise


_MACHINE = ("cores busy", "forked", "no driver", "wrong architecture", "core lost")
"""Kinds of error that are conditions of the machine, not of the program that runs on it."""


def load_library(*, compile_only: bool = False) -> NeuronLibrary:
    """Import the installed library and return it.

    Args:
        compile_only: set what compiling without a device needs, first.

    Raises:
        DeviceError: it is absent, a placeholder, the torch-xla one, or was imported too early.
    """
    found = look_up("torch-neuronx", MODULE)
    words = {
        "absent": "torch-neuronx is not installed",
        "placeholder": f"torch-neuronx {found.version} is a placeholder wheel that holds no code",
        "xla": f"torch-neuronx {found.version} is the torch-xla one, whose tensors are not on `neuron`",
    }
    if found.kind in words:
        raise DeviceError(
            f"placement neuron: expected the native torch-neuronx (2.13 or newer); found that {words[found.kind]}. "
            "Install it from the AWS Neuron package registry in an environment of its own, on a machine with "
            "NeuronCores; use 'host' for numbers, or 'dry' for shapes, here."
        )
    _set_before_import(compile_only)
    try:
        module = importlib.import_module(MODULE)
    except ImportError as error:
        raise DeviceError(
            f"placement neuron: torch-neuronx {found.version} cannot be imported: {error}. `workbench doctor` tells "
            "what the packages of this environment are."
        ) from error
    problem = _not_native(module)
    if problem:
        raise DeviceError(f"placement neuron: expected the native torch-neuronx; found {problem}.")
    return NeuronLibrary(module, getattr(torch, "neuron", module), accelerator=torch.accelerator, version=found.version)


def _set_before_import(compile_only: bool) -> None:
    from port import PLATFORM

    wanted = dict(COMPILE_ONLY) if compile_only else {}
    now = variables(("NEURON_", "TORCH_NEURONX_"))
    missing = {name: value for name, value in wanted.items() if name not in now}
    if MODULE in sys.modules:
        if missing:
            raise DeviceError(
                f"placement neuron: {', '.join(missing)} must be set before torch_neuronx is imported, and it is "
                "imported already. Start a process anew with them set (in Jupyter: restart the kernel)."
            )
        return
    put_environment(missing)
    # e4m3fn operands are refused on trn2 without this flag (documented); the codes are kept within 240.
    PLATFORM.apply_compiler_flags()


def _not_native(module: object) -> str:
    """Return why a module is not the native back-end, "" where it is."""
    if hasattr(module, "trace") or hasattr(module, "xla_impl"):
        return "the torch-xla one (it has `trace`); the two cannot share an environment"
    name = torch._C._get_privateuse1_backend_name()
    if name != "neuron":
        return f"torch's free device type named {name!r}, so the back-end did not register itself"
    if not hasattr(torch, "neuron"):
        return "no `torch.neuron`, so the back-end did not register itself"
    return ""


def _no_such_core(index: int, cores: int) -> str:
    set_now = variables(("NEURON_RT_VISIBLE_CORES", "NEURON_RT_NUM_CORES", "NEURON_LOGICAL_NC_CONFIG"))
    told = ", ".join(f"{name}={value}" for name, value in set_now.items()) or "no variable narrows them"
    which = f"0 to {cores - 1}" if cores else "none"
    return (
        f"placement neuron: expected one of the {cores} logical cores this process may use ({which}); found {index}. "
        f"Numbers count the visible cores from 0 ({told}); `workbench doctor` lists the machine's."
    )


def _processes_on_cores() -> tuple[str, ...]:
    from port.deep_cluster.discovery import discover

    return tuple(
        f"pid {process.pid}" + (f" ({process.command})" if process.command else "")
        for device in discover().devices
        for process in device.processes
    )


class _Copies:
    """Copies tensors to one core; each storage crosses once, and its tensors share it afterwards."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._storages: dict[tuple[int, torch.dtype], Tensor] = {}
        self._whole: dict[int, torch.dtype] = {}

    def __call__(self, tensor: Tensor) -> Tensor:
        if tensor.device == self._device:
            return tensor
        self._check(tensor)
        copy = self._copy(tensor.detach())
        if isinstance(tensor, nn.Parameter):
            return nn.Parameter(copy, requires_grad=tensor.requires_grad)
        return copy.requires_grad_() if tensor.requires_grad and tensor.is_leaf else copy

    def _copy(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        count = storage.nbytes() // tensor.element_size()
        key = storage._cdata
        base = self._storages.get((key, tensor.dtype))
        if base is None:
            first = self._whole.setdefault(key, tensor.dtype)
            if first == tensor.dtype:
                # The whole storage as one row: only contiguous tensors cross (documented).
                flat = torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(storage, 0, (count,), (1,))
                base = flat.to(self._device)
            else:
                base = self._storages[key, first].view(tensor.dtype)
            self._storages[key, tensor.dtype] = base
        offset = tensor.storage_offset()
        if tensor.is_contiguous():
            return base[offset : offset + tensor.numel()].view(tensor.shape)
        return base.as_strided(tensor.shape, tensor.stride(), offset)

    def _check(self, tensor: Tensor) -> None:
        what = f"{tensor.dtype}{list(tensor.shape)}"
        if tensor.is_meta:
            raise DeviceError(
                f"neuron: expected numbers, found a tensor on meta, {what}. Load its weights first, or use the "
                "placement 'dry'."
            )
        if tensor.layout is not torch.strided:
            raise DeviceError(f"neuron: expected a strided tensor, found {tensor.layout} {what}; make it dense first.")
        if tensor.is_complex():
            raise DeviceError(
                f"neuron: complex numbers are not native to the device (documented), found {what}; keep real and "
                "imaginary parts apart."
            )
