"""What the driver's file tree says without starting the runtime: devices, cores, architecture, memory in use.

| file below `/sys/devices/virtual/neuron_device/neuron<N>/` | holds |
|---|---|
| `core_count` | cores of the device |
| `connected_devices` | devices it is linked to |
| `info/architecture/{arch_type,device_name,instance_type}` | what it is |
| `neuron_core<M>/stats/memory_usage/{device_mem,host_mem}/<category>/{total,present,peak}` | bytes of one core |
| `stats/memory_usage/host_mem/<category>/...` | host bytes of the device |

The paths are documented; that the cores counted here are physical ones on trn2 is inferred.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from port.deep_cluster.listing import counted_ids, numa_node
from port.deep_cluster.machine import PHYSICAL_CORES, Machine, NeuronDevice

TREE = "sys/devices/virtual/neuron_device"
"""The tree, below the root of the file system (documented)."""

DEFAULT_LNC = 2
"""Physical cores in a logical one on trn2 unless told otherwise (documented)."""

_MEMORY: Mapping[str, int] = {"trn2": 96 * 1024**3, "trn1": 32 * 1024**3, "inf2": 32 * 1024**3}
"""Memory of one device by family (documented)."""
_FAMILY = {"trainium2": "trn2", "trainium1": "trn1", "trainium": "trn1", "inferentia2": "inf2"}


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryUse:
    """Bytes of one category on one core.

    Attributes:
        category: as the driver names it: tensors, constants, model_code, ...
        present: held now, None where not told.
        peak: the most so far, None where not told.
        total: allocated so far, None where not told.
    """

    category: str
    present: int | None = None
    peak: int | None = None
    total: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreMemory:
    """Memory in use on one core as the driver counts it.

    Attributes:
        device: index of the device.
        core: index of the core on its device, as the driver numbers them.
        device_memory: of the device, by category.
        host_memory: of the host, by category.
    """

    device: int
    core: int
    device_memory: tuple[MemoryUse, ...] = ()
    host_memory: tuple[MemoryUse, ...] = ()

    @property
    def present_bytes(self) -> int | None:
        """Device bytes held now, None where no category tells."""
        told = [use.present for use in self.device_memory if use.present is not None]
        return sum(told) if told else None


def device_nodes(root: Path = Path("/")) -> tuple[str, ...]:
    """Return the device nodes below a root, as `/dev/neuron0`, by number."""
    found = [path for path in (root / "dev").glob("neuron[0-9]*") if path.name[6:].isdigit()]
    return tuple(str(path) for path in sorted(found, key=lambda path: int(path.name[6:])))


def read_tree(root: Path = Path("/"), *, lnc: int | None = None) -> Machine | None:
    """Return the machine as the driver's tree describes it, None without a tree.

    Args:
        root: of the file system.
        lnc: physical cores in a logical one on trn2 (NEURON_LOGICAL_NC_CONFIG); None takes the default of 2.
    """
    folders = _numbered(root / TREE, "neuron")
    if not folders:
        return None
    devices = tuple(_device(index, folder, lnc) for index, folder in folders.items())
    notes = ["read from the driver's tree: who holds the devices is not told there"]
    if any(device.lnc for device in devices):
        told = "as NEURON_LOGICAL_NC_CONFIG says" if lnc else "the default (documented)"
        notes.append(f"logical core size {lnc or DEFAULT_LNC}, {told}; the tree counts physical cores (inferred)")
    instance_type = next((device.instance_type for device in devices if device.instance_type), None)
    return Machine(source="sysfs", devices=devices, instance_type=instance_type, notes=tuple(notes))


def nodes_only(root: Path = Path("/")) -> Machine | None:
    """Return the machine as device nodes alone describe it: devices whose cores nobody tells; None without nodes."""
    indices = [int(re.sub(r"\D", "", Path(node).name)) for node in device_nodes(root)]
    if not indices:
        return None
    note = "known from device nodes alone: cores, memory and links are not told; install the Neuron tools"
    devices = tuple(NeuronDevice(index=index, core_count=None) for index in indices)
    return Machine(source="device nodes", devices=devices, notes=(note,))


def core_memory(root: Path = Path("/")) -> tuple[CoreMemory, ...]:
    """Return the memory in use on every core, () without a tree; starts no runtime and needs no root rights."""
    return tuple(
        CoreMemory(
            device=index,
            core=core,
            device_memory=_uses(path / "stats" / "memory_usage" / "device_mem"),
            host_memory=_uses(path / "stats" / "memory_usage" / "host_mem"),
        )
        for index, folder in _numbered(root / TREE, "neuron").items()
        for core, path in _numbered(folder, "neuron_core").items()
    )


def driver_version(root: Path = Path("/")) -> str | None:
    """Return the version of the loaded driver module, None where none is loaded or it does not tell."""
    return _line(root / "sys/module/neuron/version")


def _device(index: int, folder: Path, lnc: int | None) -> NeuronDevice:
    architecture = folder / "info" / "architecture"
    told = _line(architecture / "instance_type")
    name = (_line(architecture / "device_name") or "").casefold()
    family = _FAMILY.get(name, (told or "").casefold()[:4])
    count_text = _line(folder / "core_count") or ""
    cores = int(count_text) if count_text.isdigit() else len(_numbered(folder, "neuron_core")) or None
    size: int | None = None
    if family == "trn2" and cores is not None:
        size = lnc or DEFAULT_LNC
        cores = PHYSICAL_CORES["trn2"] // size
    return NeuronDevice(
        index=index,
        core_count=cores,
        core_ids=counted_ids(index, cores or 0),
        core_ids_told=False,
        memory_bytes=_MEMORY.get(family),
        lnc=size,
        instance_type=told.casefold() if told else None,
        numa_node=numa_node(_line(folder / "device" / "numa_node") or _line(folder / "numa_node")),
        links=tuple(map(int, re.findall(r"\d+", _line(folder / "connected_devices") or ""))),
    )


def _uses(folder: Path) -> tuple[MemoryUse, ...]:
    if not folder.is_dir():
        return ()
    return tuple(
        MemoryUse(
            category=path.name,
            present=_whole(path / "present"),
            peak=_whole(path / "peak"),
            total=_whole(path / "total"),
        )
        for path in sorted(folder.iterdir())
        if path.is_dir()
    )


def _numbered(folder: Path, prefix: str) -> dict[int, Path]:
    """Return the folders `<prefix><number>` in a folder, by number."""
    found = {path.name.removeprefix(prefix): path for path in folder.glob(f"{prefix}[0-9]*") if path.is_dir()}
    return {int(number): found[number] for number in sorted(filter(str.isdigit, found), key=int)}


def _line(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip() or None
    except OSError:
        return None


def _whole(path: Path) -> int | None:
    text = _line(path) or ""
    return int(text) if text.isdigit() else None
