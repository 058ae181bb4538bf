"""What an error of the Neuron runtime or of torch-neuronx means for the reader, and what to do about it.

The texts are those of the documentation and of public reports; none was seen here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Meaning:
    """One kind of error.

    Attributes:
        kind: short name.
        pattern: what its text contains, as a regular expression.
        means: in words.
        advice: what to do.
        basis: "documented", or "field" where users reported it.
    """

    kind: str
    pattern: str
    means: str
    advice: str
    basis: str = "documented"


MEANINGS: tuple[Meaning, ...] = (
    Meaning(
        kind="cores busy",
        pattern=r"NeuronCore\(s\) not available|Logical Neuron Core\(s\) not available|NRT_EXEC_NC_BUSY",
        means="another process holds the cores: a process owns its cores from the first use until it ends, so an idle "
        "notebook kernel keeps them too",
        advice="end the process that holds them (in Jupyter: shut its kernel down; no cell can give cores back), or "
        "take other cores with NEURON_RT_VISIBLE_CORES before torch_neuronx is imported",
    ),
    Meaning(
        kind="forked",
        pattern=r"Cannot re-initialize Neuron runtime in forked subprocess",
        means="this process was forked from one that uses the runtime, which cannot be shared",
        advice="start processes with the method 'spawn'",
    ),
    Meaning(
        kind="no driver",
        pattern=r"Unable to determine Neuron Driver version|failed to discover Neuron devices",
        means="the Neuron driver is not loaded, or this machine has no Neuron device",
        advice="load the driver (`sudo modprobe neuron`), check `neuron-ls`; in a container, pass /dev/neuron* in",
    ),
    Meaning(
        kind="wrong architecture",
        pattern=r"NEFF arch: \S+, instance arch: \S+",
        means="a compiled graph was made for another chip",
        advice="clear the cache of compiled graphs and compile anew for this chip (NEURON_PLATFORM_TARGET_OVERRIDE)",
    ),
    Meaning(
        kind="out of memory",
        pattern=r"NRT allocation failed for size|NRT_RESOURCE|Failed to allocate [\d.]+\s?[KMG]B|\(OOM\)",
        means="the core's memory is used up",
        advice="look at what holds it with `workbench memory`; a table per core is in "
        "/tmp/neuron_mem_table_device_*_hbm_*.log",
    ),
    Meaning(
        kind="hung",
        pattern=r"execution timeout \(\d+ ms\) on model|NRT_TIMEOUT",
        means="a graph did not end in time",
        advice="where several cores take part, look for the one that failed first: the others wait for it",
    ),
    Meaning(
        kind="out of bounds",
        pattern=r"failed to run scatter/gather .*out-of-bound access|NRT_EXEC_OOB",
        means="an index of a gather or scatter lay outside its table",
        advice="run the same step on the placement 'host', where the index is named",
    ),
    Meaning(
        kind="core lost",
        pattern=r"NRT_EXEC_UNIT_UNRECOVERABLE|status_code=101\b",
        means="the core cannot be used by this process any more",
        advice="start the process anew",
    ),
)


def meaning_of(text: str) -> Meaning | None:
    """Return what an error's text means, None where it is not a known one."""
    return next((meaning for meaning in MEANINGS if re.search(meaning.pattern, text)), None)


def explained(text: str, *, holders: Iterable[str] = ()) -> str:
    """Return an error's text with what it means and what to do; the text alone where it is not a known one.

    Args:
        text: the message.
        holders: processes that hold cores, in words, told of where cores are busy.
    """
    meaning = meaning_of(text)
    if meaning is None:
        return text
    held = ", ".join(holders) if meaning.kind == "cores busy" else ""
    told = f" Held by {held}." if held else ""
    return f"{text}\n{meaning.means}.{told} What to do: {meaning.advice}."
