"""What both forms of neuron-ls output have in common: how a list of devices becomes a machine."""

from __future__ import annotations

from port.deep_cluster.machine import Machine, NeuronDevice

NO_DEVICE = "no Neuron device / driver"
"""How a machine without devices is told of."""


def machine_of(devices: tuple[NeuronDevice, ...], instance_type: str | None, instance_id: str | None) -> Machine:
    """Return the machine of devices that neuron-ls listed, with what a reader should know of them.

    Raises:
        ValueError: a device or a core id stands there twice.
    """
    for what, numbers in (
        ("device", [device.index for device in devices]),
        ("core id", [core_id for device in devices for core_id in device.core_ids]),
    ):
        if len(set(numbers)) != len(numbers):
            twice = next(number for number in numbers if numbers.count(number) > 1)
            raise ValueError(f"neuron-ls: expected every {what} once; found {what} {twice} more than once")
    notes: list[str] = []
    if any(not device.core_ids_told for device in devices):
        notes.append(
            "core ids are not told (an older tool): counted as device x cores per device (inferred from full machines)"
        )
    for name, values in (
        ("logical core size", {device.lnc for device in devices}),
        ("core count", {device.core_count for device in devices}),
    ):
        if len(values) > 1:
            notes.append(f"devices differ in {name}: {', '.join(sorted(map(str, values)))}")
    return Machine(
        source="neuron-ls",
        devices=devices,
        instance_type=instance_type,
        instance_id=instance_id,
        reason="" if devices else f"{NO_DEVICE}: neuron-ls lists none",
        cause="" if devices else "no_device",
        notes=tuple(notes),
    )


def counted_ids(index: int, core_count: int) -> tuple[int, ...]:
    """Return the core ids of a device that does not tell them: device i has `i * n` to `i * n + n - 1`."""
    return tuple(range(index * core_count, (index + 1) * core_count))


def numa_node(value: object) -> int | None:
    """Return a NUMA node told as text or number; None for "-1", "", null and what is no number."""
    text = str(value).strip() if value is not None else ""
    return int(text) if text.isdigit() else None


def known_version(text: str | None) -> str | None:
    """Return a runtime version; None for the words that stand for none."""
    return None if text is None or text.strip() in ("", "NA", "N/A") else text.strip()
