"""The table neuron-ls prints without `--json-output`: columns by the words of their two header lines.

A device's first row has its columns; rows below it with an empty first cell are further processes of the same device.
Sizes are binary although the tool writes GB: its JSON has 34359738368 where the table has `32 GB`.
"""

from __future__ import annotations

import re

from port.deep_cluster.listing import counted_ids, known_version, machine_of, numa_node
from port.deep_cluster.machine import Machine, NeuronDevice, NeuronProcess
from port.deep_cluster.number_lists import parse_numbers

_RULE = re.compile(r"^\s*\+[-+=]+\+\s*$")
_HEAD = re.compile(r"^\s*(instance-type|instance-id|logical-neuroncore-config)\s*:\s*(.*?)\s*$")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)i?B", re.IGNORECASE)
_UNITS = {"": 1, "K": 1024, "M": 1024**2, "G": 1024**3, "T": 1024**4}
_COLUMNS: dict[str, tuple[str, ...]] = {
    "device": ("NEURON DEVICE", "DEVICE"),
    "cores": ("NEURON CORES", "CORES", "NEURONCORES"),
    "ids": ("NEURON CORE IDS", "NEURONCORE IDS", "CORE IDS"),
    "memory": ("NEURON MEMORY", "MEMORY"),
    "links": ("CONNECTED DEVICES", "CONNECTED"),
    "bdf": ("PCI BDF", "BDF"),
    "affinity": ("CPU AFFINITY",),
    "numa": ("NUMA NODE",),
    "pid": ("PID",),
    "command": ("COMMAND",),
    "runtime": ("RUNTIME VERSION",),
}


def is_table(text: str) -> bool:
    """Say whether text looks like the printed table rather than JSON."""
    lines = text.splitlines()
    return any(_RULE.match(line) for line in lines) and any("DEVICE" in line and "|" in line for line in lines)


def parse_table(text: str) -> Machine:
    """Return the machine the printed table describes.

    Raises:
        ValueError: no column for device or cores, or a cell that cannot be read; the message has the cell.
    """
    head = {found[1]: found[2] for line in text.splitlines() if (found := _HEAD.match(line))}
    lnc_text = head.get("logical-neuroncore-config", "")
    lnc = int(lnc_text) if lnc_text.isdigit() else None
    names, rows = _cells(text)
    devices = tuple(_device(group, lnc, head.get("instance-type")) for group in _groups(names, rows))
    return machine_of(devices, head.get("instance-type"), head.get("instance-id"))


def _cells(text: str) -> tuple[list[str], list[list[str]]]:
    """Return the column names and the rows of cells."""
    blocks: list[list[list[str]]] = [[]]
    for line in text.splitlines():
        if _RULE.match(line):
            blocks.append([])
        elif line.strip().startswith("|"):
            blocks[-1].append([cell.strip() for cell in line.strip().strip("|").split("|")])
    filled = [block for block in blocks if block]
    if not filled:
        raise ValueError("neuron-ls: expected a table with a header; found rules without rows")
    width = len(filled[0][0])
    titles = [" ".join(filter(None, (line[at] for line in filled[0] if at < len(line)))) for at in range(width)]
    names = [next((name for name, known in _COLUMNS.items() if title.upper() in known), title) for title in titles]
    if not {"device", "cores"} <= set(names):
        raise ValueError(f"neuron-ls: expected a table with columns for device and cores; found {', '.join(titles)}")
    return names, [row for block in filled[1:] for row in block]


def _groups(names: list[str], rows: list[list[str]]) -> list[list[dict[str, str]]]:
    groups: list[list[dict[str, str]]] = []
    for row in rows:
        cells = dict(zip(names, row, strict=False))
        if cells.get("device"):
            groups.append([cells])
        elif groups:
            groups[-1].append(cells)
    return groups


def _device(group: list[dict[str, str]], lnc: int | None, instance_type: str | None) -> NeuronDevice:
    first = group[0]
    where = f"neuron-ls: table row of device {first['device']}"
    if not first["device"].isdigit() or not first["cores"].isdigit():
        raise ValueError(f"{where}: expected whole numbers for device and cores; found {first['cores']!r} cores")
    index, count = int(first["device"]), int(first["cores"])
    told = first.get("ids", "")
    ids = parse_numbers(told, where=f"{where}: core ids") if told else ()
    # A wide cell may go on in the rows below, as may the list of links.
    links = re.findall(r"\d+", " ".join(cells.get("links", "") for cells in group))
    return NeuronDevice(
        index=index,
        core_count=count,
        core_ids=ids or counted_ids(index, count),
        core_ids_told=bool(ids),
        memory_bytes=_size(first.get("memory", ""), where),
        lnc=lnc,
        instance_type=instance_type,
        bdf=first.get("bdf") or None,
        cpu_affinity=first.get("affinity") or None,
        numa_node=numa_node(first.get("numa")),
        links=tuple(map(int, links)),
        processes=tuple(_process(cells) for cells in group if cells.get("pid", "").isdigit()),
    )


def _process(cells: dict[str, str]) -> NeuronProcess:
    version = known_version(cells.get("runtime"))
    return NeuronProcess(pid=int(cells["pid"]), command=cells.get("command", ""), runtime_version=version)


def _size(text: str, where: str) -> int | None:
    if not text:
        return None
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{where}: expected a size such as 96 GB; found {text!r}")
    return int(float(found[1]) * _UNITS[found[2].upper()])
