"""Where a process should run: the NUMA node and the CPUs near its core, and binding to them.

Host-side only. Binding changes the process (its CPUs, where its memory comes from), so it happens only when called.
Source: deepinfer 0.1.0 `deep_cluster.topology`, described in the runtime contracts, section 5.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from port.deep_cluster.discovery import ROOT
from port.deep_cluster.hardware import Root, Variables, find_core, find_machine, physical_device_id
from port.deep_cluster.number_lists import numbers_text, parse_numbers
from port.errors import PlatformError


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """What a process was bound to.

    Attributes:
        node: NUMA node, None where nothing was bound.
        cpus: CPUs it may run on now; () where nothing was bound.
        binds_memory: whether its memory comes from the node too; that takes libnuma.
        reason: what was not done, and why; "" where all was.
    """

    node: int | None
    cpus: tuple[int, ...] = ()
    binds_memory: bool = False
    reason: str = ""


def which_numa(local_rank: int, root: Root = None, environment: Variables = None) -> int | None:
    """Return the NUMA node near the core of a local rank, None where there is none (one node, "-1") or no device.

    Raises:
        IndexError: on a Neuron machine, a rank without a visible core, or a core the machine does not have.
    """
    if not find_machine(root, environment).is_available:
        return None
    return find_core(int(physical_device_id(local_rank, root, environment)), root, environment).numa_node


def cpus_near(local_rank: int, root: Root = None, environment: Variables = None) -> tuple[int, ...]:
    """Return the CPUs near the core of a local rank, () where that is not told or there is no device.

    Raises:
        IndexError: as `which_numa`.
    """
    machine = find_machine(root, environment)
    if not machine.is_available:
        return ()
    core = find_core(int(physical_device_id(local_rank, root, environment)), root, environment)
    return next(device.cpus for device in machine.devices if device.index == core.device)


def numa_cpus(node: int, root: Root = None) -> tuple[int, ...]:
    """Return the CPUs of a NUMA node.

    Raises:
        PlatformError: no such node.
    """
    base = Path(root) if root is not None else ROOT
    path = base / f"sys/devices/system/node/node{node}/cpulist"
    try:
        text = path.read_text(encoding="ascii").strip()
    except OSError as error:
        there = numbers_text(
            int(found.name.removeprefix("node"))
            for found in path.parent.parent.glob("node[0-9]*")
            if found.name.removeprefix("node").isdigit()
        )
        raise PlatformError(f"NUMA node {node}: expected one of {there or 'none at all'}; {error}") from error
    return parse_numbers(text, where=str(path)) if text else ()


def physical_core_cpus_by_numa(root: Root = None) -> dict[int, tuple[int, ...]]:
    """Return one CPU of every physical core, by NUMA node; a machine without nodes is node 0.

    Who divides these by the number of devices must mind that a CPU machine has none.
    """
    base = Path(root) if root is not None else ROOT
    system = base / "sys/devices/system"
    nodes = sorted(int(path.name[4:]) for path in (system / "node").glob("node[0-9]*") if path.name[4:].isdigit())
    if not nodes:
        return {0: tuple(_one_a_core(system, _all_cpus(system)))}
    return {node: tuple(_one_a_core(system, numa_cpus(node, root))) for node in nodes}


def set_cpu_affinity(cpus: str | Iterable[int]) -> tuple[int, ...]:
    """Let this process run on these CPUs alone, and return them.

    Args:
        cpus: numbers, or a list as neuron-ls writes it: `0-47,96-143`. CPUs that a container does not allow are left
            out.

    Raises:
        ValueError: no CPUs, or no list of CPUs.
        PlatformError: none of them may be used here, or this system cannot bind processes.
    """
    wanted = set(parse_numbers(cpus, where="CPU list", example="0-47,96-143") if isinstance(cpus, str) else cpus)
    if not wanted or min(wanted) < 0:
        raise ValueError(f"CPU list: expected at least one CPU, numbers from 0; found {sorted(wanted)}")
    if not hasattr(os, "sched_setaffinity"):
        raise PlatformError("CPU list: this system cannot bind a process to CPUs; leave it unbound")
    allowed = os.sched_getaffinity(0)
    usable = wanted & allowed
    if not usable:
        raise PlatformError(
            f"CPU list: expected CPUs among {numbers_text(allowed)}, which this process may use; found "
            f"{numbers_text(wanted)}"
        )
    os.sched_setaffinity(0, usable)
    return tuple(sorted(usable))


def bind_numa(node: int | None, root: Root = None) -> Binding:
    """Run this process on a NUMA node and take its memory from there; says what was done.

    Memory is bound where libnuma is installed; without it the CPUs alone are, and the binding says so. None, as
    `which_numa` gives where there is no node, binds nothing.

    Raises:
        PlatformError: no such node, or none of its CPUs may be used.
    """
    if node is None:
        return Binding(node=None, reason="no NUMA node is known, so nothing was bound")
    cpus = set_cpu_affinity(numa_cpus(node, root))
    problem = _prefer_memory(node)
    return Binding(node=node, cpus=cpus, binds_memory=not problem, reason=problem)


def _prefer_memory(node: int) -> str:
    """Prefer the memory of a node for this process; return why that was not possible, "" where it was."""
    name = ctypes.util.find_library("numa")
    if name is None:
        return "libnuma is not installed: memory is not bound, CPUs are"
    try:
        library = ctypes.CDLL(name)
    except OSError as error:
        return f"libnuma cannot be loaded ({error}): memory is not bound, CPUs are"
    if library.numa_available() < 0:
        return "this kernel has no NUMA support: memory is not bound, CPUs are"
    library.numa_set_preferred.argtypes = [ctypes.c_int]
    library.numa_set_preferred.restype = None
    library.numa_set_preferred(node)
    return ""


def _all_cpus(system: Path) -> tuple[int, ...]:
    try:
        text = (system / "cpu" / "online").read_text(encoding="ascii").strip()
    except OSError:
        return ()
    return parse_numbers(text, where=str(system / "cpu/online")) if text else ()


def _one_a_core(system: Path, cpus: Iterable[int]) -> list[int]:
    """Return the CPUs that are the first of their physical core; all of them where siblings are not told."""
    first: list[int] = []
    for cpu in cpus:
        path = system / f"cpu/cpu{cpu}/topology/thread_siblings_list"
        try:
            siblings = parse_numbers(path.read_text(encoding="ascii").strip(), where=str(path))
        except OSError:
            siblings = (cpu,)
        if cpu == min(siblings):
            first.append(cpu)
    return first
