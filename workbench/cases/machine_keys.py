"""Which key of a neuron-ls case asks for which fact of the machine, a device or a process: rules for words.

A fact is given in the ways it can be put (a count and a list of ids, by device and by node), the plainest first.
Devices and processes are given as they are, since further keys may ask about them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from port.deep_cluster.machine import Machine, NeuronDevice, NeuronProcess

Ways: TypeAlias = "Sequence[object]"
"""The ways one fact can be put, the plainest first."""


def _each(devices: Sequence[NeuronDevice], fact: Callable[[NeuronDevice], object]) -> Ways:
    """Return one value where all devices have it, the values by device, and the values in order."""
    values = [fact(device) for device in devices]
    one = values[:1] if values and all(value == values[0] for value in values) else []
    by_device = {str(device.index): value for device, value in zip(devices, values, strict=True)}
    return (*one, by_device, values) if values else (None, {}, [])


def _numa(machine: Machine) -> Ways:
    by_device, nodes = {str(device.index): device.numa_node for device in machine.devices}, machine.numa_nodes
    by_node = {"none" if node is None else str(node): list(devices) for node, devices in nodes.items()}
    one = list(nodes)[:1] if len(nodes) == 1 else []
    # By node and by device look alike (`{"0": 1}`), so the keys decide which was meant: lists are devices of a node.
    return (*one, by_device, by_node, sorted(node for node in nodes if node is not None))


def _core_numa(machine: Machine) -> Ways:
    by_node: dict[str, list[int]] = {}
    for core in machine.cores:
        by_node.setdefault(str(core.numa_node), []).append(core.core_id)
    return ({str(core.core_id): core.numa_node for core in machine.cores}, by_node)


def _busy_devices(machine: Machine, *, busy: bool) -> Ways:
    return ([device.index for device in machine.devices if device.is_busy is busy],)


def _processes(machine: Machine) -> Ways:
    found = [process for device in machine.devices for process in device.processes]
    by_device = {str(one.index): list(one.processes) for one in machine.devices}
    return (len(machine.pids), found, by_device, list(machine.pids))


def _commands(machine: Machine) -> Ways:
    told = [process.command for device in machine.devices for process in device.processes]
    return (told, [command or None for command in told], *([None] if not any(told) else []))


def _odd_commands(machine: Machine, keep: Callable[[NeuronProcess], bool]) -> Ways:
    found = [process for device in machine.devices for process in device.processes if keep(process)]
    return (bool(found), [one.pid for one in found], [one.command for one in found], len(found))


def _versions(machine: Machine) -> Ways:
    told = [process.runtime_version for device in machine.devices for process in device.processes]
    versions = list(dict.fromkeys(told))
    return (*(versions if len(versions) == 1 else []), versions, told)


def _links(machine: Machine) -> Ways:
    links = {str(device): list(to) for device, to in machine.links.items()}
    one = list(links.values()) if len(machine.devices) == 1 else []
    return (links, *one, *([[], None] if not links else []), {device: len(to) for device, to in links.items()})


def _are_links_mutual(machine: Machine) -> Ways:
    seen = {device.index for device in machine.devices}
    return (all(device in machine.links.get(to, ()) for device, all_to in machine.links.items()
                for to in all_to if to in seen),)  # fmt: skip


def _reason(machine: Machine) -> Ways:
    """Return the reason whole, then what the tool itself said, whole and in its parts."""
    detail = machine.reason.partition("): ")[2]
    return (machine.reason or None, *([detail, *detail.split("; ")] if detail else []), machine.cause)


def _unknown_keys(machine: Machine) -> Ways:
    keys = {
        "instance_type": machine.instance_type, "instance_id": machine.instance_id,
        "logical_neuroncore_config": machine.lnc,
        **{name: next((getattr(device, attribute) for device in machine.devices if getattr(device, attribute)), None)
           for name, attribute in (("bdf", "bdf"), ("cpu_affinity", "cpu_affinity"), ("connected_to", "links"))},
        "neuroncore_ids": True if all(device.core_ids_told for device in machine.devices) else None,
        "numa_node": next((one.numa_node for one in machine.devices if one.numa_node is not None), None),
    }  # fmt: skip
    return ([name for name, value in keys.items() if value is None],)


def _devices(machine: Machine) -> Ways:
    return (len(machine.devices), list(machine.devices), {str(device.index): device for device in machine.devices})


_Machine = Callable[[Machine], Ways]
MACHINE_RULES: tuple[tuple[str, _Machine], ...] = (
    ("device|total", _devices),
    ("device listed|total|found|seen", _devices),
    ("device invisible|hidden|missing|outside|absent|unlisted", lambda m: (list(m.invisible_links),)),
    ("device id", lambda m: ([device.index for device in m.devices],)),
    ("core|total", lambda m: (m.logical_core_count, list(m.core_ids))),
    ("logical|total core", lambda m: (m.logical_core_count, list(m.core_ids))),
    ("logical", lambda m: (m.logical_core_count,)),
    ("physical core|physical|total", lambda m: (m.physical_core_count,)),
    ("physical core total", lambda m: (m.physical_core_count,)),
    ("core device", lambda m: (*_each(m.devices, lambda d: d.core_count),
                               *_each(m.devices, lambda d: list(d.core_ids)),
                               {str(core.core_id): core.device for core in m.cores})),
    ("core id|logical", lambda m: (list(m.core_ids), m.logical_core_count)),
    ("core id per|device|each", lambda m: _each(m.devices, lambda d: list(d.core_ids))),
    ("core|logical device|per|each", lambda m: (*_each(m.devices, lambda d: d.core_count),
                                                *_each(m.devices, lambda d: list(d.core_ids)))),
    ("core device|per|each physical", lambda m: _each(m.devices, lambda d: d.physical_core_count)),
    ("lnc", lambda m: (m.lnc,)),
    ("lnc logical|core", lambda m: (m.lnc,)),
    ("instance type", lambda m: (m.instance_type,)),
    ("instance id", lambda m: (m.instance_id,)),
    ("instance", lambda m: (m.instance_type,)),
    ("memory|bytes device|per|each", lambda m: _each(m.devices, lambda d: d.memory_bytes)),
    ("memory bytes|device|total|machine", lambda m: _each(m.devices, lambda d: d.memory_bytes)),
    ("memory total bytes|memory", lambda m: (m.memory_bytes,)),
    ("memory total bytes|memory device|machine|instance", lambda m: (m.memory_bytes,)),
    ("memory core per|each|logical bytes|memory", lambda m: _each(m.devices, lambda d: d.memory_per_core_bytes)),
    ("memory core per|each|logical logical|core bytes|memory",
     lambda m: _each(m.devices, lambda d: d.memory_per_core_bytes)),
    ("memory core physical per|each|physical bytes|memory", lambda m: _each(m.devices, _memory_per_physical)),
    ("busy", lambda m: (bool(m.pids),)),
    ("free", lambda m: (not m.pids,)),
    ("busy|used core id|logical|core", lambda m: (list(m.busy_core_ids), len(m.busy_core_ids))),
    ("free|idle core id|logical|core|available", lambda m: (list(m.free_core_ids), len(m.free_core_ids))),
    ("busy|used device id|device", lambda m: _busy_devices(m, busy=True)),
    ("free|idle device id|device|available", lambda m: _busy_devices(m, busy=False)),
    ("pid process|pid|unique|device|busy", lambda m: (list(m.pids), {str(d.index): [p.pid for p in d.processes]
                                                                for d in m.devices})),
    ("process", _processes),
    ("process device|per|each", _processes),
    ("command process|command", _commands),
    ("command truncated|cut process|command", lambda m: _odd_commands(m, lambda p: p.command.endswith(("...", "…")))),
    ("command empty|hidden|missing|unknown process|command", lambda m: _odd_commands(m, lambda p: not p.command)),
    ("runtime version process|version", _versions),
    ("link device|per|link", _links),
    ("link mutual|symmetric|both link", _are_links_mutual),
    ("link invisible|missing|unknown|outside|hidden|absent|not|dangling device|link",
     lambda m: (list(m.invisible_links), bool(m.invisible_links))),
    ("numa node|map|device|numa|per", _numa),
    ("numa core node|map|numa|per|core", _core_numa),
    ("cpu affinity|device|per|core|cpu", lambda m: (*_each(m.devices, lambda d: d.cpu_affinity),
                                                *_each(m.devices, lambda d: list(d.cpus)))),
    ("bdf|pci bdf|pci|address|device|per", lambda m: _each(m.devices, lambda d: d.bdf)),
    ("available device|available|driver", lambda m: (m.is_available,)),
    ("reason|error|message|cause", _reason),
    ("fallback", lambda m: (None if m.is_available else "host only",)),
    ("source|tool", lambda m: (m.source,)),
    ("container|partial|subset view|container|partial|subset|device", lambda m: (bool(m.invisible_links),)),
    ("missing|absent|unknown key|field", _unknown_keys),
    ("warning|note", lambda m: (list(m.notes),)),
)  # fmt: skip


def _memory_per_physical(device: NeuronDevice) -> int | None:
    count = device.physical_core_count
    return None if device.memory_bytes is None or not count else device.memory_bytes // count


_Device = Callable[[NeuronDevice], Ways]
DEVICE_RULES: tuple[tuple[str, _Device], ...] = (
    ("id|device", lambda d: (d.index,)),
    ("device id", lambda d: (d.index,)),
    ("core|logical", lambda d: (d.core_count, list(d.core_ids))),
    ("core logical|id", lambda d: (d.core_count, list(d.core_ids))),
    ("core physical", lambda d: (d.physical_core_count,)),
    ("lnc", lambda d: (d.lnc,)),
    ("lnc logical|core", lambda d: (d.lnc,)),
    ("memory|bytes", lambda d: (d.memory_bytes,)),
    ("memory bytes|device", lambda d: (d.memory_bytes,)),
    ("memory core per|logical|bytes", lambda d: (d.memory_per_core_bytes,)),
    ("memory core per logical|bytes", lambda d: (d.memory_per_core_bytes,)),
    ("instance type", lambda d: (d.instance_type,)),
    ("bdf|pci bdf|pci|address", lambda d: (d.bdf,)),
    ("numa node|numa", lambda d: (d.numa_node,)),
    ("cpu affinity|cpu", lambda d: (d.cpu_affinity, list(d.cpus))),
    ("link device|link", lambda d: (list(d.links),)),
    ("busy", lambda d: (d.is_busy, list(d.core_ids) if d.is_busy else [])),
    ("busy core", lambda d: (list(d.core_ids) if d.is_busy else [],)),
    ("free", lambda d: (not d.is_busy,)),
    ("pid process|pid", lambda d: ([process.pid for process in d.processes],)),
    ("process", lambda d: (len(d.processes), list(d.processes))),
    ("command", lambda d: ([process.command for process in d.processes],)),
)
PROCESS_RULES: tuple[tuple[str, Callable[[NeuronProcess], Ways]], ...] = (
    ("pid|id", lambda p: (p.pid,)),
    ("command|name", lambda p: (p.command, None) if not p.command else (p.command,)),
    ("truncated|cut command|truncated|cut", lambda p: (p.command.endswith(("...", "…")),)),
    ("command hidden|empty|unknown|missing", lambda p: (not p.command,)),
    ("runtime|version version|runtime", lambda p: (p.runtime_version,)),
)
