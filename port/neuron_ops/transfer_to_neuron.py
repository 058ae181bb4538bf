"""CUDA-written code on a NeuronCore, or on the CPU: `cuda` means the device of this process while this is installed.

    with transfer_to_neuron():
        x = torch.zeros(4, device="cuda")      # on neuron:0; on the CPU in host mode

`torch.device`, what takes a device, `torch.autocast`, generators, `torch.load` and every name of `torch.cuda` are
replaced, in every thread, and put back by the last one out: installing is counted, so that nested and concurrent uses
are one. Importing this module changes nothing. A compiler is told that there is no CUDA, so that it does not take its
CUDA paths; the code that it traces is mapped, and sees `torch.cuda.is_available()` False.

`torch.device` makes real devices: `isinstance`, `==` and hashes hold, a device has its own repr, and generated code
that names `device` finds one. What has no counterpart raises NotImplementedError with its name.

Not covered: functions taken out of `torch` before (`from torch import zeros`), operators called as `torch.ops.aten.*`
with CUDA devices, `torch.Stream`, `torch.Event` and `torch.UntypedStorage` on "cuda", `torch.jit.script`, the "nccl"
back end, and `type(x) is torch.device`. In host mode every CPU tensor is one of CUDA, as there is one device.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from port.neuron_ops.cuda_table import cuda_functions, cuda_replacements
from port.neuron_ops.device_mapping import DeviceMapping, Devices
from port.neuron_ops.installation import INSTALLATION, Replacements
from port.neuron_ops.torch_names import fill_tables, torch_replacements
from port.neuron_ops.torch_neuron import check_neuron_is_known


@contextlib.contextmanager
def transfer_to_neuron(host: bool | None = None, *, devices: Devices = "one") -> Iterator[DeviceMapping]:
    """Have CUDA names mean the device of this process.

    Args:
        host: the CPU instead of a core; None asks `PLATFORM.is_host`, so `DEEPINFER_NEURON_DEVICE=cpu`.
        devices: every CUDA number is the "one" core `neuron:0`, or the core of the "same_index".

    Raises:
        PlatformError: no host mode, and torch knows no device called neuron.
        RuntimeError: another mapping is installed already.
        ValueError: another value of `devices`.
    """
    mapping = install(host, devices=devices)
    try:
        yield mapping
    finally:
        remove()


def install(host: bool | None = None, *, devices: Devices = "one") -> DeviceMapping:
    """Install the mapping until `remove` was called as often; arguments and errors as for `transfer_to_neuron`."""
    if host is None:
        from port.platform import PLATFORM

        host = PLATFORM.is_host
    mapping = DeviceMapping(host=host, devices=devices)
    if not mapping.host:
        check_neuron_is_known()
    fill_tables()
    INSTALLATION.enter(mapping, cuda_functions, _replacements)
    return mapping


def remove() -> None:
    """Undo one `install`; the last one puts everything back. Without an installation it does nothing."""
    INSTALLATION.leave()


def is_installed() -> bool:
    """Say whether CUDA names are mapped now."""
    return INSTALLATION.count > 0


def _replacements(mapping: DeviceMapping) -> Replacements:
    yield from torch_replacements(mapping)
    yield from cuda_replacements(mapping)
