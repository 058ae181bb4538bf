"""Which key of a neuron-monitor case asks for which fact of the stream, a sample or a runtime: rules for words.

As in `machine_keys`: a fact in the ways it can be put, samples and runtimes as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from port.deep_cluster.monitor_records import MonitorStream, RuntimeSample, Sample
from workbench.cases.machine_keys import Ways


def _ecc(kind: str, part: str = "") -> Callable[[Sample], Ways]:
    def fact(sample: Sample) -> Ways:
        if not part:
            by_device = {
                str(one.index): sum(
                    count for where in ("mem", "sram") if (count := getattr(one, f"{where}_ecc_{kind}")) is not None
                )
                for one in sample.device_errors or ()
            }
            return (sample.ecc(kind), by_device)
        counts = {str(one.index): getattr(one, f"{part}_ecc_{kind}") for one in sample.device_errors or ()}
        known = [count for count in counts.values() if count is not None]
        return (sum(known) if known else None, counts)

    return fact


def _runtimes(sample: Sample) -> Ways:
    runtimes = sample.runtimes
    return (len(runtimes), list(runtimes), {str(runtime.pid): runtime for runtime in runtimes})


def _pids(sample: Sample) -> Ways:
    pids = [runtime.pid for runtime in sample.runtimes]
    return (*(pids if len(pids) == 1 else []), pids, *([None] if not pids else []))


def _error_texts(errors: Sequence[tuple[str, str]]) -> Ways:
    texts = [text for _, text in errors]
    by_place = {where.split(": ")[-1]: text for where, text in errors}
    return (texts, *(texts if len(texts) == 1 else []), by_place, len(texts), *([None, ""] if not texts else []))


SAMPLE_RULES: tuple[tuple[str, Callable[[Sample], Ways]], ...] = (
    ("line", lambda s: (s.line,)),
    ("runtime", _runtimes),
    ("pid runtime|process|pid", _pids),
    ("process", _runtimes),
    ("idle", lambda s: (not s.runtimes,)),
    ("error message|error|text", lambda s: _error_texts(s.errors)),
    ("ecc|error corrected", _ecc("corrected")),
    ("ecc|error uncorrected", _ecc("uncorrected")),
    ("ecc corrected memory", _ecc("corrected", "mem")),
    ("ecc uncorrected memory", _ecc("uncorrected", "mem")),
    ("ecc corrected sram", _ecc("corrected", "sram")),
    ("ecc uncorrected sram", _ecc("uncorrected", "sram")),
    ("memory total bytes|system|host", lambda s: (s.memory_total_bytes,)),
    ("memory total system|host bytes", lambda s: (s.memory_total_bytes,)),
    ("memory used bytes|system", lambda s: (s.memory_used_bytes,)),
    ("memory used system bytes", lambda s: (s.memory_used_bytes,)),
)


def _used_bytes(stream: MonitorStream) -> Ways:
    """Return the bytes in use by a runtime that is alone: `device_memory_bytes` may mean these too."""
    runtimes = stream.samples[-1].runtimes if stream.samples else ()
    return [runtime.device_bytes for runtime in runtimes] if len(runtimes) == 1 else []


def _used_by_core(stream: MonitorStream) -> Ways:
    runtimes = stream.samples[-1].runtimes if stream.samples else ()
    return _by_core(runtimes[0].bytes_by_core or None) if len(runtimes) == 1 else []


def _at(position: int) -> Callable[[MonitorStream], Ways]:
    def fact(stream: MonitorStream) -> Ways:
        there = -len(stream.samples) <= position < len(stream.samples)
        return (stream.samples[position],) if there else (None,)

    return fact


STREAM_RULES: tuple[tuple[str, Callable[[MonitorStream], Ways]], ...] = (
    ("sample", lambda s: (len(s.samples), list(s.samples))),
    ("partial|cut|truncated|incomplete last|line|partial|cut", lambda s: (s.is_last_line_partial,)),
    ("partial|cut|truncated|incomplete last line|sample", lambda s: (s.is_last_line_partial,)),
    ("unreadable|bad|skipped|broken|invalid|malformed line|sample", lambda s: (
        len(s.unreadable), [number for number, _ in s.unreadable])),
    *((f"{word} sample|{word}|line", _at(position)) for position, word in
      enumerate(("first", "second", "third", "fourth", "fifth"))),
    ("last sample|last", _at(-1)),
    ("error message|error|text", lambda s: _error_texts([pair for sample in s.samples for pair in sample.errors])),
    ("pid", lambda s: (*(s.pids if len(s.pids) == 1 else ()), list(s.pids))),
    ("instance type", lambda s: (s.hardware.instance_type,)),
    ("instance", lambda s: (s.hardware.instance_type,)),
    ("instance id", lambda s: (s.hardware.instance_id,)),
    ("device", lambda s: (s.hardware.device_count,)),
    ("device type", lambda s: (s.hardware.device_type,)),
    ("device version", lambda s: (s.hardware.device_version,)),
    ("core version", lambda s: (s.hardware.core_version,)),
    ("core logical|core|total", lambda s: (s.hardware.logical_core_count,)),
    ("core physical", lambda s: (s.hardware.physical_core_count,)),
    ("core device per|each|logical", lambda s: (s.hardware.cores_per_device,)),
    ("core device per|each logical", lambda s: (s.hardware.cores_per_device,)),
    ("lnc", lambda s: (s.hardware.lnc,)),
    ("lnc logical|core", lambda s: (s.hardware.lnc,)),
    ("memory device bytes", lambda s: (s.hardware.device_memory_bytes, *_used_bytes(s))),
    ("memory core bytes per", lambda s: (s.hardware.memory_per_core_bytes, *_used_by_core(s))),
    ("memory device per|each|total bytes|memory", lambda s: (s.hardware.device_memory_bytes,)),
    ("memory device", lambda s: (s.hardware.device_memory_bytes,)),
    ("memory core per|each|logical bytes|memory|logical", lambda s: (s.hardware.memory_per_core_bytes,)),
    ("memory core per logical bytes|memory", lambda s: (s.hardware.memory_per_core_bytes,)),
)  # fmt: skip


def _by_core(values: Mapping[int, object] | None) -> Ways:
    if values is None:
        return (None,)
    named = {str(core): value for core, value in values.items()}
    return (named, *(list(named.values()) if len(named) == 1 else []), list(named.values()))


def _category(name: str) -> Callable[[RuntimeSample], Ways]:
    def fact(runtime: RuntimeSample) -> Ways:
        by_core = {str(core): parts[name] for core, parts in runtime.core_bytes.items() if name in parts}
        return (by_core, sum(by_core.values())) if by_core else (None,)

    return fact


def _host_category(name: str) -> Callable[[RuntimeSample], Ways]:
    return lambda runtime: (runtime.host_breakdown.get(name),)


def _of_utilization(fact: Callable[[Sequence[float]], float]) -> Callable[[RuntimeSample], Ways]:
    def value(runtime: RuntimeSample) -> Ways:
        known = [percent for percent in (runtime.utilization or {}).values() if percent is not None]
        return (fact(known) if known else None,)

    return value


def _failed(kind: str) -> Callable[[RuntimeSample], Ways]:
    return lambda runtime: (None if runtime.error_counts is None else runtime.error_counts.get(kind),)


def _executed(outcome: str) -> Callable[[RuntimeSample], Ways]:
    return lambda runtime: (None if runtime.execution_counts is None else runtime.execution_counts.get(outcome),)


def _latency(percentile: str) -> Callable[[RuntimeSample], Ways]:
    def fact(runtime: RuntimeSample) -> Ways:
        by_group = {group: values.get(percentile) for group, values in runtime.latency_s.items()}
        return (by_group.get("total"), by_group)

    return fact


def _sum_equals(runtime: RuntimeSample) -> Ways:
    return (runtime.is_breakdown_complete,)


RUNTIME_RULES: tuple[tuple[str, Callable[[RuntimeSample], Ways]], ...] = (
    ("pid", lambda r: (r.pid,)),
    ("tag runtime|tag", lambda r: (r.tag,)),
    ("utilization core|utilization|per", lambda r: _by_core(r.utilization)),
    ("utilization average|mean core|utilization", _of_utilization(lambda known: sum(known) / len(known))),
    ("utilization max|peak|highest core|utilization", _of_utilization(max)),
    ("utilization unknown|missing|failed", lambda r: (r.utilization is None,)),
    ("memory unknown|missing|failed", lambda r: (r.device_bytes is None,)),
    ("failed|missing|unread|unknown counter|group", lambda r: ([where for where, _ in r.errors],)),
    ("host tensor bytes|host", _host_category("tensors")),
    ("host constant bytes|host", _host_category("constants")),
    ("application memory bytes|host|memory", _host_category("application_memory")),
    ("host dma buffer|bytes", _host_category("dma_buffers")),
    ("dma buffer bytes|buffer", _host_category("dma_buffers")),
    ("core used|busy|active|use", lambda r: (None if r.utilization is None else list(r.utilization),)),
    ("flop core|flop|effective|per", lambda r: _by_core(r.flops)),
    ("device memory|bytes|used", lambda r: (r.device_bytes,)),
    ("device memory|used|runtime bytes|runtime", lambda r: (r.device_bytes,)),
    ("memory|bytes used|runtime device used|bytes", lambda r: (r.device_bytes,)),
    ("host memory|bytes|used", lambda r: (r.host_bytes,)),
    ("host memory|used bytes", lambda r: (r.host_bytes,)),
    ("host memory used bytes", lambda r: (r.host_bytes,)),
    ("core per bytes|memory", lambda r: _by_core(r.bytes_by_core or None)),
    ("core memory|bytes", lambda r: _by_core(r.bytes_by_core or None)),
    ("core per bytes memory|used|device", lambda r: _by_core(r.bytes_by_core or None)),
    ("breakdown core|per|device|memory|usage|bytes", lambda r: ({str(core): dict(parts) for core, parts in
                                                                r.core_bytes.items()} or None,)),
    ("breakdown host memory|usage|bytes|host", lambda r: (dict(r.host_breakdown) or None,)),
    ("sum core bytes|memory", lambda r: (sum(r.bytes_by_core.values()) if r.core_bytes else None,)),
    ("sum|add|breakdown equal|match|up|complete core|device|total|breakdown|bytes|memory", _sum_equals),
    ("sum|add equal|match|up core device|total bytes|memory", _sum_equals),
    ("tensor bytes|tensor|core|per", _category("tensors")),
    ("tensor bytes|memory core|per|device", _category("tensors")),
    ("constant bytes|constant|core|per", _category("constants")),
    ("code model|code bytes|core|per|code", _category("model_code")),
    ("scratchpad shared|scratchpad|model bytes|core|per|scratchpad", _category("model_shared_scratchpad")),
    ("runtime memory bytes|core|per|memory", _category("runtime_memory")),
    ("completed execution|completed", _executed("completed")),
    ("completed error with|completed", _executed("completed_with_err")),
    ("completed error with|completed numerical|count", _executed("completed_with_num_err")),
    ("timed|timeout out|execution|timeout", _executed("timed_out")),
    ("incorrect|bad input", _executed("incorrect_input")),
    ("failed queue", _executed("failed_to_queue")),
    *((f"{kind} error|{kind}", _failed(kind)) for kind in
      ("generic", "numerical", "transient", "model", "hardware")),
    *((f"{kind} error execution", _failed(kind)) for kind in
      ("generic", "numerical", "transient", "model", "hardware")),
    ("runtime error", _failed("runtime")),
    ("error|execution summary|execution|kind|stat", lambda r: (
        None if r.error_counts is None else dict(r.error_counts),
        None if r.execution_counts is None else dict(r.execution_counts))),
    *((f"latency {name} total|latency|execution", _latency(name)) for name in
      ("p0", "p1", "p25", "p50", "p75", "p99", "p100")),
    ("model loaded|name|model", lambda r: (len(r.models), [model.name for model in r.models])),
    ("error message|error|text", lambda r: _error_texts(r.errors)),
)  # fmt: skip
