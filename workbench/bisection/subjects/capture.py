"""Captures what Dynamo hands to a backend: every graph of one call as text and values, apart from the user's objects.

The call is made once, on copies, with the real numbers; each value a later cut could need is noted as it comes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from safetensors.torch import save_file
from torch import Tensor, fx, nn

from workbench.bisection.subjects.node_text import function_text, graph_node, literal
from workbench.bisection.subjects.program import (
    MOST_EMBEDDED,
    ConstantValue,
    GraphNode,
    ProgramGraph,
    TensorValue,
    Value,
)
from workbench.captures import as_float64
from workbench.errors import PlanError, TargetCrash
from workbench.probes.observed_call import copy_call, quiet_process

VALUES_BYTES = 256 << 20
"""Floating values kept exactly, per graph; beyond that they are made up again with the same mean and deviation."""

_SAVABLE = {
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16,
    torch.float32, torch.float64, torch.float8_e4m3fn, torch.float8_e5m2, torch.complex64,
}  # fmt: skip


class CapturedCall:
    """What one call showed.

    Attributes:
        graphs: in the order they ran.
        values: one safetensors file per graph.
    """

    def __init__(self, graphs: Sequence[ProgramGraph], values: Sequence[Path]) -> None:
        self.graphs, self.values = tuple(graphs), tuple(values)


def capture(
    target: Callable[..., object],
    args: Sequence[object],
    kwargs: Mapping[str, object] | None = None,
    *,
    folder: Path,
    module: nn.Module | None = None,
    grad: bool | None = None,
) -> CapturedCall:
    """Return every graph Dynamo captures of a call.

    Args:
        target: module, bound method or callable.
        args: positional arguments; copied.
        kwargs: keyword arguments; copied.
        folder: where the values are stored; must exist.
        module: root of the module paths, for a target that wraps one.
        grad: whether gradients are recorded; as it is now when None.

    Raises:
        PlanError: no graph was captured, or one holds what cannot be written as a program.
        TargetCrash: the call raises, with Dynamo or without.
    """
    call = copy_call(target, args, kwargs or {}, module=module)
    root = _path_of(module, target)
    recorded: list[tuple[ProgramGraph, dict[str, Tensor]]] = []

    def backend(graph: fx.GraphModule, _: Sequence[Tensor]) -> Callable[..., object]:
        place = len(recorded)
        recorded.append((ProgramGraph(nodes=(), values={}), {}))
        seen = False

        def run(*inputs: object) -> object:
            nonlocal seen
            if seen:
                return graph.forward(*inputs)
            seen = True
            recorder = _Recorder(graph)
            output = recorder.run(*inputs)
            recorded[place] = (_program_graph(graph, recorder, root), recorder.tensors)
            return output

        return run

    torch._dynamo.reset()
    try:
        with quiet_process(echo=False), torch.set_grad_enabled(torch.is_grad_enabled() if grad is None else grad):
            torch.compile(call.target, backend=backend, dynamic=False)(*call.args, **call.kwargs)
    except PlanError:
        raise
    except Exception as error:
        raise TargetCrash(
            f"the call raised {type(error).__name__} while its graphs were captured: {error}\n"
            "Call it once without torch.compile; where that works, `workbench breaks` says what Dynamo meets."
        ) from error
    finally:
        torch._dynamo.reset()
    filled = [(graph, tensors) for graph, tensors in recorded if graph.nodes]
    if not filled:
        raise PlanError(
            "expected at least one captured graph to narrow, found none: Dynamo left the whole call to Python. "
            "`workbench breaks` says why."
        )
    paths: list[Path] = []
    for number, (_, tensors) in enumerate(filled):
        paths.append(folder / f"values-{number}.safetensors")
        save_file(tensors, str(paths[-1]))
    return CapturedCall([graph for graph, _ in filled], paths)


class _Recorder(fx.Interpreter):
    """Runs a graph and notes what every name held, before anything changes it."""

    def __init__(self, graph: fx.GraphModule) -> None:
        super().__init__(graph, garbage_collect_values=True)
        self.values: dict[str, Value] = {}
        self.tensors: dict[str, Tensor] = {}
        self.grad_enabled: dict[str, bool] = {}
        self._bytes = 0

    def run_node(self, n: fx.Node) -> object:
        self.grad_enabled[n.name] = torch.is_grad_enabled()
        result = super().run_node(n)
        if n.op != "output":
            self._note(n.name, result)
        return result

    def _note(self, name: str, value: object) -> None:
        if isinstance(value, Tensor):
            if value.layout is torch.strided:
                self.values[name] = self._tensor(name, value)
        elif isinstance(value, (tuple, list)) and any(isinstance(item, Tensor) for item in value):
            parts = []
            for index, item in enumerate(cast("Sequence[object]", value)):
                part = f"{name}__{index}"
                self._note(part, item)
                parts.append(part)
            self.values[name] = ConstantValue(text=f"({', '.join(parts)},)", parts=tuple(parts))
        else:
            text = literal(value)
            if text is not None:
                self.values[name] = ConstantValue(text=text)

    def _tensor(self, name: str, value: Tensor) -> TensorValue:
        host = value.detach().to("cpu")
        floating = value.dtype.is_floating_point or value.dtype.is_complex
        known = host.dtype in _SAVABLE
        nbytes = host.numel() * host.element_size()
        if known and (not floating or self._bytes + nbytes <= VALUES_BYTES):
            self.tensors[name] = host.clone(memory_format=torch.contiguous_format)
            self._bytes += nbytes if floating else 0
        facts: dict[str, Any] = {"raw": not known}
        if known and host.numel():
            facts = _facts(host, floating=floating)
        return TensorValue(
            shape=tuple(int(size) for size in value.shape),
            stride=tuple(int(step) for step in value.stride()),
            dtype=str(value.dtype).removeprefix("torch."),
            device=str(value.device),
            requires_grad=value.requires_grad,
            parameter=isinstance(value, nn.Parameter),
            leaf=value.is_leaf,
            **facts,
        )


def _facts(host: Tensor, *, floating: bool) -> dict[str, Any]:
    """Return what made-up values of a tensor must keep to."""
    if floating:
        wide = as_float64(host)
        finite = wide[torch.isfinite(wide)]
        return {"mean": float(finite.mean()), "std": float(finite.std(correction=0))} if finite.numel() else {}
    plain = host.to(torch.int64)
    items = tuple(plain.reshape(-1).tolist()) if host.numel() <= MOST_EMBEDDED else None
    return {"low": int(plain.min()), "high": int(plain.max()), "items": items}


def _program_graph(graph: fx.GraphModule, recorder: _Recorder, root: str) -> ProgramGraph:
    nodes: list[GraphNode] = []
    functions: dict[str, str] = {}
    outputs: tuple[str, ...] = ()
    begin = next(iter(recorder.grad_enabled.values()), True)
    for node in graph.graph.nodes:
        if node.op == "output":
            outputs = tuple(used.name for used in node.all_input_nodes)
        elif node.op == "get_attr":
            held = _attribute(graph, str(node.target))
            if isinstance(held, fx.GraphModule):
                functions[node.name] = function_text(node.name, held)
        elif node.op != "placeholder" and node.target is not torch._C._set_grad_enabled:
            nodes.append(graph_node(node, grad_enabled=recorder.grad_enabled[node.name], root=root))
    missing = {
        name for node in nodes for name in node.uses if name not in recorder.values and name not in functions
    } - {node.name for node in nodes if node.opens}
    if missing:
        raise PlanError(
            f"cannot cut the graph at {', '.join(sorted(missing)[:3])}: its value is neither a tensor nor a constant"
        )
    return ProgramGraph(
        nodes=tuple(nodes), values=recorder.values, functions=functions, outputs=outputs, grad_enabled=begin
    )


def _attribute(graph: fx.GraphModule, path: str) -> object:
    value: object = graph
    for part in path.split("."):
        value = getattr(value, part)
    return value


def _path_of(module: nn.Module | None, target: object) -> str:
    """Return the path of the root of the module names below the target, with a dot at its end; "" for itself."""
    owner = target if isinstance(target, nn.Module) else getattr(target, "__self__", None)
    if module is None or not isinstance(owner, nn.Module):
        return ""
    return next((f"{name}." for name, one in owner.named_modules() if one is module and name), "")
