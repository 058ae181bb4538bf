"""What `workbench doctor` says of Neuron hardware: devices, cores, who holds them, versions, and variables that misfit.

Reads files and runs neuron-ls once; no runtime is started and no core is taken.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from port.deep_cluster.discovery import discover
from port.deep_cluster.machine import Machine
from port.deep_cluster.neuron_ls import TOOLS_FOLDER
from port.deep_cluster.number_lists import numbers_text
from port.deep_cluster.sysfs import device_nodes, driver_version
from port.deep_cluster.visible_cores import VisibleCores, value_problems, visible_cores
from port.environment import Environment
from workbench.doctor_report import Line
from workbench.neuron_tables import busy_text, cores_text, memory_text, numa_text
from workbench.settings import find_program
from workbench.units import count_text

TOPIC = "Neuron hardware"

_PACKAGES = re.compile(r"^Package: (aws-neuronx?-\S+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class NeuronSight:
    """What can be seen of the Neuron hardware without starting the runtime.

    Attributes:
        nodes: device nodes, as in `/dev/neuron0`.
        tool: path of neuron-ls, None where it is nowhere.
        machine: devices, or why there are none.
        driver: version of the loaded driver module, None where none is loaded or it does not tell.
        packages: versions of the system's Neuron packages by name; empty where the system keeps no such list.
    """

    nodes: tuple[str, ...]
    tool: str | None
    machine: Machine
    driver: str | None = None
    packages: tuple[tuple[str, str], ...] = ()

    @property
    def list_problem(self) -> str:
        """Why neuron-ls gave no list, "" where it gave one or is not there."""
        if self.tool is None or self.machine.source == "neuron-ls":
            return ""
        found = next((note for note in self.machine.notes if note.startswith("neuron-ls gave no list")), "")
        return self.machine.reason or found.partition(": ")[2]


def look_at_neuron(root: Path | None = None) -> NeuronSight:
    """Return what can be seen below a root, of this machine where it is None."""
    base = root or Path("/")
    below = str(base / TOOLS_FOLDER.lstrip("/"))
    return NeuronSight(
        nodes=device_nodes(base),
        tool=find_program("neuron-ls", also_in=(below,)) if root is None else find_program(f"{below}/neuron-ls"),
        machine=discover(root=root),
        driver=driver_version(base),
        packages=system_packages(base / "var/lib/dpkg/status"),
    )


def system_packages(status: Path) -> tuple[tuple[str, str], ...]:
    """Return the installed Neuron packages of a Debian status file with their versions, () without one."""
    try:
        text = status.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ()
    found: dict[str, str] = {}
    for entry in text.split("\n\n"):
        name, version = _PACKAGES.search(entry), re.search(r"^Version: (\S+)$", entry, re.MULTILINE)
        if name and version and re.search(r"^Status: .* installed$", entry, re.MULTILINE):
            found[name[1]] = version[1]
    return tuple(sorted(found.items()))


def hardware_obstacles(sight: NeuronSight, set_variables: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Give what of the hardware stands in the way of the placement `neuron`, with what to do."""
    machine = sight.machine
    if not sight.nodes:
        yield "no device node /dev/neuron*", "run on a trn2 machine whose Neuron driver is loaded"
    elif machine.cause == "no_permission":
        yield machine.reason, "let this user read and write /dev/neuron*"
    held = held_cores(machine, visible_cores(machine, Environment(dict(set_variables))))
    if held and not held.free:
        yield (
            f"every visible core is held by other processes ({held.text})",
            "end them (a notebook's kernel holds its cores until it ends), or choose others with "
            "NEURON_RT_VISIBLE_CORES",
        )


def hardware_lines(sight: NeuronSight, set_variables: Mapping[str, str]) -> Iterator[Line]:
    """Give a line for each thing there is to know of the hardware.

    Args:
        sight: what was seen.
        set_variables: the Neuron variables of this process.
    """
    machine = sight.machine
    yield from _source_lines(sight)
    environment = Environment(dict(set_variables))
    if machine.is_available:
        yield from _machine_lines(machine)
        yield from _visible_lines(machine, visible_cores(machine, environment))
    else:
        yield from map(_variable_line, value_problems(environment))
    for name, version in sight.packages:
        yield Line(topic=TOPIC, name=name, state="ok", found=version)


def _source_lines(sight: NeuronSight) -> Iterator[Line]:
    nodes = ", ".join(sight.nodes[:4]) + (f" and {len(sight.nodes) - 4} more" if len(sight.nodes) > 4 else "")
    yield Line(topic=TOPIC, name="device nodes", state="ok" if nodes else "missing", found=nodes or "no /dev/neuron*",
               advice="" if nodes else "a trn2 machine with the Neuron driver has one per chip")  # fmt: skip
    if sight.driver:
        yield Line(topic=TOPIC, name="driver", state="ok", found=f"version {sight.driver}")
    elif sight.nodes:
        yield Line(topic=TOPIC, name="driver", state="note", found="its version is not told in /sys/module/neuron",
                   advice="in a container this is usual: look on the host")  # fmt: skip
    machine = sight.machine
    if sight.tool is None:
        yield Line(topic=TOPIC, name="neuron-ls", state="missing", found=f"not on PATH and not in {TOOLS_FOLDER}",
                   advice="install the Neuron tools to see chips, cores and who holds them")  # fmt: skip
    elif sight.list_problem:
        yield Line(topic=TOPIC, name="neuron-ls", state="problem",
                   found=f"{sight.tool} gave no list: {sight.list_problem}",
                   advice=_ADVICE.get(machine.cause, "load the driver (`sudo modprobe neuron`); in a container, pass "
                                      "/dev/neuron* in"))  # fmt: skip
    else:
        yield Line(topic=TOPIC, name="neuron-ls", state="ok", found=f"listed by {sight.tool}")


