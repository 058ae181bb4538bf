"""The contract's questions about hardware, as plain functions; one device is one logical NeuronCore.

Every function takes a `root` and an `environment` for tests and simulations: another file system and other variables.
Without them the machine is looked at once and kept. Nothing here imports torch or starts the runtime.
Source: deepinfer 0.1.0 `deep_cluster.hardware`, described in the runtime contracts, section 5.
"""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping
from pathlib import Path
from typing import Literal

from port.deep_cluster.discovery import discover, this_machine
from port.deep_cluster.machine import Core, Machine
from port.deep_cluster.number_lists import numbers_text
from port.deep_cluster.visible_cores import VISIBLE_CORES, parse_visible_cores, requested_core_count, visible_cores
from port.environment import ENV, Environment
from port.errors import PlatformError

BF16_TFLOPS_PER_PHYSICAL_CORE: dict[str, float] = {"trn2": 79.0}
"""Dense BF16 of one physical core, by instance family (documented: NeuronCore-v3)."""

Root = Path | str | None
Variables = MutableMapping[str, str] | None


def find_machine(root: Root = None, environment: Variables = None) -> Machine:
    """Return the Neuron devices: those of this machine, looked for once, or those of a made-up one, every time."""
    if root is None and environment is None:
        return this_machine()
    return discover(root=root, environment=None if environment is None else Environment(environment))


def accelerator_kind(root: Root = None, environment: Variables = None) -> Literal["neuron", "cpu"]:
    """Return "neuron" where there is a Neuron device, else "cpu"."""
    return "neuron" if find_machine(root, environment).is_available else "cpu"


def physical_device_count(root: Root = None, environment: Variables = None) -> int:
    """Return the logical cores of the machine, 0 on a machine without Neuron devices.

    Raises:
        PlatformError: there are devices, but no source tells their cores.
    """
    return len(_known(find_machine(root, environment)).core_ids)


def get_actual_num_gpus(root: Root = None, environment: Variables = None) -> int:
    """Return `physical_device_count()`; the contract has it under both names."""
    return physical_device_count(root, environment)


def visible_device_env_name(root: Root = None, environment: Variables = None) -> str | None:
    """Return the name of the variable that hides devices, None on a machine without any."""
    return VISIBLE_CORES if accelerator_kind(root, environment) == "neuron" else None


def visible_devices(root: Root = None, environment: Variables = None) -> str | None:
    """Return the text of that variable, None where it is not set or there is no such variable."""
    name = visible_device_env_name(root, environment)
    return None if name is None else _variables(environment).raw(name)


def visible_device_ids(root: Root = None, environment: Variables = None) -> tuple[str, ...]:
    """Return the ids of the cores this process may take; () for an empty variable, "-1" and on a CPU machine.

    Without NEURON_RT_VISIBLE_CORES they are all cores, or as many as NEURON_RT_NUM_CORES says.

    Raises:
        ValueError: a variable is no list of ids, or no count.
        PlatformError: as `physical_device_count`.
    """
    machine = find_machine(root, environment)
    if not machine.is_available:
        return ()
    variables = _variables(environment)
    text = variables.raw(VISIBLE_CORES)
    if text is not None and text.strip() not in ("", "-1"):
        return tuple(map(str, parse_visible_cores(text)))
    if text is None:
        requested_core_count(variables)  # raises for a count that is none, which `visible_cores` only tells of
    return tuple(map(str, visible_cores(_known(machine), variables).core_ids))


def visible_device_count(root: Root = None, environment: Variables = None) -> int:
    """Return how many cores this process may take: never more than the machine has."""
    return min(len(visible_device_ids(root, environment)), physical_device_count(root, environment))


def num_gpus(root: Root = None, environment: Variables = None) -> int:
    """Return `visible_device_count()`; the contract has it under both names."""
    return visible_device_count(root, environment)


def physical_device_id(local_rank: int, root: Root = None, environment: Variables = None) -> str:
    """Return the id of the core that a local rank has.

    Raises:
        IndexError: there are fewer visible cores.
    """
    ids = visible_device_ids(root, environment)
    if not 0 <= local_rank < len(ids):
        raise IndexError(f"local rank {local_rank}: expected a rank below {len(ids)}, the number of visible cores")
    return ids[local_rank]


def set_visible_devices(devices: str | Iterable[int | str], root: Root = None, environment: Variables = None) -> None:
    """Write the variable that hides devices. The runtime reads it when it starts: call this before (documented).

    Args:
        devices: a value of NEURON_RT_VISIBLE_CORES, or ids; "" and no ids hide every core.
        root: as everywhere.
        environment: as everywhere; written to where it is given.

    Raises:
        PlatformError: a machine without Neuron devices; a RuntimeError.
        ValueError: no list of ids, or ids that the machine does not have.
    """
    machine = find_machine(root, environment)
    if not machine.is_available:
        raise PlatformError(f"set_visible_devices: expected a machine with Neuron devices; found {machine.reason}")
    text = devices if isinstance(devices, str) else ",".join(str(device) for device in devices)
    ids = () if text.strip() in ("", "-1") else parse_visible_cores(text)
    absent = set(ids) - set(machine.core_ids)
    if absent and machine.are_cores_known:
        raise ValueError(
            f"set_visible_devices: expected cores among {numbers_text(machine.core_ids)}; found {numbers_text(absent)}"
        )
    _variables(environment).set(VISIBLE_CORES, text)


