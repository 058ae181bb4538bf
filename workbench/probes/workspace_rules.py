"""What a NeuronCore needs beside the tensors an operation is given and makes: one table, each rule with its source.

On the dry placement the rules that hide memory add it for as long as their operation runs, as `Allocation` records
with role workspace, basis computed and the rule's name as their operation. The other rules describe memory that is
there as tensors and is recorded as such; they are here so that there is one place to look. Nothing in this table was
run on a device by this package: `basis` says where the knowledge comes from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

Basis = Literal["measured", "documented", "inferred"]

MOST_ELEMENTS_AT_ONCE = 32 * 1024 * 1024
"""Elements a weight is dequantised in at a time: 128 MiB as float32 (design, memory model)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workspace:
    """Memory one operation needs for as long as it runs.

    Attributes:
        rule: name of the rule.
        nbytes: how much.
        device: where, as in `neuron:0`.
    """

    rule: str
    nbytes: int
    device: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkspaceRule:
    """One row of the table.

    Attributes:
        name: short, as it stands in records.
        operations: schemas it holds for, as in `aten::index_select`; none where it is about tensors.
        effect: what happens, in words.
        figure: what it must reproduce.
        remedy: what avoids it.
        source: where it is written.
        basis: measured, documented or inferred there.
        hidden_bytes: bytes an operation needs beside its tensors, from its arguments; None where it hides nothing.
    """

    name: str
    operations: tuple[str, ...]
    effect: str
    figure: str
    remedy: str
    source: str
    basis: Basis
    hidden_bytes: Callable[[Sequence[Any]], int] | None = None


def _widened_table(args: Sequence[Any]) -> int:
    table = args[0]
    return 4 * table.numel() if isinstance(table, Tensor) and table.element_size() == 1 else 0


RULES: tuple[WorkspaceRule, ...] = (
    WorkspaceRule(
        name="8-bit table widened to 32 bits",
        operations=("aten::index_select", "aten::index"),
        effect="an index into a table of 8-bit elements widens the whole table: 4 bytes for each of its elements",
        figure="129280 x 5120 bf16 seen as bytes: 4.9 GiB for a table of 1.3 GB",
        remedy="F.embedding on a view of the same bytes as int32 or float16: nothing extra, the same bits",
        source="design/workbench.md, memory model",
        basis="documented",
        hidden_bytes=_widened_table,
    ),
    WorkspaceRule(
        name="weight dequantised at once",
        operations=(),
        effect="a weight made float32 in one piece, or all experts of a layer at once: 4 bytes for each element",
        figure="chunks of at most 32 Mi elements need 128 MiB at a time, one expert at a time, with the same bits",
        remedy="dequantise in chunks of rows, one expert at a time",
        source="design/workbench.md, memory model",
        basis="documented",
    ),
    WorkspaceRule(
        name="Engram scales gathered from all ranks",
        operations=(),
        effect="the scale table of an Engram layer, all-gathered and replicated: one full copy per Engram layer",
        figure="about 3 GB a layer at release size",
        remedy="keep only the scales of this rank's rows",
        source="design/workbench.md, memory model",
        basis="documented",
    ),
    WorkspaceRule(
        name="weights of one rank",
        operations=(),
        effect="what `workbench plan` adds up for one of 64 ranks stays resident",
        figure="16.4 GiB of 24 GB; 16.45 measured on a device by others",
        remedy="more ranks",
        source="design/workbench.md, memory model",
        basis="measured",
    ),
)

_BY_OPERATION: dict[str, tuple[WorkspaceRule, ...]] = {
    operation: tuple(rule for rule in RULES if operation in rule.operations)
    for operation in sorted({operation for rule in RULES for operation in rule.operations})
}


def workspaces(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Workspace]:
    """Return what an operation on a NeuronCore needs beside its tensors; nothing on any other device.

    Args:
        func: the operation (`torch._ops.OpOverload`).
        args: its positional arguments; the table of a lookup is the first.
        kwargs: its keyword arguments.
    """
    rules = _BY_OPERATION.get(func._schema.name)
    if rules is None or not args or not isinstance(args[0], Tensor) or args[0].device.type != "neuron":
        return []
    found = [(rule, rule.hidden_bytes(args)) for rule in rules if rule.hidden_bytes is not None]
    return [Workspace(rule=rule.name, nbytes=nbytes, device=str(args[0].device)) for rule, nbytes in found if nbytes]


def rule_named(name: str) -> WorkspaceRule | None:
    """Return the rule an allocation's operation names, None where it names an operation."""
    return next((rule for rule in RULES if rule.name == name), None)
