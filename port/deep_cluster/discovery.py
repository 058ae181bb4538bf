"""Finds the Neuron devices of this machine: neuron-ls first, then the driver's tree, then the device nodes.

Reads files and runs neuron-ls once; imports no torch, starts no runtime and takes no core.
"""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path

from port.deep_cluster.machine import Machine
from port.deep_cluster.neuron_ls import TOOLS_FOLDER, find_tool, run_tool
from port.deep_cluster.sysfs import nodes_only, read_tree
from port.deep_cluster.visible_cores import logical_nc_config
from port.environment import ENV, Environment

ROOT = Path("/")


def discover(
    *, root: Path | str | None = None, environment: Environment | None = None, limit_s: float = 20.0
) -> Machine:
    """Return the Neuron devices of this machine, looked for afresh; without any, the machine says why.

    Args:
        root: another file system to look in; neuron-ls is then looked for below it, and on the PATH of `environment`
            where that is given too.
        environment: other variables than those of this process.
        limit_s: seconds neuron-ls may take.
    """
    base = Path(root) if root is not None else ROOT
    variables = environment or ENV
    # A made-up file system must not be described by the tool of the machine it lies on.
    path = variables.raw("PATH") if root is None or environment is not None else None
    tool = find_tool(path, root=base)
    said = run_tool(tool, limit_s=limit_s) if tool is not None else None
    if said is not None and said.is_available and said.instance_type:
        return said
    try:
        lnc = logical_nc_config(variables)
    except ValueError:
        lnc = None  # told by `visible_cores`; the default size is assumed until then
    found = read_tree(base, lnc=lnc) or nodes_only(base)
    if said is not None and said.is_available:
        # Older tools do not tell the instance; the driver does.
        return said if found is None else dataclasses.replace(said, instance_type=found.instance_type)
    if said is None:
        reason = f"neuron-ls is neither on PATH nor in {TOOLS_FOLDER}"
        return found or Machine(
            source="none", reason=f"no Neuron device: no driver tree and no /dev/neuron*; {reason}", cause="no_device"
        )
    if found is None:
        return said
    return dataclasses.replace(found, notes=(*found.notes, f"neuron-ls gave no list: {said.reason}"))


@functools.cache
def this_machine() -> Machine:
    """Return the Neuron devices of this machine, looked for once in a process; `forget_machine` looks again."""
    return discover()


def forget_machine() -> None:
    """Forget what was found, so that it is looked for again."""
    this_machine.cache_clear()
