"""A Dynamo backend that counts what it is given: nodes, operations, guards, recompiles, and which modules ran where.

A compiled graph may serve many modules (four equal layers share one), so modules are noted when a graph runs, not only
when it is compiled.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import cast

import torch
from torch import nn
from torch._guards import CompileContext

from workbench.probes.break_log import original_name
from workbench.probes.user_code import shown_path
from workbench.records.graphs import CapturedGraph, Recompile

_CALLS = ("call_function", "call_method", "call_module")
_PATH = re.compile(r"""^L\[['"](?P<name>.+?)['"]\](?P<rest>.*)$""", re.DOTALL)
_STEP = re.compile(r"""\.?_modules\[['"](?P<key>[^'"]+)['"]\]|\.(?P<attribute>\w+)|\[(?P<index>\d+)\]""")


@dataclass(slots=True, kw_only=True)
class _Graph:
    compile_id: str
    node_count: int
    op_counts: tuple[tuple[str, int], ...]
    sources: tuple[str, ...]
    modules: dict[str, None] = field(default_factory=dict[str, None])
    resolved: set[tuple[CodeType, int]] = field(default_factory=set[tuple[CodeType, int]])


class GraphCapture:
    """Compiles with another backend and keeps a record of every graph.

    Args:
        backend: name of the Dynamo backend that does the work.
        names: id of a module to its path, as in `ObservedCall.names`.
    """

    def __init__(self, backend: str, names: Mapping[int, str]) -> None:
        self._compile = cast("Callable[..., Callable[..., object]]", torch._dynamo.lookup_backend(backend))
        self._names = names
        self._graphs: list[_Graph] = []
        self._guards: dict[str, int] = {}
        self._failures: dict[tuple[CodeType, str], None] = {}

    def __call__(self, graph: torch.fx.GraphModule, inputs: Sequence[torch.Tensor]) -> Callable[..., object]:
        """Record one graph and return its compiled form."""
        calls = [node for node in graph.graph.nodes if node.op in _CALLS]
        sources: dict[str, None] = {}
        for node in calls:
            stack = node.meta.get("nn_module_stack") or {}
            sources.update(dict.fromkeys(str(path) for path, _kind in stack.values()) if stack else {"": None})
        entry = _Graph(
            compile_id=str(CompileContext.current_compile_id()),
            node_count=len(calls),
            op_counts=tuple(Counter(operation_name(node) for node in calls).most_common()),
            sources=tuple(sources),
        )
        self._graphs.append(entry)
        compiled = self._compile(graph, inputs)

        def run(*values: object) -> object:
            self._note_modules(entry)
            return compiled(*values)

        return run

    def count_guards(self, guards: Sequence[object]) -> None:
        """Take the guards of the frame compiled just now."""
        self._guards[str(CompileContext.current_compile_id())] = len(guards)

    def note_failure(self, failure: object) -> None:
        """Take a guard that failed; Dynamo calls this when it is about to compile a frame again."""
        code = getattr(failure, "orig_code", None)
        if isinstance(code, CodeType):
            reason = str(getattr(failure, "reason", "")).partition("\n")[0].strip()
            self._failures.setdefault((code, reason))

    def graphs(self) -> list[CapturedGraph]:
        """Return the graphs in order of compilation."""
        return [
            CapturedGraph(
                index=index,
                node_count=entry.node_count,
                op_counts=entry.op_counts,
                modules=tuple(entry.modules),
                guard_count=self._guards.get(entry.compile_id),
            )
            for index, entry in enumerate(self._graphs)
        ]

    def recompiles(self) -> list[Recompile]:
        """Return each frame and failed guard once, in order of appearance.

        What goes on after a break is compiled as a function of its own; it goes by the name of the user's function, and
        by the line where it begins.
        """
        return [
            Recompile(
                function=original_name(code.co_name),
                file=shown_path(code.co_filename),
                line=code.co_firstlineno,
                reason=reason,
            )
            for code, reason in self._failures
        ]

    def _note_modules(self, entry: _Graph) -> None:
        frame = _program_frame()
        if frame is None:
            return
        variables = frame.f_locals
        for source in entry.sources:
            name = self._name_of(source, variables) if source else self._owner_name(frame)
            if name is not None:
                entry.modules.setdefault(name)

    def _name_of(self, source: str, variables: Mapping[str, object]) -> str | None:
        found = _PATH.match(source)
        value: object = variables.get(found.group("name")) if found else None
        for step in _STEP.finditer(found.group("rest") if found else ""):
            if not isinstance(value, nn.Module):
                return None
            key = step.group("key") or step.group("attribute") or step.group("index")
            value = value._modules.get(key, getattr(value, key, None))
        return self._names.get(id(value))

    def _owner_name(self, frame: FrameType | None) -> str | None:
        while frame is not None:
            name = self._names.get(id(frame.f_locals.get("self")))
            if name is not None:
                return name
            frame = frame.f_back
        return None


def operation_name(node: torch.fx.Node) -> str:
    """Return a call node's operation as people write it: `linear`, `Tensor.view`, `aten.add.Tensor`, a class name."""
    if node.op == "call_method":
        return f"Tensor.{node.target}"
    if node.op == "call_module":
        return str(node.target)
    if isinstance(node.target, torch._ops.OpOverload):
        return str(node.target)
    return str(getattr(node.target, "__name__", node.target))


def _program_frame() -> FrameType | None:
    # Above us: this module, then Dynamo's wrappers, then the frame of the program that called the graph.
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        file = frame.f_code.co_filename
        if file != __file__ and "torch/_dynamo" not in file and not frame.f_code.co_name.startswith("__compiled"):
            return frame
        frame = frame.f_back
    return None
