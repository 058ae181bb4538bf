"""The part of `workbench show` for output of neuron-ls and neuron-monitor: a file, a folder, or what is piped in."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from port.deep_cluster.machine import Machine
from workbench.errors import PlanError
from workbench.exit_codes import ExitCode
from workbench.neuron_output import NeuronOutput, read_saved, recognise
from workbench.neuron_tables import core_table, device_table, machine_lines, runtime_table, stream_lines
from workbench.output import Output

STDIN = Path("-")
"""The path that stands for what is piped in, as in `neuron-ls --json-output | workbench show -`."""

_CHECKPOINT_FILES = ("*.safetensors", "*.safetensors.index.json", "config.json")


def find_outputs(path: Path) -> tuple[NeuronOutput, ...]:
    """Return what of the two tools a path holds; () where it is something else, a checkpoint for one.

    Raises:
        PlanError: what was piped in is the output of neither tool.
    """
    if path == STDIN:
        text = sys.stdin.read() if sys.stdin is not None else ""
        found = recognise(text)
        if found is None:
            first = next((line for line in text.splitlines() if line.strip()), "nothing")
            raise PlanError(
                f"show: expected output of `neuron-ls --json-output` or neuron-monitor on stdin; found {first[:80]!r}."
            )
        return (NeuronOutput(name="stdin", found=found),)
    if path.is_dir() and any(any(path.glob(pattern)) for pattern in _CHECKPOINT_FILES):
        return ()
    return read_saved(path)


def show_outputs(path: Path, outputs: Sequence[NeuronOutput], out: Output) -> ExitCode:
    """Show every output; 1 where one has no device, or counters that could not be read."""
    for position, output in enumerate(outputs):
        if position:
            out.line()
        is_listing = isinstance(output.found, Machine)
        out.line(f"{output.name}: output of {'neuron-ls' if is_listing else 'neuron-monitor'}")
        for line in _lines(output):
            out.line(line)
    out.put("path", str(path))
    out.put("outputs", [_plain(output) for output in outputs])
    return ExitCode.DIFFERENCES if any(map(_is_wrong, outputs)) else ExitCode.OK


def _lines(output: NeuronOutput) -> list[str]:
    found = output.found
    if isinstance(found, Machine):
        return [*machine_lines(found), *(["", str(device_table(found))] if found.devices else [])]
    tables = [str(runtime_table(found))] + ([str(core_table(found))] if core_table(found).rows else [])
    return [*stream_lines(found), *(line for table in tables for line in ("", table))]


def _plain(output: NeuronOutput) -> dict[str, object]:
    found = output.found
    head: dict[str, object] = {"name": output.name, "saved_exit_code": output.exit_code}
    if isinstance(found, Machine):
        return {**head, "tool": "neuron-ls", "machine": found.to_dict()}
    return {**head, "tool": "neuron-monitor", "stream": found.to_dict()}


def _is_wrong(output: NeuronOutput) -> bool:
    found = output.found
    return not found.is_available if isinstance(found, Machine) else bool(found.errors or found.unreadable)
