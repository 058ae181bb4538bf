"""What a neuron-monitor stream says: one JSON object a line, each a sample of the whole machine.

A counter that could not be read has an error string and no number: it stays None here, never 0. The last line of a
stream that was cut off is counted as partial and left out. Names of counters are those of the tool (documented).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import cast

from port.deep_cluster.monitor_records import (
    DeviceErrors,
    Hardware,
    LoadedModel,
    MonitorStream,
    RuntimeSample,
    Sample,
)

Body = Mapping[str, object]

_HEAD_LINES = 20
"""Lines in which a stream must begin; log lines may stand before it."""


def is_stream(text: str) -> bool:
    """Say whether text begins like a neuron-monitor stream, a cut one included."""
    head = [line for line in text[:100_000].splitlines() if line.strip()][:_HEAD_LINES]
    keys = ("neuron_runtime_data", "neuron_hardware_info", "system_data")
    return any(line.startswith("{") for line in head) and any(f'"{key}"' in text[:100_000] for key in keys)


def parse_stream(text: str) -> MonitorStream:
    """Return what a stream says; lines that cannot be read are counted, never an error.

    Args:
        text: JSON lines; one object over several lines is one sample too.
    """
    whole = _whole_document(text)
    if whole is not None:
        bodies = cast("list[object]", whole) if isinstance(whole, list) else [whole]
        read = [_sample(cast("Body", body), 1 + at) for at, body in enumerate(bodies) if isinstance(body, Mapping)]
        return MonitorStream(samples=tuple(read))
    lines = [(number, line) for number, line in enumerate(text.splitlines(), start=1) if line.strip()]
    samples: list[Sample] = []
    unreadable: list[tuple[int, str]] = []
    is_partial = False
    for number, line in lines:
        try:
            body = json.loads(line)
        except (ValueError, RecursionError) as error:
            if number == lines[-1][0] and line.lstrip().startswith("{"):
                is_partial = True
            else:
                unreadable.append((number, f"no whole JSON object: {error}"))
            continue
        if isinstance(body, Mapping):
            samples.append(_sample(cast("Body", body), number))
        else:
            unreadable.append((number, f"expected an object; found {type(body).__name__}"))
    return MonitorStream(samples=tuple(samples), is_last_line_partial=is_partial, unreadable=tuple(unreadable))


def _whole_document(text: str) -> object:
    """Return a text that is one JSON document over several lines, None where it is not."""
    if "\n" not in text.strip():
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _sample(body: Body, line: int) -> Sample:
    system = _object(body.get("system_data"))
    memory, counters = _object(system.get("memory_info")), _object(system.get("neuron_hw_counters"))
    devices = [] if counters.get("error") else _rows(counters.get("neuron_devices"))
    runtimes = tuple(_runtime(entry) for entry in _rows(body.get("neuron_runtime_data")))
    errors = [(f"runtime {runtime.pid}: {where}", text) for runtime in runtimes for where, text in runtime.errors]
    for group in ("memory_info", "vcpu_usage", "neuron_hw_counters"):
        errors += _error(_object(system.get(group)), group)
    for group in ("instance_info", "neuron_hardware_info"):
        errors += _error(_object(body.get(group)), group)
    return Sample(
        line=line,
        hardware=_hardware(_object(body.get("neuron_hardware_info")), _object(body.get("instance_info"))),
        runtimes=runtimes,
        device_errors=tuple(map(_device_errors, devices)) if devices else None,
        memory_total_bytes=_whole(memory.get("memory_total_bytes")),
        memory_used_bytes=_whole(memory.get("memory_used_bytes")),
        errors=tuple(errors),
    )


def _hardware(hardware: Body, instance: Body) -> Hardware:
    # A group that failed has zeros beside its error; they are no counts.
    trusted = {} if hardware.get("error") else hardware
    return Hardware(
        instance_type=_text(instance.get("instance_type")),
        instance_id=_text(instance.get("instance_id")),
        device_type=_text(trusted.get("neuron_device_type")),
        device_version=_text(trusted.get("neuron_device_version")),
        core_version=_text(trusted.get("neuroncore_version")),
        device_count=_whole(trusted.get("neuron_device_count")),
        device_memory_bytes=_whole(trusted.get("neuron_device_memory_size")),
        cores_per_device=_whole(trusted.get("neuroncore_per_device_count")),
        lnc=_whole(trusted.get("logical_neuroncore_config")) or None,
    )


def _device_errors(body: Body) -> DeviceErrors:
    return DeviceErrors(
        index=_whole(body.get("neuron_device_index")),
        mem_ecc_corrected=_whole(body.get("mem_ecc_corrected")),
        mem_ecc_uncorrected=_whole(body.get("mem_ecc_uncorrected")),
        sram_ecc_corrected=_whole(body.get("sram_ecc_corrected")),
        sram_ecc_uncorrected=_whole(body.get("sram_ecc_uncorrected")),
    )


def _runtime(body: Body) -> RuntimeSample:
    report = _object(body.get("report"))
    errors = _error(body, "")
    for group in report:
        errors += _error(_object(report[group]), group)
    counters = _read(report, "neuroncore_counters")
    memory = _object(_read(report, "memory_used").get("neuron_runtime_used_bytes"))
    usage = _object(memory.get("usage_breakdown"))
    stats = _read(report, "execution_stats")
    cores = _by_core(counters.get("neuroncores_in_use"))
    by_core = {core: _counts(parts) for core, parts in _by_core(usage.get("neuroncore_memory_usage")).items()}
    host = usage.get("host")
    return RuntimeSample(
        pid=_whole(body.get("pid")),
        tag=_text(body.get("neuron_runtime_tag")),
        utilization={core: _number(one.get("neuroncore_utilization")) for core, one in cores.items()}
        if "neuroncores_in_use" in counters
        else None,
        flops={
            core: flops
            for core, one in cores.items()
            if (flops := _number(one.get("effective_flops", one.get("flops")))) is not None
        },
        device_bytes=_whole(memory.get("neuron_device")),
        host_bytes=_whole(memory.get("host")),
        core_bytes={core: parts for core, parts in by_core.items() if parts},
        host_breakdown=_counts(_object(host)),
        error_counts=_counts_or_none(stats.get("error_summary")),
        execution_counts=_counts_or_none(stats.get("execution_summary")),
        latency_s=_latency(_object(stats.get("latency_stats"))),
        models=tuple(map(_model, _rows(_read(report, "memory_used").get("loaded_models")))),
        errors=tuple(errors),
    )


def _model(body: Body) -> LoadedModel:
    parts = [_object(part) for part in _object(body.get("subgraphs")).values()]
    used = [_object(part.get("memory_used_bytes")) for part in parts]
    device = [size for one in used if (size := _whole(one.get("neuron_device"))) is not None]
    host = [size for one in used if (size := _whole(one.get("host"))) is not None]
    running = body.get("is_running")
    return LoadedModel(
        name=_text(body.get("name")),
        uuid=_text(body.get("uuid")),
        model_id=_whole(body.get("model_id")),
        is_running=running if isinstance(running, bool) else None,
        device_bytes=sum(device) if device else None,
        host_bytes=sum(host) if host else None,
        core_ids=tuple(
            dict.fromkeys(core for part in parts if (core := _whole(part.get("neuroncore_index"))) is not None)
        ),
    )


def _latency(body: Body) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for group, values in body.items():
        numbers = {name: number for name, value in _object(values).items() if (number := _number(value)) is not None}
        if numbers:
            found[group.removesuffix("_latency")] = numbers
    return found


def _read(report: Body, group: str) -> Body:
    """Return a group of counters, nothing of it where it has an error: what stands beside an error was not read."""
    body = _object(report.get(group))
    return {} if body.get("error") else body


def _error(body: Body, where: str) -> list[tuple[str, str]]:
    text = _text(body.get("error"))
    return [(where, text)] if text else []


def _by_core(value: object) -> dict[int, Body]:
    return {int(core): _object(body) for core, body in _object(value).items() if core.isdigit()}


def _counts(body: Body) -> dict[str, int]:
    return {name: count for name, value in body.items() if (count := _whole(value)) is not None}


def _counts_or_none(value: object) -> dict[str, int] | None:
    return _counts(cast("Body", value)) if isinstance(value, Mapping) else None


def _rows(value: object) -> list[Body]:
    items = cast("list[object]", value) if isinstance(value, list) else []
    return [cast("Body", one) for one in items if isinstance(one, Mapping)]


def _object(value: object) -> Body:
    return cast("Body", value) if isinstance(value, Mapping) else {}


def _whole(value: object) -> int | None:
    number = _number(value)
    return None if number is None or number != number // 1 else int(number)


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        return None
    return value


def _text(value: object) -> str | None:
    return str(value) if value is not None and str(value).strip() else None
