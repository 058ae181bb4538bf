"""What can be told of variables that may have been set too late: after torch_neuronx read them.

Changes of the environment leave no trace of when they were made. What a process began with can be read, and whether
torch_neuronx is imported; what lies between is said to be unknown.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from workbench.doctor_report import Line

SET_BY_IMPORT: frozenset[str] = frozenset(
    (
        "NEURON_LAUNCH_BLOCKING",
        "NEURON_RT_ALLOW_LEGACY_NEFF",
        "NEURON_RT_DBG_ZEROCOPY",
        "TORCH_NEURONX_ENABLE_ASYNC_NRT",
        "TORCH_NEURONX_ENABLE_STACK_TRACE",
        "TORCH_NEURONX_FALLBACK_ONLY_FOR_UNIMPLEMENTED_OPS",
        "TORCH_NEURONX_MLIR_ATEN_OPS",
        "TORCH_NEURONX_RETAIN_DEVICE_MODE",
    )
)
"""Variables that importing torch_neuronx sets where they are not set (read in a source tree of April 2026)."""


def timing_lines(initial: Mapping[str, str] | None, current: Mapping[str, str], *, is_imported: bool) -> Iterator[Line]:
    """Give a line on whether the variables were set in time, as far as that can be told.

    torch_neuronx reads its variables when it is imported (documented). What was in the environment when the process
    began was in time; what came later may have come before or after the import, which cannot be seen.

    Args:
        initial: variables the process began with, None where the system does not tell.
        current: variables now.
        is_imported: whether torch_neuronx is imported in this process.
    """
    topic, name = "Variables of the Neuron software", "set in time"
    if not is_imported:
        found = "torch_neuronx is not imported in this process: what is set now will count"
        yield Line(topic=topic, name=name, state="ok", found=found, basis="documented")
        return
    if initial is None:
        found = "torch_neuronx is imported, and this system does not tell what variables a process began with: unknown"
        advice = "set variables before the process starts"
        yield Line(topic=topic, name=name, state="note", found=found, advice=advice, basis="inferred")
        return
    changed = sorted(one for one in {*initial, *current} if initial.get(one) != current.get(one))
    own = [one for one in changed if one in SET_BY_IMPORT and one not in initial]
    for one in (one for one in changed if one not in own):
        was, now = (repr(values[one]) if one in values else "not set" for values in (initial, current))
        yield Line(
            topic=topic,
            name=one,
            state="note",
            found=f"{now} now, {was} when this process began, and torch_neuronx is imported: set before the import it "
            "counts, set after it does nothing; which of both cannot be seen from here",
            advice="set it in the shell, or before anything imports torch, and start the process anew",
            basis="inferred",
        )
    if len(own) == len(changed):
        rest = f"; {', '.join(own)} came with the import itself" if own else ""
        found = f"every variable was set before this process began{rest}"
        yield Line(topic=topic, name=name, state="ok", found=found, basis="inferred" if own else "measured")
