"""What a machine has of Neuron devices, as values: devices, their logical cores, who holds them, how they are linked.

Counts are of logical cores unless a name says physical: `nc_count` and `neuroncore_ids` of neuron-ls are logical
already, and physical = logical x logical-core size (documented). A container shows some devices only; nothing here is
concluded from the name of the instance except where a field says so.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from port.deep_cluster.number_lists import parse_numbers

Source = Literal["neuron-ls", "sysfs", "device nodes", "none"]

PHYSICAL_CORES: Mapping[str, int] = {"trn2": 8, "trn1": 2, "inf2": 2}
"""Physical cores of one device by instance family (documented)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NeuronProcess:
    """A process that holds a device.

    Attributes:
        pid: process id, as the namespace of neuron-ls counts.
        command: as told: cut at the end with "...", or "" where it is hidden.
        runtime_version: of the Neuron runtime in it, None where unknown ("NA").
    """

    pid: int
    command: str = ""
    runtime_version: str | None = None

    @property
    def is_command_whole(self) -> bool:
        """Whether the command is there and not cut."""
        return bool(self.command) and not self.command.endswith(("...", "…"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Core:
    """One logical NeuronCore: one device of torch.

    Attributes:
        core_id: logical id in the machine, as NEURON_RT_VISIBLE_CORES counts.
        device: index of the Neuron device it lies on.
        memory_bytes: its share of the device's memory, None where unknown.
        numa_node: of the device, None where there is none or it is unknown.
        pids: processes that hold its device; which cores of it they took is not told.
    """

    core_id: int
    device: int
    memory_bytes: int | None
    numa_node: int | None
    pids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NeuronDevice:
    """One Neuron device (chip).

    Attributes:
        index: as in `/dev/neuron<index>`.
        core_count: logical cores, None where no source tells.
        core_ids: logical ids of its cores; empty where `core_count` is None.
        core_ids_told: False where they were counted on from `index`, since an older tool does not tell them.
        memory_bytes: device memory, None where unknown.
        lnc: physical cores in one logical core, None where not told (trn1 and inf2 have no such setting).
        instance_type: of the machine, None where not told.
        bdf: PCI address, None where not told.
        cpu_affinity: CPUs near it, as `0-47,96-143`, None where not told.
        numa_node: None where there is none ("-1") or it is not told.
        links: indices of the devices it is linked to, in the order told, visible here or not.
        processes: who holds it.
    """

    index: int
    core_count: int | None
    core_ids: tuple[int, ...] = ()
    core_ids_told: bool = True
    memory_bytes: int | None = None
    lnc: int | None = None
    instance_type: str | None = None
    bdf: str | None = None
    cpu_affinity: str | None = None
    numa_node: int | None = None
    links: tuple[int, ...] = ()
    processes: tuple[NeuronProcess, ...] = ()

    @property
    def physical_core_count(self) -> int | None:
        """Physical cores: logical x lnc; without an lnc those the family has (documented), else the logical ones."""
        if self.core_count is None or self.lnc is not None:
            return None if self.core_count is None else self.core_count * (self.lnc or 1)
        family = (self.instance_type or "")[:4]
        return max(PHYSICAL_CORES.get(family, self.core_count), self.core_count)

    @property
    def memory_per_core_bytes(self) -> int | None:
        """Memory of one logical core: the device's, shared evenly."""
        return None if self.memory_bytes is None or not self.core_count else self.memory_bytes // self.core_count

    @property
    def is_busy(self) -> bool:
        """Whether any process holds it, however little is told of that process."""
        return bool(self.processes)

    @property
    def cpus(self) -> tuple[int, ...]:
        """CPUs near it, () where not told.

        Raises:
            ValueError: the affinity that was told is no list of CPUs.
        """
        if not (self.cpu_affinity or "").strip():
            return ()
        return parse_numbers(str(self.cpu_affinity), where=f"cpu_affinity of neuron device {self.index}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The Neuron devices a process on this machine can see.

    Attributes:
        source: which source told: neuron-ls, sysfs, the device nodes, or none.
        devices: in the order told.
        instance_type: as in `trn2.48xlarge`, None where not told.
        instance_id: None where not told.
        reason: why there are no devices, "" where there are.
        cause: the same in one word for a program: "", "not_installed", "no_device", "no_permission", "timeout",
            "unreadable" or "failed".
        notes: what else a reader should know, a sentence each.
    """

    source: Source
    devices: tuple[NeuronDevice, ...] = ()
    instance_type: str | None = None
    instance_id: str | None = None
    reason: str = ""
    cause: str = ""
    notes: tuple[str, ...] = ()

    @property
    def is_available(self) -> bool:
        """Whether there is a device."""
        return bool(self.devices)

    @property
    def lnc(self) -> int | None:
        """Physical cores in a logical one where all devices agree, else None."""
        sizes = {device.lnc for device in self.devices}
        return sizes.pop() if len(sizes) == 1 else None

    @property
    def are_cores_known(self) -> bool:
        """Whether every device told its cores; with device nodes alone none does."""
        return all(device.core_count is not None for device in self.devices)

    @property
    def logical_core_count(self) -> int:
        """Logical cores of all devices that tell theirs; see `are_cores_known`."""
        return sum(device.core_count or 0 for device in self.devices)

    @property
    def physical_core_count(self) -> int:
        """Physical cores of all devices that tell theirs."""
        return sum(device.physical_core_count or 0 for device in self.devices)

    @property
    def cores(self) -> tuple[Core, ...]:
        """Every logical core, sorted by id."""
        found = [
            Core(
                core_id=core_id,
                device=device.index,
                memory_bytes=device.memory_per_core_bytes,
                numa_node=device.numa_node,
                pids=tuple(process.pid for process in device.processes),
            )
            for device in self.devices
            for core_id in device.core_ids
        ]
        return tuple(sorted(found, key=lambda core: core.core_id))

    @property
    def core_ids(self) -> tuple[int, ...]:
        """Logical ids of all cores, sorted."""
        return tuple(core.core_id for core in self.cores)

    @property
    def busy_core_ids(self) -> tuple[int, ...]:
        """Cores of devices that a process holds."""
        return tuple(core.core_id for core in self.cores if core.pids)

    @property
    def free_core_ids(self) -> tuple[int, ...]:
        """Cores of devices that no process holds."""
        return tuple(core.core_id for core in self.cores if not core.pids)

    @property
    def pids(self) -> tuple[int, ...]:
        """Processes that hold a device, each once, in the order told."""
        return tuple(dict.fromkeys(process.pid for device in self.devices for process in device.processes))

    @property
    def memory_bytes(self) -> int | None:
        """Memory of all devices, None where one does not tell."""
        sizes = [device.memory_bytes for device in self.devices]
        return None if not sizes or None in sizes else sum(size or 0 for size in sizes)

    @property
    def links(self) -> dict[int, tuple[int, ...]]:
        """Links by device, for those that have any."""
        return {device.index: device.links for device in self.devices if device.links}

    @property
    def invisible_links(self) -> tuple[int, ...]:
        """Linked devices that are not in the list, each once: in a container, the ones it was not given."""
        seen = {device.index for device in self.devices}
        return tuple(dict.fromkeys(to for device in self.devices for to in device.links if to not in seen))

    @property
    def numa_nodes(self) -> dict[int | None, tuple[int, ...]]:
        """Device indices by NUMA node; None holds those without one."""
        nodes: dict[int | None, tuple[int, ...]] = {}
        for device in self.devices:
            nodes[device.numa_node] = (*nodes.get(device.numa_node, ()), device.index)
        return nodes

    def to_dict(self) -> dict[str, object]:
        """Return everything as JSON-able values, what is derived included."""
        return {
            **dataclasses.asdict(self),
            "is_available": self.is_available,
            "lnc": self.lnc,
            "logical_core_count": self.logical_core_count if self.are_cores_known else None,
            "physical_core_count": self.physical_core_count if self.are_cores_known else None,
            "core_ids": list(self.core_ids),
            "busy_core_ids": list(self.busy_core_ids),
            "pids": list(self.pids),
            "links_to_invisible_devices": list(self.invisible_links),
        }
