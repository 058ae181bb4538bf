"""What a build of torch-neuronx answers, read with care: names and shapes of answers differ between builds.

Nothing here imports it; `workbench/devices/neuron.py` hands the modules over. Every reading synchronises first, since
the allocator of 2.14 works behind the program (documented), and gives None for what a build does not tell: an unknown
is never a 0.

| asked for | looked up, in this order |
|---|---|
| counters | `memory_allocated` and the like, then `memory_stats`, flat or nested, then that of `torch.accelerator` |
| memory of the core | `mem_get_info`, `torch.accelerator.get_memory_info`, `get_device_properties().total_memory` |
| operations run on the CPU | `get_fallback_ops`: a set of names, or a list with repeats |
| a snapshot of the allocator | the names in `SNAPSHOT_NAMES` (inferred; the feature is documented) |
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import cast

SNAPSHOT_NAMES: tuple[str, ...] = ("memory_snapshot", "_snapshot", "snapshot")
"""Names under which a build may offer a snapshot of its allocator; 2.14 documents it, its name was not seen."""

_FIELDS = ("allocated", "reserved", "active")


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """Bytes as a build counts them; None where it does not tell.

    Attributes:
        allocated, reserved, active: now, `reserved >= allocated >= active` (documented).
        peak_allocated, peak_reserved: highest since the last reset.
        out_of_memory_count: failed allocations.
        total: of the logical core.
        free: of the core, as the runtime sees it.
        source: where the figures come from, "" where there are none.
    """

    allocated: int | None = None
    reserved: int | None = None
    active: int | None = None
    peak_allocated: int | None = None
    peak_reserved: int | None = None
    out_of_memory_count: int | None = None
    total: int | None = None
    free: int | None = None
    source: str = ""


class NeuronLibrary:
    """One loaded build.

    Args:
        module: `torch_neuronx`, or what stands in for it.
        device_module: `torch.neuron`.
        accelerator: `torch.accelerator`, None where it must not be asked.
        version: of the distribution, None where nothing tells it.
    """

    def __init__(
        self, module: object, device_module: object, *, accelerator: object | None = None, version: str | None = None
    ) -> None:
        self._places = tuple(
            place
            for place in (
                device_module,
                module,
                getattr(device_module, "memory", None),
                getattr(module, "memory", None),
            )
            if place is not None
        )
        self._accelerator = accelerator
        self.version = version

    def find(self, *names: str) -> Callable[..., object] | None:
        """Return the first function of these names that the build has."""
        for name in names:
            for place in self._places:
                found = getattr(place, name, None)
                if callable(found):
                    return cast("Callable[..., object]", found)
        return None

    def core_count(self) -> int:
        """Return the logical cores this process may use.

        Raises:
            RuntimeError: from the runtime, for example where the driver is missing.
        """
        count = self.find("device_count")
        return int(cast("int", count())) if count is not None else 0

    def synchronize(self, index: int) -> None:
        """Wait for everything queued on a core; pending errors are raised here (documented)."""
        wait = self.find("synchronize")
        if wait is not None:
            wait(index)

    def counters(self, index: int) -> Counters:
        """Return the counters of a core, read after a synchronisation."""
        self.synchronize(index)
        stats = self._stats(index)
        values: dict[str, int | None] = {}
        source = ""
        for name in _FIELDS:
            direct = self._figure(f"memory_{name}", index)
            values[name] = _figure_of(stats, f"{name}_bytes", "current") if direct is None else direct
            if direct is not None and not source:
                source = f"memory_{name}"
        for name in ("allocated", "reserved"):
            direct = self._figure(f"max_memory_{name}", index)
            values[f"peak_{name}"] = _figure_of(stats, f"{name}_bytes", "peak") if direct is None else direct
        if not source and any(values.values()):
            source = "memory_stats"
        free, total = self._free_and_total(index)
        return Counters(
            **values, out_of_memory_count=_whole(stats.get("num_ooms")), total=total, free=free, source=source
        )

    def fallback_ops(self) -> Counter[str] | None:
        """Return the operations that ran on the CPU since the last `clear_fallback_ops`; None where nobody counts.

        A build may give a set of names: then every count is 1 and says no more than "at least once".
        """
        ask = self.find("get_fallback_ops")
        if ask is None:
            return None
        with contextlib.suppress(Exception):
            return Counter(str(name) for name in cast("Iterable[object]", ask()))
        return None

    def clear_fallback_ops(self) -> bool:
        """Forget the operations counted so far; False where the build cannot."""
        clear = self.find("clear_op_tracking")
        if clear is None:
            return False
        clear()
        return True

    def reset_peaks(self, index: int) -> bool:
        """Begin the highest figures anew; False where the build cannot."""
        reset = self.find("reset_peak_memory_stats")
        if reset is None:
            return False
        self.synchronize(index)
        reset(index)
        return True

    def release_cached(self, index: int) -> bool:
        """Give memory that is reserved and not allocated back to the runtime; False where the build cannot."""
        release = self.find("empty_cache")
        if release is None:
            return False
        self.synchronize(index)
        release()
        return True

    def snapshot(self, index: int) -> object | None:
        """Return the allocator's own snapshot, None where the build has none under the names we know."""
        take = self.find(*SNAPSHOT_NAMES)
        if take is None:
            return None
        self.synchronize(index)
        with contextlib.suppress(Exception):
            return take()
        return None

    def _stats(self, index: int) -> Mapping[str, object]:
        for ask in (self.find("memory_stats"), getattr(self._accelerator, "memory_stats", None)):
            if ask is None:
                continue
            # One development image is known whose memory_stats raises (field report): then nobody knows.
            with contextlib.suppress(Exception):
                found = cast("Callable[[int], object]", ask)(index)
                if isinstance(found, Mapping) and found:
                    return cast("Mapping[str, object]", found)
        return {}

    def _figure(self, name: str, index: int) -> int | None:
        ask = self.find(name)
        if ask is None:
            return None
        with contextlib.suppress(Exception):
            return _whole(ask(index))
        return None

    def _free_and_total(self, index: int) -> tuple[int | None, int | None]:
        for ask in (self.find("mem_get_info"), getattr(self._accelerator, "get_memory_info", None)):
            if ask is None:
                continue
            with contextlib.suppress(Exception):
                free, total = cast("tuple[object, object]", cast("Callable[[int], object]", ask)(index))
                if _whole(total):
                    return _whole(free), _whole(total)
        properties = self.find("get_device_properties")
        if properties is not None:
            with contextlib.suppress(Exception):
                # 0, with a warning, where the runtime could not be asked (source): unknown, not "no memory".
                return None, _whole(getattr(properties(index), "total_memory", None)) or None
        return None, None


def _figure_of(stats: Mapping[str, object], name: str, which: str) -> int | None:
    """Read `name` from either known layout: flat `name.all.current`, or nested `{name: {current: ...}}`."""
    flat = _whole(stats.get(f"{name}.all.{which}"))
    if flat is not None:
        return flat
    nested = stats.get(name)
    if isinstance(nested, Mapping):
        inner = cast("Mapping[str, object]", nested)
        deeper = inner.get("all")
        return _whole((cast("Mapping[str, object]", deeper) if isinstance(deeper, Mapping) else inner).get(which))
    return None


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
