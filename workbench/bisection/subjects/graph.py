"""A captured graph by layer, by module and by node: the ladder on which a failure is narrowed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from workbench.bisection.subjects.base import Subject, SubjectKind, WrittenSubject
from workbench.bisection.subjects.program import ProgramGraph, extract, program_text
from workbench.errors import PlanError

LEVELS: tuple[str, ...] = ("layers", "modules", "nodes")
"""Coarse to fine."""


class GraphSubject:
    """Some nodes of a captured graph, grouped.

    Args:
        graph: the whole.
        values: safetensors file with the tensors of the captured run, by name; None when there is none.
        level: "layers" groups by the layer a node belongs to, "modules" by its innermost module, "nodes" not at all.
        chosen: indices of the nodes that take part; every one when None.

    Raises:
        PlanError: no such level.
    """

    kind: SubjectKind = "program"

    def __init__(
        self,
        graph: ProgramGraph,
        values: Path | None,
        *,
        level: str = "nodes",
        chosen: Sequence[int] | None = None,
    ) -> None:
        if level not in LEVELS:
            raise PlanError(f"level: expected one of {', '.join(LEVELS)} for a captured graph, found {level!r}")
        self.graph, self.level, self.values = graph, level, values
        taking_part = range(len(graph.nodes)) if chosen is None else chosen
        groups: dict[str, list[int]] = {}
        module = ""
        for index in taking_part:
            node = graph.nodes[index]
            if not node.is_item:
                continue
            # What runs between two modules goes with the module before it.
            module = node.module or module
            name = node.title if level == "nodes" else layer_of(module) if level == "layers" else module
            groups.setdefault(name or "(outside any module)", []).append(index)
        self.items = tuple(groups)
        self._groups = tuple(tuple(indices) for indices in groups.values())

    def nodes(self, kept: Sequence[int]) -> tuple[int, ...]:
        """Return the indices of the nodes in some of the items, ascending."""
        return tuple(sorted(index for item in kept for index in self._groups[item]))

    def content(self, kept: Sequence[int]) -> str:
        """Return the program of the items kept."""
        return program_text(self.graph, extract(self.graph, self.nodes(kept)))

    def write(self, kept: Sequence[int], folder: Path) -> WrittenSubject:
        """Write the program of the items kept as `program.py`."""
        file = folder / "program.py"
        file.write_text(self.content(kept), encoding="utf-8")
        return WrittenSubject(kind="program", file=file, operations=self.operations(kept), values=self.values)

    def operations(self, kept: Sequence[int]) -> tuple[str, ...]:
        """Return the operations of the items kept, in order."""
        return tuple(self.graph.nodes[index].operation for index in self.nodes(kept))

    def refined(self, level: str, kept: Sequence[int]) -> Subject:
        """Return the nodes of the items kept, grouped at another level."""
        return GraphSubject(self.graph, self.values, level=level, chosen=self.nodes(kept))


def layer_of(module: str) -> str:
    """Return the layer a module belongs to: its path up to the first number, else its first part."""
    parts = module.split(".")
    number = next((position for position, part in enumerate(parts) if part.isdigit()), None)
    return parts[0] if number is None else ".".join(parts[: number + 1])