_ADVICE = {
    "no_permission": "let this user read and write /dev/neuron*",
    "timeout": "run it by hand; look at the kernel's log (`dmesg`) for messages of the driver",
    "unreadable": "run it by hand, and save what it prints for `workbench show`",
}


def _machine_lines(machine: Machine) -> Iterator[Line]:
    name = machine.instance_type or "instance type not told"
    basis = "measured" if machine.source == "neuron-ls" else "inferred"
    text = f"{name}, {count_text(len(machine.devices), 'device')}, as {machine.source} says"
    yield Line(topic=TOPIC, name="devices", state="ok", found=text)
    known = machine.are_cores_known
    yield Line(topic=TOPIC, name="cores", state="ok" if known else "note", found=cores_text(machine), basis=basis,
               advice="" if known else "install the Neuron tools: device nodes do not tell cores")  # fmt: skip
    yield Line(topic=TOPIC, name="memory", state="ok", found=memory_text(machine).removeprefix("memory: "), basis=basis)
    busy = bool(machine.pids)
    advice = "a process keeps its cores until it ends, an idle notebook kernel too" if busy else ""
    yield Line(topic=TOPIC, name="held by", state="note" if busy else "ok", found=busy_text(machine), advice=advice)
    affinities = {device.cpu_affinity for device in machine.devices if device.cpu_affinity}
    cpus = f"; CPUs {' / '.join(sorted(affinities))}" if affinities else ""
    yield Line(topic=TOPIC, name="NUMA", state="ok", found=numa_text(machine).removeprefix("NUMA ") + cpus)
    if machine.invisible_links:
        text = f"linked to devices {', '.join(map(str, machine.invisible_links))} that are not visible here"
        advice = "usual in a container that was given some devices; collectives reach visible ones only"
        yield Line(topic=TOPIC, name="links", state="note", found=text, advice=advice, basis="inferred")
    versions = sorted({process.runtime_version for device in machine.devices for process in device.processes
                       if process.runtime_version})  # fmt: skip
    if versions:
        yield Line(topic=TOPIC, name="runtime of others", state="ok", found=", ".join(versions))
    for note in machine.notes:
        yield Line(topic=TOPIC, name="note", state="note", found=note, basis="inferred")


def _visible_lines(machine: Machine, visible: VisibleCores) -> Iterator[Line]:
    by = "no variable set" if visible.decided_by == "machine" else f"by {visible.decided_by}"
    text = f"{numbers_text(visible.core_ids) or 'none'} ({count_text(len(visible.core_ids), 'core')}, {by})"
    state, advice = ("ok", "") if visible.core_ids else ("note", "unset the variable to see all cores")
    yield Line(topic=TOPIC, name="visible cores", state=state, found=text, advice=advice, basis="documented")
    for note in visible.notes:
        yield Line(topic=TOPIC, name="visible cores", state="note", found=note, basis="documented")
    yield from map(_variable_line, visible.problems)
    held = held_cores(machine, visible)
    if held:
        yield Line(topic=TOPIC, name="visible and held", state="note" if held.free else "problem", found=held.text,
                   advice="choose free cores with NEURON_RT_VISIBLE_CORES, or end the processes")  # fmt: skip


def _variable_line(problem: str) -> Line:
    advice = "set it to what this machine has, or unset it, before torch_neuronx is imported"
    return Line(topic=TOPIC, name="variables", state="problem", found=problem, advice=advice, basis="documented")


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldCores:
    """Visible cores whose devices other processes hold.

    Attributes:
        held, free: visible cores of both kinds.
        pids: processes that hold them.
    """

    held: tuple[int, ...]
    free: tuple[int, ...]
    pids: tuple[int, ...]

    @property
    def text(self) -> str:
        """The same in words."""
        return f"cores {numbers_text(self.held)} by pids {', '.join(map(str, self.pids))}"


def held_cores(machine: Machine, visible: VisibleCores) -> HeldCores | None:
    """Return the visible cores that other processes hold, None where there are none.

    neuron-ls tells who holds a device, not which of its cores, so a core here may be free all the same.
    """
    chosen = [core for core in machine.cores if core.core_id in visible.core_ids]
    held = [core for core in chosen if core.pids]
    if not held:
        return None
    return HeldCores(
        held=tuple(core.core_id for core in held),
        free=tuple(core.core_id for core in chosen if not core.pids),
        pids=tuple(dict.fromkeys(pid for core in held for pid in core.pids)),
    )
