"""What a neuron-monitor stream says, as values: samples of the machine, its runtimes, their counters and memory.

None means that a counter was not read; it is never 0. Names of counters are those of the tool (documented).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceErrors:
    """Corrected and uncorrected memory errors of one device since its driver was loaded.

    Attributes:
        index: of the device.
        mem_ecc_corrected, mem_ecc_uncorrected: in device memory, None where not told.
        sram_ecc_corrected, sram_ecc_uncorrected: in on-chip memory, None where not told.
    """

    index: int | None
    mem_ecc_corrected: int | None = None
    mem_ecc_uncorrected: int | None = None
    sram_ecc_corrected: int | None = None
    sram_ecc_uncorrected: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A graph loaded by a runtime.

    Attributes:
        name: None where not told.
        uuid: None where not told.
        model_id: None where not told.
        is_running: None where not told.
        device_bytes: of all its parts, None where none tells.
        host_bytes: the same of the host.
        core_ids: cores its parts lie on.
    """

    name: str | None
    uuid: str | None = None
    model_id: int | None = None
    is_running: bool | None = None
    device_bytes: int | None = None
    host_bytes: int | None = None
    core_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeSample:
    """One process with a Neuron runtime, in one sample. Every counter that was not read is None or has no entry.

    Attributes:
        pid: None where not told.
        tag: the process's own tag.
        utilization: percent by core, None where the counter failed.
        flops: operations per second by core.
        device_bytes, host_bytes: memory the runtime uses.
        core_bytes: device memory by core and category.
        host_breakdown: host memory by category.
        error_counts: failed executions by kind: generic, numerical, transient, model, runtime, hardware.
        execution_counts: executions by outcome: completed, completed_with_err, completed_with_num_err, timed_out, ...
        latency_s: seconds by group (total, device) and percentile.
        models: graphs that are loaded.
        errors: what could not be read, by counter group ("" for the process itself), in the order of the stream.
    """

    pid: int | None
    tag: str | None = None
    utilization: Mapping[int, float | None] | None = None
    flops: Mapping[int, float] = field(default_factory=dict[int, float])
    device_bytes: int | None = None
    host_bytes: int | None = None
    core_bytes: Mapping[int, Mapping[str, int]] = field(default_factory=dict[int, Mapping[str, int]])
    host_breakdown: Mapping[str, int] = field(default_factory=dict[str, int])
    error_counts: Mapping[str, int] | None = None
    execution_counts: Mapping[str, int] | None = None
    latency_s: Mapping[str, Mapping[str, float]] = field(default_factory=dict[str, Mapping[str, float]])
    models: tuple[LoadedModel, ...] = ()
    errors: tuple[tuple[str, str], ...] = ()

    @property
    def bytes_by_core(self) -> dict[int, int]:
        """Device memory by core, all categories together."""
        return {core: sum(parts.values()) for core, parts in self.core_bytes.items()}

    @property
    def is_breakdown_complete(self) -> bool | None:
        """Whether the bytes of the cores add up to the device bytes, None where one of them is not told."""
        if self.device_bytes is None or not self.core_bytes:
            return None
        return sum(self.bytes_by_core.values()) == self.device_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """What the stream says of the machine; every field None where it does not.

    Attributes:
        instance_type, instance_id: of the machine.
        device_type: as in "trainium2".
        device_version, core_version: as in "v4" and "v3d".
        device_count: devices.
        device_memory_bytes: of one device.
        cores_per_device: logical cores of one device.
        lnc: physical cores in a logical one.
    """

    instance_type: str | None = None
    instance_id: str | None = None
    device_type: str | None = None
    device_version: str | None = None
    core_version: str | None = None
    device_count: int | None = None
    device_memory_bytes: int | None = None
    cores_per_device: int | None = None
    lnc: int | None = None

    @property
    def logical_core_count(self) -> int | None:
        """Logical cores of the machine; the count per device is logical already."""
        known = self.device_count is not None and self.cores_per_device is not None
        return (self.device_count or 0) * (self.cores_per_device or 0) if known else None

    @property
    def physical_core_count(self) -> int | None:
        """Physical cores: logical x lnc, and the logical ones where there is no lnc."""
        logical = self.logical_core_count
        return None if logical is None else logical * (self.lnc or 1)

    @property
    def memory_per_core_bytes(self) -> int | None:
        """Memory of one logical core."""
        known = self.device_memory_bytes is not None and self.cores_per_device
        return (self.device_memory_bytes or 0) // (self.cores_per_device or 1) if known else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One line of the stream.

    Attributes:
        line: number of the line, from 1.
        hardware: what it says of the machine.
        runtimes: processes with a runtime; none means an idle machine.
        device_errors: memory errors by device, None where the counter was not read.
        memory_total_bytes, memory_used_bytes: of the host.
        errors: what could not be read, by place in the stream, the runtimes' included.
    """

    line: int
    hardware: Hardware
    runtimes: tuple[RuntimeSample, ...] = ()
    device_errors: tuple[DeviceErrors, ...] | None = None
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None
    errors: tuple[tuple[str, str], ...] = ()

    def ecc(self, kind: str) -> int | None:
        """Return the memory errors of all devices: `kind` is "corrected" or "uncorrected"; None where not told."""
        names = (f"mem_ecc_{kind}", f"sram_ecc_{kind}")
        counts = [getattr(device, name) for device in self.device_errors or () for name in names]
        known = [count for count in counts if count is not None]
        return sum(known) if known else None


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitorStream:
    """A stream, as far as it could be read.

    Attributes:
        samples: in order.
        is_last_line_partial: the last line was cut off; it is not among the samples.
        unreadable: lines in between that are no samples: number and reason.
    """

    samples: tuple[Sample, ...] = ()
    is_last_line_partial: bool = False
    unreadable: tuple[tuple[int, str], ...] = ()

    @property
    def hardware(self) -> Hardware:
        """The machine, from the last sample that tells it."""
        told = [sample.hardware for sample in self.samples if sample.hardware != Hardware()]
        return told[-1] if told else Hardware()

    @property
    def pids(self) -> tuple[int, ...]:
        """Processes seen in any sample, each once."""
        pids = [runtime.pid for sample in self.samples for runtime in sample.runtimes]
        return tuple(dict.fromkeys(pid for pid in pids if pid is not None))

    @property
    def errors(self) -> tuple[str, ...]:
        """Every error string of the stream, each once, in order."""
        return tuple(dict.fromkeys(text for sample in self.samples for _, text in sample.errors))

    def to_dict(self) -> dict[str, object]:
        """Return everything as JSON-able values."""
        return asdict(self)
