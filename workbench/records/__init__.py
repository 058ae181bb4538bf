"""The typed records a journal holds. Standard library only, so that a journal can be read anywhere.

Adding a record costs a class in one of these files and a line in `KINDS`.
"""

from collections.abc import Mapping
from typing import cast

from workbench.records.base import Json, Record, Stamp, UnknownRecord, from_plain, to_plain
from workbench.records.compiling import BisectionResult, CompileTrial, FailureSignature
from workbench.records.graphs import CapturedGraph, GraphBreak, GraphSummary, Recompile, SourceFrame
from workbench.records.memory import Allocation, MemoryPeak, MemorySample
from workbench.records.steps import CheckRow, Fallback, Generated, Note, StepFailure, StepTiming
from workbench.records.tensors import DiscreteFlip, Divergence, TensorDiff, TensorEdit, TensorSummary

KINDS: dict[str, type[Record]] = {
    record.kind: record
    for record in (
        Allocation,
        BisectionResult,
        CapturedGraph,
        CheckRow,
        CompileTrial,
        DiscreteFlip,
        Divergence,
        Fallback,
        Generated,
        GraphBreak,
        GraphSummary,
        MemoryPeak,
        MemorySample,
        Note,
        Recompile,
        StepFailure,
        StepTiming,
        TensorDiff,
        TensorEdit,
        TensorSummary,
    )
}


def record_from_json(line: Mapping[str, object], *, where: str = "") -> Record:
    """Return the record a JSON object stands for; an unknown kind is kept as `UnknownRecord`.

    Raises:
        JournalError: a known kind whose fields cannot be read.
    """
    kind = str(line.get("kind"))
    body = {name: value for name, value in line.items() if name != "kind"}
    if kind not in KINDS:
        stamp = body.get("stamp")
        known = Stamp()
        if isinstance(stamp, Mapping):
            known = from_plain(Stamp, cast("Mapping[str, object]", stamp), where=where)
        return UnknownRecord(stamp=known, unknown_kind=kind, body=body)
    return from_plain(KINDS[kind], body, where=where)


__all__ = [
    "KINDS",
    "Allocation",
    "BisectionResult",
    "CapturedGraph",
    "CheckRow",
    "CompileTrial",
    "DiscreteFlip",
    "Divergence",
    "FailureSignature",
    "Fallback",
    "Generated",
    "GraphBreak",
    "GraphSummary",
    "Json",
    "MemoryPeak",
    "MemorySample",
    "Note",
    "Recompile",
    "Record",
    "SourceFrame",
    "Stamp",
    "StepFailure",
    "StepTiming",
    "TensorDiff",
    "TensorEdit",
    "TensorSummary",
    "UnknownRecord",
    "record_from_json",
    "to_plain",
]
