"""What this machine gives a process: memory and cores.

Read only; limits of a container count, since they and not the machine decide when a process is ended.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import psutil


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Memory and cores.

    Attributes:
        memory_bytes: of the machine.
        memory_limit_bytes: of this container, None where there is none.
        available_bytes: that a new process could take now, within the limit.
        cores: of the machine, as the system counts them.
        usable_cores: that this process may run on: its affinity and the container's share, rounded down, at least 1.
    """

    memory_bytes: int
    memory_limit_bytes: int | None
    available_bytes: int
    cores: int
    usable_cores: int


def look_at_machine(cgroup: Path = Path("/sys/fs/cgroup")) -> Machine:
    """Return memory and cores; `cgroup` is where a container's limits stand."""
    memory = psutil.virtual_memory()
    limit, used = _whole(cgroup / "memory.max"), _whole(cgroup / "memory.current")
    if limit is not None and limit >= memory.total:
        limit = None
    available = memory.available if limit is None else min(memory.available, limit - (used or 0))
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    share = _cpu_share(cgroup / "cpu.max")
    usable = affinity if share is None else min(affinity, max(1, int(share)))
    return Machine(
        memory_bytes=memory.total,
        memory_limit_bytes=limit,
        available_bytes=available,
        cores=os.cpu_count() or 1,
        usable_cores=usable,
    )


def _whole(path: Path) -> int | None:
    try:
        text = path.read_text(encoding="ascii").strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def _cpu_share(path: Path) -> float | None:
    try:
        quota, period = path.read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return None
    return int(quota) / int(period) if quota.isdigit() and int(period) else None
