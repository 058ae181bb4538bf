"""Lines and tables of what neuron-ls and neuron-monitor say; made of the port's values, shown like any view."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping
from typing import cast

from port.deep_cluster.machine import Machine, NeuronDevice
from port.deep_cluster.monitor_records import MonitorStream, RuntimeSample, Sample
from port.deep_cluster.number_lists import numbers_text
from workbench.records.base import Json, to_plain
from workbench.units import bytes_text, count_text
from workbench.views.base import TableView

_UNKNOWN = "unknown"


def machine_lines(machine: Machine) -> list[str]:
    """Return what a machine is in sentences, each within 100 columns."""
    return [line for text in _machine_sentences(machine) for line in _wrapped(text)]


def _machine_sentences(machine: Machine) -> Iterator[str]:
    if not machine.is_available:
        yield f"not available: {machine.reason}"
        yield "only the host can be used: placements host, dry and virtual need no device"
    else:
        name = machine.instance_type or "instance type not told"
        yield f"{name}, {count_text(len(machine.devices), 'device')} visible, {cores_text(machine)}"
        yield memory_text(machine)
        yield busy_text(machine)
        yield numa_text(machine)
        if machine.invisible_links:
            numbers = ", ".join(map(str, machine.invisible_links))
            yield f"linked to devices that are not visible here: {numbers} (a container shows those it was given)"
    yield from machine.notes


def cores_text(machine: Machine) -> str:
    """Return the cores in words."""
    if not machine.are_cores_known:
        return "cores not told"
    size = "no logical core size told" if machine.lnc is None else f"logical core size {machine.lnc}"
    ids = numbers_text(machine.core_ids) or "none"
    return (
        f"{count_text(machine.logical_core_count, 'logical core')} (ids {ids}), "
        f"{machine.physical_core_count:,} physical, {size}"
    )


def memory_text(machine: Machine) -> str:
    """Return the memory of a device and of a logical core in words."""
    sizes = {(device.memory_bytes, device.memory_per_core_bytes) for device in machine.devices}
    parts = [
        f"{_bytes(whole)} a device, {_bytes(share)} a logical core"
        for whole, share in sorted(sizes, key=lambda pair: (pair[0] or 0, pair[1] or 0))
    ]
    return "memory: " + "; ".join(parts)


def busy_text(machine: Machine) -> str:
    """Return who holds which cores in words; a process is one also where its command is not told."""
    holders = [
        f"cores {numbers_text(device.core_ids) or _UNKNOWN} held by {_holders(device)}"
        for device in machine.devices
        if device.is_busy
    ]
    free = numbers_text(machine.free_core_ids)
    if not holders:
        return "no process holds a device" if machine.source == "neuron-ls" else "who holds the devices is not told"
    return "busy: " + "; ".join(holders) + f"; free: {f'cores {free}' if free else 'none'}"


def numa_text(machine: Machine) -> str:
    """Return which devices lie at which NUMA node in words."""
    parts = [
        f"{'none told' if node is None else f'node {node}'}: devices {numbers_text(devices)}"
        for node, devices in machine.numa_nodes.items()
    ]
    return "NUMA " + "; ".join(parts)


def device_table(machine: Machine) -> TableView:
    """Return one row a device."""
    rows: list[tuple[str, ...]] = []
    for device in machine.devices:
        rows.append(
            (
                str(device.index),
                _UNKNOWN if device.core_count is None else str(device.core_count),
                numbers_text(device.core_ids) or "-",
                _bytes(device.memory_bytes),
                device.bdf or "-",
                "-" if device.numa_node is None else str(device.numa_node),
                device.cpu_affinity or "-",
                ", ".join(map(str, device.links)) or "-",
                ", ".join(str(process.pid) for process in device.processes) or "-",
            )
        )
    header = ("device", "cores", "core ids", "memory", "PCI", "NUMA", "CPUs", "linked to", "pids")
    return TableView(
        title="Devices",
        header=header,
        rows=tuple(rows),
        data=tuple(_device_row(device) for device in machine.devices),
        note="Cores are logical ones, as torch and NEURON_RT_VISIBLE_CORES count them.",
        align="rrlrlrlll",
    )


def _device_row(device: NeuronDevice) -> dict[str, Json]:
    plain = cast("dict[str, Json]", to_plain(device))
    return {
        **plain,
        "physical_core_count": device.physical_core_count,
        "memory_per_core_bytes": device.memory_per_core_bytes,
    }


def stream_lines(stream: MonitorStream) -> list[str]:
    """Return what a stream is in sentences, each within 100 columns."""
    return [line for text in _stream_sentences(stream) for line in _wrapped(text)]


def _stream_sentences(stream: MonitorStream) -> Iterator[str]:
    hardware = stream.hardware
    yield (
        f"{hardware.instance_type or 'instance type not told'}, "
        f"{_count(hardware.device_count, 'device')}, {_count(hardware.logical_core_count, 'logical core')}, "
        f"{'no logical core size told' if hardware.lnc is None else f'logical core size {hardware.lnc}'}, "
        f"{_bytes(hardware.memory_per_core_bytes)} a logical core"
    )
    yield f"{count_text(len(stream.samples), 'sample')}, pids {', '.join(map(str, stream.pids)) or 'none'}"
    if stream.is_last_line_partial:
        yield "the last line is cut off: it is left out, the samples before it are whole"
    for number, reason in stream.unreadable:
        yield f"line {number} was passed over: {reason}"
    for sample in stream.samples:
        for where, text in sample.errors:
            yield f"line {sample.line}: {where}: not read: {text}"
    if stream.samples:
        last = stream.samples[-1]
        corrected, uncorrected = last.ecc("corrected"), last.ecc("uncorrected")
        if corrected is not None or uncorrected is not None:
            yield f"memory errors: {_number(corrected)} corrected, {_number(uncorrected)} uncorrected"
        for runtime in last.runtimes:
            yield from _failures(runtime)


def _failures(runtime: RuntimeSample) -> Iterator[str]:
    for kind, count in (runtime.error_counts or {}).items():
        if count:
            means = " (results with NaN or infinity)" if kind == "numerical" else ""
            yield f"pid {runtime.pid}: {count_text(count, f'{kind} error')}{means}"
    if runtime.is_breakdown_complete is False:
        total = sum(runtime.bytes_by_core.values())
        yield f"pid {runtime.pid}: its cores have {total:,} bytes, its devices {runtime.device_bytes:,}"


def runtime_table(stream: MonitorStream) -> TableView:
    """Return one row a runtime and sample; what was not read is unknown, never 0."""
    rows: list[tuple[str, ...]] = []
    data: list[dict[str, Json]] = []
    for sample in stream.samples:
        for runtime in sample.runtimes:
            rows.append(_runtime_row(sample, runtime))
            plain = cast("dict[str, Json]", to_plain(runtime))
            data.append({"line": sample.line, **plain, "bytes_by_core": to_plain(runtime.bytes_by_core)})
    return TableView(
        title="Runtimes",
        header=("line", "pid", "utilisation by core", "device memory", "host memory", "completed", "errors"),
        rows=tuple(rows),
        data=tuple(data),
        note="" if rows else "no runtime in any sample: the machine was idle",
        align="rrlrrrl",
    )


def _runtime_row(sample: Sample, runtime: RuntimeSample) -> tuple[str, ...]:
    used = runtime.utilization
    utilization = (
        _UNKNOWN
        if used is None
        else ", ".join(f"{core}: {_UNKNOWN if value is None else f'{value:g} %'}" for core, value in used.items())
        or "no core in use"
    )
    errors = runtime.error_counts
    failed = {name: count for name, count in (errors or {}).items() if count}
    return (
        str(sample.line),
        _pid(runtime.pid),
        utilization,
        _bytes(runtime.device_bytes),
        _bytes(runtime.host_bytes),
        _number((runtime.execution_counts or {}).get("completed")),
        _UNKNOWN if errors is None else _pairs(failed) or "none",
    )


def core_table(stream: MonitorStream) -> TableView:
    """Return device memory by core and category, as the last sample has it."""
    rows: list[tuple[str, ...]] = []
    data: list[dict[str, Json]] = []
    for runtime in stream.samples[-1].runtimes if stream.samples else ():
        for core, parts in runtime.core_bytes.items():
            held = {name: bytes_text(nbytes) for name, nbytes in parts.items() if nbytes}
            rows.append((_pid(runtime.pid), str(core), bytes_text(sum(parts.values())), _pairs(held) or "nothing"))
            data.append({"pid": runtime.pid, "core": core, "nbytes": sum(parts.values()), "categories": dict(parts)})
    return TableView(
        title="Device memory by core, last sample",
        header=("pid", "core", "bytes", "of which"),
        rows=tuple(rows),
        data=tuple(data),
        align="rrrl",
    )


def _holders(device: NeuronDevice) -> str:
    return ", ".join(f"pid {process.pid} ({process.command or 'command not told'})" for process in device.processes)


def _pairs(values: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())


def _wrapped(text: str) -> Iterable[str]:
    return textwrap.wrap(" ".join(text.split()), width=100, subsequent_indent="  ", break_on_hyphens=False)


def _bytes(nbytes: int | None) -> str:
    return _UNKNOWN if nbytes is None else bytes_text(nbytes)


def _count(count: int | None, noun: str) -> str:
    return f"{noun}s not told" if count is None else count_text(count, noun)


def _number(value: int | None) -> str:
    return _UNKNOWN if value is None else f"{value:,}"


def _pid(pid: int | None) -> str:
    return _UNKNOWN if pid is None else str(pid)