def assign_visible_devices(
    rank: int, devices_per_rank: int, offset: int = 0, root: Root = None, environment: Variables = None
) -> tuple[str, ...]:
    """Give a rank its own run of cores, write the variable, and return the ids.

    Ranks go round: with G runs in the machine, rank r has the cores from `offset + (r mod G) * devices_per_rank` on,
    counted in the order of the machine's core ids.

    Raises:
        PlatformError: as `set_visible_devices`.
        ValueError: arguments out of range, or cores after `offset` that do not divide into runs of this size.
    """
    if rank < 0 or devices_per_rank < 1 or offset < 0:
        raise ValueError(
            "assign_visible_devices: expected rank and offset of at least 0 and at least one device per rank; found "
            f"rank {rank}, offset {offset}, {devices_per_rank} per rank"
        )
    machine = find_machine(root, environment)
    if not machine.is_available:
        raise PlatformError(f"assign_visible_devices: expected a machine with Neuron devices; found {machine.reason}")
    ids = _known(machine).core_ids
    groups, rest = divmod(len(ids) - offset, devices_per_rank)
    if groups < 1 or rest:
        raise ValueError(
            f"assign_visible_devices: expected {len(ids)} cores without the first {offset} to divide into runs of "
            f"{devices_per_rank}; found {rest if groups >= 1 else max(0, len(ids) - offset)} left over"
        )
    start = offset + (rank % groups) * devices_per_rank
    chosen = tuple(str(core_id) for core_id in ids[start : start + devices_per_rank])
    set_visible_devices(chosen, root, environment)
    return chosen


def device_numa_node(index: int, root: Root = None, environment: Variables = None) -> int | None:
    """Return the NUMA node of a core by its id in the machine, None where there is none or it is not told.

    Raises:
        IndexError: no such core.
    """
    return find_core(index, root, environment).numa_node


def find_core(core_id: int, root: Root = None, environment: Variables = None) -> Core:
    """Return a core of the machine by its id.

    Raises:
        IndexError: no such core.
    """
    machine = find_machine(root, environment)
    for core in machine.cores:
        if core.core_id == core_id:
            return core
    raise IndexError(f"core {core_id}: expected one of {numbers_text(machine.core_ids) or 'no cores at all'}")


def hbm_bytes_per_core(root: Root = None, environment: Variables = None) -> int | None:
    """Return the device memory of one logical core, None on a CPU machine or where it is not told.

    On trn2 24 GiB with two physical cores in a logical one; with one, two cores share a bank: 12 GiB each (documented).
    """
    sizes = [size for device in find_machine(root, environment).devices if (size := device.memory_per_core_bytes)]
    return min(sizes) if sizes else None


def get_bf16_tflops_limit(root: Root = None, environment: Variables = None) -> float:
    """Return the dense BF16 peak of one device in TFLOPS: 158 for a logical core of trn2 at size 2, 79 at size 1.

    On a CPU machine the answer is NaN: no peak is known there, the contract needs an answer, and a share of NaN prints
    as nan, where a made-up peak would print a made-up utilisation.

    Raises:
        PlatformError: Neuron devices whose peak this port does not know; a RuntimeError, as in the contract.
    """
    machine = find_machine(root, environment)
    if not machine.is_available:
        return float("nan")
    family = (machine.instance_type or "")[:4]
    per_core = BF16_TFLOPS_PER_PHYSICAL_CORE.get(family)
    if per_core is None:
        raise PlatformError(
            f"bf16 limit: expected an instance whose peak is documented ({', '.join(BF16_TFLOPS_PER_PHYSICAL_CORE)}); "
            f"found {machine.instance_type or 'devices that do not tell their instance type'}"
        )
    return per_core * (_known(machine).physical_core_count // machine.logical_core_count)


def is_sm_major_10() -> bool:
    """Return False: there is no NVIDIA device of compute capability 10."""
    return False


def _variables(environment: Variables) -> Environment:
    return ENV if environment is None else Environment(environment)


def _known(machine: Machine) -> Machine:
    if not machine.are_cores_known:
        raise PlatformError(
            f"{len(machine.devices)} Neuron devices have nodes in /dev, but neither neuron-ls nor the driver's tree "
            f"tells their cores: {'; '.join(machine.notes)}"
        )
    return machine
