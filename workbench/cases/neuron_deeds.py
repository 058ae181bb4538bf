"""What no answer to neuron-ls or neuron-monitor output may do, checked against the text itself, read plainly.

Counts may not be divided or multiplied by the size of a logical core, a held device may not be free, a failed counter
may not be a number, and nobody may meet the words of a JSON parser.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import cast

from port.deep_cluster.machine import Machine
from port.deep_cluster.monitor_records import MonitorStream


def deed_faults(path: Path, found: Machine | MonitorStream) -> Iterator[str]:
    """Give what an answer did wrong, a line each.

    Args:
        path: file the output was in; nothing is held against it where that is no file.
        found: what was made of it.
    """
    if isinstance(found, Machine):
        if any(words in found.reason for words in ("JSONDecodeError", "Expecting value")):
            yield f"reason: expected why there is no device; found the words of a parser: {found.reason!r}"
        if not found.is_available and found.cause != "not_installed" and "not installed" in found.reason:
            yield f"reason: expected no word of a tool that is not installed; found {found.reason!r}"
        yield from _listing_faults(_json(path), found)
    else:
        yield from _stream_faults(path, found)


def _listing_faults(body: object, machine: Machine) -> Iterator[str]:
    entries = [cast("Mapping[str, object]", one) for one in cast("list[object]", body if isinstance(body, list) else [])
               if isinstance(one, Mapping)]  # fmt: skip
    if not entries:
        return
    counts = [int(str(entry.get("nc_count", 0))) for entry in entries]
    if sum(counts) != machine.logical_core_count:
        yield f"logical cores: expected the sum of nc_count, {sum(counts)}; found {machine.logical_core_count}"
    told = [cast("list[int]", entry.get("neuroncore_ids") or []) for entry in entries]
    ids = sorted(core_id for one in told for core_id in one)
    if all(told) and ids != list(machine.core_ids):
        yield f"core ids: expected those of neuroncore_ids, {ids}; found {list(machine.core_ids)}"
    for entry, device in zip(entries, machine.devices, strict=False):
        if entry.get("neuron_processes") and not set(device.core_ids) <= set(machine.busy_core_ids):
            yield f"device {device.index}: expected busy, since a process holds it; found free cores"


def _stream_faults(path: Path, stream: MonitorStream) -> Iterator[str]:
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else []
    for sample in stream.samples:
        body = _parsed(lines[sample.line - 1]) if sample.line <= len(lines) else None
        entries = cast("Mapping[str, object]", body).get("neuron_runtime_data") if isinstance(body, Mapping) else None
        for entry, runtime in zip(cast("list[object]", entries or []), sample.runtimes, strict=False):
            report = cast("dict[str, dict[str, dict[str, object]]]", entry).get("report") or {}
            if (report.get("neuroncore_counters") or {}).get("error") and runtime.utilization is not None:
                yield f"pid {runtime.pid}: expected unknown utilisation, since its counter failed; found a number"
            if (report.get("memory_used") or {}).get("error") and runtime.device_bytes is not None:
                yield f"pid {runtime.pid}: expected unknown memory, since its counter failed; found a number"


def _json(path: Path) -> object:
    return _parsed(path.read_text(encoding="utf-8", errors="replace")) if path.is_file() else None


def _parsed(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return None
