"""Which placement opens which device. A device costs a file in this folder and a line here."""

from __future__ import annotations

from collections.abc import Callable

from workbench.devices.base import Device
from workbench.errors import DeviceError
from workbench.plan import DeviceName, Placement


def open_device(placement: Placement) -> Device:
    """Return the device a placement names.

    Raises:
        DeviceError: this machine or this version cannot offer it; says what to use instead.
    """
    loader = LOADERS.get(placement.device)
    if loader is None:
        raise DeviceError(f"placement: expected one of {', '.join(LOADERS)}; found {placement.device!r}.")
    return loader(placement)


def _open_host(placement: Placement) -> Device:
    from workbench.devices.host import HostDevice

    if placement.index:
        raise DeviceError(f"placement host: expected index 0, the CPU; found {placement.index}.")
    return HostDevice()


def _open_dry(placement: Placement) -> Device:
    from workbench.devices.dry import DryDevice

    return DryDevice(index=placement.index)


def _open_virtual(placement: Placement) -> Device:
    raise DeviceError(
        f"placement virtual:{placement.index} (a simulated NeuronCore with numbers) is not part of this version. "
        "Use 'host' for numbers, or 'dry' for shapes, device strings and allocations."
    )


def _open_neuron(placement: Placement) -> Device:
    from workbench.devices.neuron import NeuronDevice

    return NeuronDevice(index=placement.index)


LOADERS: dict[DeviceName, Callable[[Placement], Device]] = {
    "host": _open_host,
    "dry": _open_dry,
    "virtual": _open_virtual,
    "neuron": _open_neuron,
}
