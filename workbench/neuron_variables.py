"""The environment variables of the Neuron software worth knowing before a run, and what a reader should do about each.

Data. A name that is not here is told of as unknown, since the software passes over a misspelt one in silence. All of it
is documented or was read in released sources, never measured here; `basis` says which.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Literal

PREFIXES: tuple[str, ...] = ("NEURON_", "NEURONX_", "TORCH_NEURONX_", "NKI_", "TORCH_DEVICE_BACKEND_AUTOLOAD")
"""What the names of these variables begin with."""

Basis = Literal["documented", "source", "field"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """One variable.

    Attributes:
        name: as it is spelt.
        meaning: what it does, in words.
        advice: what to do where it is set, "" where nothing needs doing.
        basis: "documented"; "source", read in a public source tree of April 2026, so that a later version may differ;
            "field", reported by users.
    """

    name: str
    meaning: str
    advice: str = ""
    basis: Basis = "documented"


_ALL: tuple[Variable, ...] = (
    Variable(
        name="NEURON_RT_VISIBLE_CORES",
        meaning="the logical cores this process may take; goes before NEURON_RT_NUM_CORES",
        advice="the numbers are logical cores: check them against NEURON_LOGICAL_NC_CONFIG",
    ),
    Variable(name="NEURON_RT_NUM_CORES", meaning="how many logical cores this process takes"),
    Variable(
        name="NEURON_LOGICAL_NC_CONFIG",
        meaning="physical cores in one logical core, 1 or 2",
        advice="must be what graphs are compiled for (--lnc); trn2 has 2 unless told otherwise",
    ),
    Variable(
        name="NEURON_CC_FLAGS",
        meaning="flags put before those of every compile",
        advice="part of the key of compiled graphs: note it with every measurement",
    ),
    Variable(name="NEURON_COMPILER_OPT_LEVEL", meaning="the -O of every compile", basis="source"),
    Variable(
        name="NEURON_LAUNCH_BLOCKING",
        meaning="1 runs every operation to its end before the next",
        advice="good for finding the operation that failed; about 15 times slower, as users report",
        basis="source",
    ),
    Variable(
        name="NEURON_FALLBACK_ENABLED",
        meaning="whether an operation that does not compile may run on the CPU",
        advice="set it to 0 for bring-up, so that nothing runs elsewhere unseen",
        basis="source",
    ),
    Variable(name="NEURON_PLATFORM_TARGET_OVERRIDE", meaning="the target to compile for without hardware, as in trn2"),
    Variable(name="NEURON_ENHANCED_ERROR_HANDLING", meaning="error texts with operation and stage", basis="source"),
    Variable(name="NEURON_RT_LOG_LEVEL", meaning="how much the runtime tells"),
    Variable(name="NEURON_RT_LOG_LOCATION", meaning="where the runtime writes: console or syslog"),
    Variable(name="NEURON_RT_EXEC_TIMEOUT", meaning="seconds until the runtime calls a graph hung"),
    Variable(name="NEURON_RT_RESET_CORES", meaning="whether cores are reset when a process takes them"),
    Variable(name="NEURON_RT_ROOT_COMM_ID", meaning="where the ranks of a collective meet"),
    Variable(
        name="NEURON_RT_INSPECT_ENABLE",
        meaning="1 records a profile of every graph",
        advice="takes device memory (about 2 GB of profile buffers): unset it for memory figures",
    ),
    Variable(name="NEURON_RT_INSPECT_OUTPUT_DIR", meaning="where recorded profiles go"),
    Variable(name="NEURON_RT_CONTIGUOUS_SCRATCHPAD", meaning="1 keeps the scratchpad in one piece"),
    Variable(
        name="NEURON_SCRATCHPAD_PAGE_SIZE",
        meaning="page of the scratchpad in MB",
        advice="has no effect while the scratchpad is in one piece (NEURON_RT_CONTIGUOUS_SCRATCHPAD=1, the default)",
    ),
    Variable(name="NEURON_RT_DBG_DUMP_INPUTS_ON_ERR", meaning="keeps the inputs of a graph that failed"),
    Variable(name="NEURON_RT_ENABLE_DGE_NOTIFICATIONS", meaning="notifications of generated descriptors"),
    Variable(
        name="NEURON_SKIP_EFA_AFFINITY", meaning="1 on machines without a fabric adapter (trn2.3xlarge)", basis="source"
    ),
    Variable(
        name="TORCH_DEVICE_BACKEND_AUTOLOAD",
        meaning="0 keeps `import torch` from loading torch_neuronx",
        advice="unset it where the neuron device is wanted",
    ),
    Variable(
        name="TORCH_NEURONX_DISABLE_FALLBACK_EXECUTION",
        meaning="1 (the default since 2.14) raises where a graph does not compile",
        advice="at 0 a graph that does not compile runs eagerly without a word: set it to 1 for bring-up",
    ),
    Variable(
        name="TORCH_NEURONX_FALLBACK_ONLY_FOR_UNIMPLEMENTED_OPS",
        meaning="1 raises where an operation the device has does not compile",
        advice="set it to 1 for bring-up; at 0 such an operation runs on the CPU",
        basis="source",
    ),
    Variable(name="TORCH_NEURONX_COMPILE_ONLY", meaning="1 compiles without a device: no numbers come out"),
    Variable(name="TORCH_NEURONX_DEBUG_DIR", meaning="where compile artefacts go"),
    Variable(name="TORCH_NEURONX_PRESERVE_COMPILATION_ARTIFACTS", meaning="1 keeps compile artefacts"),
    Variable(name="TORCH_NEURONX_COMPLEX_DECOMPOSE", meaning="1 takes complex numbers apart"),
    Variable(name="TORCH_NEURONX_DYNAMO_DISABLE_CPU_AUTOCOPY", meaning="1 refuses CPU inputs of compiled graphs"),
    Variable(
        name="TORCH_NEURONX_NEFF_CACHE_DIR",
        meaning="where compiled graphs are kept between runs",
        advice="old and failed entries are used again; give every experiment its own folder",
        basis="source",
    ),
    Variable(name="TORCH_NEURONX_NEFF_LOCAL_CACHE_DIR", meaning="locks of that cache", basis="source"),
    Variable(name="TORCH_NEURONX_NEFF_DISABLE_CACHE", meaning="compiles everything afresh", basis="source"),
    Variable(name="TORCH_NEURONX_HLO_CACHE_DIR", meaning="where lowered graphs are kept", basis="field"),
    Variable(name="TORCH_NEURONX_LOG_LEVEL", meaning="0 errors to 3 everything", basis="source"),
    Variable(name="TORCH_NEURONX_LOG_FILE", meaning="where it logs", basis="source"),
    Variable(name="TORCH_NEURONX_ENABLE_STACK_TRACE", meaning="Python stack in errors of operations", basis="source"),
    Variable(name="TORCH_NEURONX_METRICS_ENABLED", meaning="1 counts compiles and cache hits", basis="source"),
    Variable(name="TORCH_NEURONX_RETAIN_DEVICE_MODE", meaning="1 keeps outputs on the inputs' device", basis="source"),
    Variable(name="TORCH_NEURONX_NEURONX_CC_TIMEOUT", meaning="seconds until a compile is ended", basis="source"),
    Variable(
        name="NEURON_VISIBLE_DEVICES",
        meaning="seen in a fork of vllm-neuron; not a variable of the runtime",
        advice="set NEURON_RT_VISIBLE_CORES, which the runtime reads",
        basis="field",
    ),
    Variable(name="NEURON_PROCESS_TAG", meaning="a name for this process in neuron-monitor"),
    Variable(
        name="NEURON_RT_LOG_LEVEL_TDRV", meaning="how much the runtime's device layer tells; info: memory by graph"
    ),
    Variable(name="NEURON_RT_LOG_LEVEL_NMGR", meaning="how much the runtime's manager tells"),
    Variable(name="NEURON_RT_ALLOW_LEGACY_NEFF", meaning="set by importing torch_neuronx", basis="source"),
    Variable(name="NEURON_RT_DBG_ZEROCOPY", meaning="set by importing torch_neuronx", basis="source"),
    Variable(name="TORCH_NEURONX_ENABLE_ASYNC_NRT", meaning="set by importing torch_neuronx", basis="source"),
    Variable(name="TORCH_NEURONX_MLIR_ATEN_OPS", meaning="set by importing torch_neuronx", basis="source"),
    Variable(name="TORCH_NEURONX_ENABLE_CONCATENATION", meaning="whether eager operations are joined", basis="source"),
    Variable(name="TORCH_NEURONX_ENABLE_PROLOGUE", meaning="1 folds views into the next operation", basis="source"),
    Variable(name="NKI_COMPILE_CACHE_URL", meaning="where compiled kernels are kept", basis="field"),
)

KNOWN: dict[str, Variable] = {variable.name: variable for variable in _ALL}


def describe(name: str) -> Variable | None:
    """Return what is known of a variable, None where nothing is."""
    return KNOWN.get(name)


def nearest(name: str) -> str | None:
    """Return the known variable a name may have been meant for, None where none is close."""
    close = difflib.get_close_matches(name, KNOWN, n=1, cutoff=0.8)
    return close[0] if close else None
