"""Which logical cores a process may take: NEURON_RT_VISIBLE_CORES, NEURON_RT_NUM_CORES, NEURON_LOGICAL_NC_CONFIG.

| variable | meaning (documented) |
|---|---|
| `NEURON_RT_VISIBLE_CORES` | logical ids: `3`, `0,2,5`, `0-3`, `0-3,8`; goes before the next |
| `NEURON_RT_NUM_CORES` | how many cores; 0 is all |
| `NEURON_LOGICAL_NC_CONFIG` | physical cores in a logical one, 1 or 2 |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from port.deep_cluster.machine import Machine
from port.deep_cluster.number_lists import numbers_text, parse_numbers
from port.environment import Environment

VISIBLE_CORES = "NEURON_RT_VISIBLE_CORES"
NUM_CORES = "NEURON_RT_NUM_CORES"
LOGICAL_NC_CONFIG = "NEURON_LOGICAL_NC_CONFIG"

Decided = Literal["NEURON_RT_VISIBLE_CORES", "NEURON_RT_NUM_CORES", "machine"]


@dataclass(frozen=True, slots=True, kw_only=True)
class VisibleCores:
    """What a process may take, and what is odd about it.

    Attributes:
        core_ids: logical ids in the order of the variable; `cuda:0` of other machines is the first.
        decided_by: the variable that decided, or the machine where none is set.
        problems: a sentence for each value that cannot be used or does not fit the machine.
        notes: a sentence for each thing worth knowing.
    """

    core_ids: tuple[int, ...]
    decided_by: Decided
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def parse_visible_cores(text: str) -> tuple[int, ...]:
    """Return the ids of a value of NEURON_RT_VISIBLE_CORES, in the order they stand.

    Raises:
        ValueError: it is no list of ids; the message has the part at fault.
    """
    return parse_numbers(text, where=VISIBLE_CORES)


def requested_core_count(environment: Environment) -> int | None:
    """Return how many cores NEURON_RT_NUM_CORES asks for, None where it is not set or asks for all (0).

    Raises:
        ValueError: it is no whole number of at least 0.
    """
    text = environment.raw(NUM_CORES)
    if text is None or not text.strip():
        return None
    if not text.strip().isdigit():
        raise ValueError(f"{NUM_CORES}: expected a whole number of at least 0 (0 is all cores); found {text!r}")
    return int(text) or None


def logical_nc_config(environment: Environment) -> int | None:
    """Return the size of a logical core that NEURON_LOGICAL_NC_CONFIG asks for, None where it is not set.

    Raises:
        ValueError: it is neither 1 nor 2, the sizes trn2 has (documented).
    """
    text = environment.raw(LOGICAL_NC_CONFIG)
    if text is None or not text.strip():
        return None
    if text.strip() not in ("1", "2"):
        raise ValueError(f"{LOGICAL_NC_CONFIG}: expected 1 or 2 physical cores in a logical one; found {text!r}")
    return int(text)


def visible_cores(machine: Machine, environment: Environment) -> VisibleCores:
    """Return the cores a process with this environment may take on this machine; told, never raised.

    A list of ids is taken as it stands, ids that the machine does not have included: they are among the problems. With
    NEURON_RT_NUM_CORES alone the first cores are given, although the runtime may take others that are free (inferred).
    """
    problems: list[str] = []
    notes: list[str] = []
    ids, decided = machine.core_ids, "machine"
    text = environment.raw(VISIBLE_CORES)
    count: int | None = None
    try:
        count = requested_core_count(environment)
    except ValueError as error:
        problems.append(str(error))
    if text is not None:
        decided = VISIBLE_CORES
        try:
            ids = () if text.strip() in ("", "-1") else parse_visible_cores(text)
        except ValueError as error:
            ids = ()
            problems.append(str(error))
        if not ids and not problems:
            notes.append(f"{VISIBLE_CORES}={text!r} hides every core")
        if environment.raw(NUM_CORES) is not None:
            notes.append(f"{NUM_CORES} is passed over, since {VISIBLE_CORES} is set")
        absent = sorted(set(ids) - set(machine.core_ids))
        if absent and machine.are_cores_known:
            there = numbers_text(machine.core_ids) or "none"
            problems.append(f"{VISIBLE_CORES} names cores {numbers_text(absent)}; this machine has {there}")
    elif count is not None:
        decided = NUM_CORES
        if machine.are_cores_known and count > len(machine.core_ids):
            problems.append(f"{NUM_CORES} asks for {count} cores; this machine has {len(machine.core_ids)}")
        ids = machine.core_ids[:count]
        notes.append(f"{NUM_CORES} says how many, not which: the runtime may take others that are free (inferred)")
    problems += lnc_problems(machine, environment)
    return VisibleCores(core_ids=ids, decided_by=decided, problems=tuple(problems), notes=tuple(notes))


def value_problems(environment: Environment) -> list[str]:
    """Return what is wrong with the values alone, whatever the machine has, a sentence each."""
    problems: list[str] = []
    text = environment.raw(VISIBLE_CORES)
    try:
        if text is not None and text.strip() not in ("", "-1"):
            parse_visible_cores(text)
    except ValueError as error:
        problems.append(str(error))
    for read in (requested_core_count, logical_nc_config):
        try:
            read(environment)
        except ValueError as error:
            problems.append(str(error))
    return problems


def lnc_problems(machine: Machine, environment: Environment) -> list[str]:
    """Return what is wrong with NEURON_LOGICAL_NC_CONFIG on this machine, a sentence each."""
    try:
        asked = logical_nc_config(environment)
    except ValueError as error:
        return [str(error)]
    told = sorted({device.lnc for device in machine.devices if device.lnc is not None})
    if asked is None or not machine.devices or told == [asked]:
        return []
    if not told:
        return [f"{LOGICAL_NC_CONFIG}={asked}, but these devices tell no logical core size; only trn2 has one"]
    return [
        f"{LOGICAL_NC_CONFIG}={asked}, but {machine.source} says {', '.join(map(str, told))}: core ids and memory per "
        "core are counted for another size than graphs will run on"
    ]
