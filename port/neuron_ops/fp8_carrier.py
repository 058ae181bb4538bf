"""A Dynamo back end in which no fp8 tensor crosses the edge of a graph: they travel as bytes and are read at their use.

The compiler of trn2 refuses e4m3fn inputs unless a flag tells it otherwise (see `port/platform.py`). This is the way
round for a build that does not know the flag: every fp8 input, constant and output of the graph becomes uint8, and the
graph views it as fp8 inside. Views share memory, so results are the same bits, and an input that the graph writes to is
written to.

    register_backend()
    torch.compile(model, backend="deepinfer_neuron", dynamic=False)

Written to the documented interface of Dynamo's back ends; on a device it is inferred, not tried.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree

NAME = "deepinfer_neuron"

FP8_DTYPES = frozenset(
    {
        torch.float8_e4m3fn,
        torch.float8_e4m3fnuz,
        torch.float8_e5m2,
        torch.float8_e5m2fnuz,
        torch.float8_e8m0fnu,
    }
)

Compiled = Callable[..., Any]
Backend = Callable[[fx.GraphModule, list[Any]], Compiled]


def register_backend() -> None:
    """Make the name `deepinfer_neuron` known to `torch.compile` in this process; a second time changes nothing.

    What compiles the rewritten graph is the device's own back end, or `aot_eager` in host mode.
    """
    from torch._dynamo import list_backends, register_backend

    from port.platform import PLATFORM

    if NAME not in list_backends(exclude_tags=()):
        register_backend(carrier_backend("aot_eager" if PLATFORM.is_host else "neuron"), name=NAME)


def carrier_backend(inner: str | Backend) -> Backend:
    """Return a back end that rewrites a graph and has another one compile it.

    Args:
        inner: a name that Dynamo knows, or a back end.

    Raises:
        torch._dynamo.exc.InvalidBackend: at the first graph, where the name is not known.
    """

    def compile_graph(graph: fx.GraphModule, example_inputs: list[Any]) -> Compiled:
        from torch._dynamo import lookup_backend

        compiler = lookup_backend(inner) if isinstance(inner, str) else inner
        rewritten = carry_as_bytes(graph)
        outputs = _output_dtypes(graph)
        compiled = compiler(rewritten, [_as_bytes(value) for value in example_inputs])

        def run(*args: Any) -> Any:
            results = compiled(*(_as_bytes(value) for value in args))
            leaves, spec = pytree.tree_flatten(results)
            restored = [
                leaf.view(dtype) if dtype is not None else leaf for leaf, dtype in zip(leaves, outputs, strict=True)
            ]
            return pytree.tree_unflatten(restored, spec)

        return run

    return compile_graph


def carry_as_bytes(graph: fx.GraphModule) -> fx.GraphModule:
    """Return a graph that takes and gives uint8 wherever `graph` takes and gives fp8.

    Args:
        graph: as Dynamo hands it to a back end: nodes carry example values.

    Returns:
        A new graph module; constants and parameters that are fp8 are held as bytes in it. `graph` is unchanged.
    """
    rewritten = fx.GraphModule(graph, fx.Graph())
    copied: dict[fx.Node, fx.Node] = {}
    output = rewritten.graph.graph_copy(graph.graph, copied)
    old_output = next(node for node in graph.graph.nodes if node.op == "output")
    for old, node in list(copied.items()):
        node.meta = dict(old.meta)
        dtype = _dtype_of(old, graph)
        if dtype is not None and old.op in ("placeholder", "get_attr"):
            _read_at_use(rewritten, node, dtype)
    with_bytes = fx.map_arg(old_output.args[0], lambda old: _give_as_bytes(rewritten, copied[old], old))
    assert output is not None, "a graph of Dynamo gives something"
    rewritten.graph.output(with_bytes)
    rewritten.graph.lint()
    rewritten.recompile()
    return rewritten


def _read_at_use(module: fx.GraphModule, node: fx.Node, dtype: torch.dtype) -> None:
    """Have what used an fp8 input use a view of its bytes."""
    if node.op == "get_attr":
        _hold_as_bytes(module, str(node.target))
    with module.graph.inserting_after(node):
        view = module.graph.call_method("view", (node, dtype))
    view.meta = dict(node.meta)
    node.replace_all_uses_with(view, delete_user_cb=lambda user: user is not view)
    example = node.meta.get("example_value")
    node.meta = {key: value for key, value in node.meta.items() if key not in ("example_value", "val", "tensor_dict")}
    if isinstance(example, Tensor):
        node.meta["example_value"] = example.view(torch.uint8)


def _give_as_bytes(module: fx.GraphModule, node: fx.Node, old: fx.Node) -> fx.Node:
    if _dtype_of(old, None) is None and not _is_fp8_attribute(module, old):
        return node
    # The copy of an input that is handed on may have been replaced by a view of it, which is just its bytes.
    if old.op in ("placeholder", "get_attr"):
        return node
    view = module.graph.call_method("view", (node, torch.uint8))
    example = old.meta.get("example_value")
    if isinstance(example, Tensor):
        view.meta["example_value"] = example.view(torch.uint8)
    return view


def _is_fp8_attribute(module: fx.GraphModule, old: fx.Node) -> bool:
    return old.op == "get_attr" and _attribute(module, str(old.target)).dtype in FP8_DTYPES


def _dtype_of(node: fx.Node, module: fx.GraphModule | None) -> torch.dtype | None:
    """Return the fp8 dtype of what a node gives, None where it is no fp8 tensor."""
    value = node.meta.get("example_value", node.meta.get("val"))
    if value is None and node.op == "get_attr" and module is not None:
        value = _attribute(module, str(node.target))
    return value.dtype if isinstance(value, Tensor) and value.dtype in FP8_DTYPES else None


def _output_dtypes(graph: fx.GraphModule) -> list[torch.dtype | None]:
    output = next(node for node in graph.graph.nodes if node.op == "output")
    leaves, _ = pytree.tree_flatten(output.args[0])
    return [_dtype_of(leaf, graph) if isinstance(leaf, fx.Node) else None for leaf in leaves]


def _hold_as_bytes(module: fx.GraphModule, target: str) -> None:
    owner, _, name = target.rpartition(".")
    holder = module.get_submodule(owner)
    value = getattr(holder, name)
    if not isinstance(value, Tensor) or value.dtype not in FP8_DTYPES:
        return
    delattr(holder, name)
    holder.register_buffer(name, value.detach().view(torch.uint8), persistent=False)


def _attribute(module: fx.GraphModule, target: str) -> Any:
    value: Any = module
    for part in target.split("."):
        value = getattr(value, part)
    return value


def _as_bytes(value: Any) -> Any:
    return value.view(torch.uint8) if isinstance(value, Tensor) and value.dtype in FP8_DTYPES else value


def fp8_edges(graph: fx.GraphModule, example_inputs: Sequence[Any]) -> tuple[str, ...]:
    """Return the names of inputs and outputs of a graph that are fp8; none after `carry_as_bytes`."""
    names = [
        node.name
        for node, value in zip(
            (node for node in graph.graph.nodes if node.op == "placeholder"), example_inputs, strict=True
        )
        if isinstance(value, Tensor) and value.dtype in FP8_DTYPES
    ]
    output = next(node for node in graph.graph.nodes if node.op == "output")
    leaves, _ = pytree.tree_flatten(output.args[0])
    return (*names, *(leaf.name for leaf in leaves if isinstance(leaf, fx.Node) and _dtype_of(leaf, graph) is not None))
