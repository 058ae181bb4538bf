"""One node of a captured graph as text: the statement, the operation and module people know it by, its source line."""

from __future__ import annotations

import builtins
import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePath
from typing import cast

import torch
from torch import fx
from torch.fx.graph import magic_methods
from torch.fx.node import _get_qualified_name

from workbench.bisection.subjects.program import GraphNode
from workbench.errors import PlanError

_ROOT = re.compile(r"^[LG]\[['\"][^'\"]*['\"]\]\.?")
_KEY = re.compile(r"\.?_modules\[['\"]([^'\"]+)['\"]\]|\[['\"]?([^'\"\]]+)['\"]?\]")
_STACK_LINE = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')


def graph_node(node: fx.Node, *, grad_enabled: bool, root: str = "") -> GraphNode:
    """Return a call node as data.

    Args:
        node: a function or method call.
        grad_enabled: whether gradients were recorded when it ran.
        root: leading part of module paths to leave out.

    Raises:
        PlanError: it cannot be written as a statement.
    """
    name = getattr(node.target, "__name__", "")
    opens = node.name if name.startswith("_enter_") else ""
    closes = node.all_input_nodes[0].name if name.startswith("_exit_") and node.all_input_nodes else ""
    text, has_result = call_text(node)
    return GraphNode(
        name=node.name,
        operation=operation_of(node),
        module=module_of(node).removeprefix(root),
        text=text,
        uses=tuple(dict.fromkeys(used.name for used in node.all_input_nodes)),
        has_result=has_result,
        source=_source(node),
        grad_enabled=grad_enabled,
        opens=opens,
        closes=closes,
    )


def operation_of(node: fx.Node) -> str:
    """Return a call's operation as people write it: `linear`, `view`, `aten.add.Tensor`."""
    if node.op == "call_method":
        return str(node.target)
    if isinstance(node.target, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        return str(node.target)
    return str(getattr(node.target, "__name__", node.target))


def module_of(node: fx.Node) -> str:
    """Return the path of the innermost module a node came from, without the name of the root; "" for none."""
    stack = cast("Mapping[str, tuple[str, object]]", node.meta.get("nn_module_stack") or {})
    if not stack:
        return ""
    path = str(list(stack.values())[-1][0])
    path = _ROOT.sub("", path)
    return _KEY.sub(lambda found: f".{found[1] or found[2]}", path).strip(".")


def _source(node: fx.Node) -> str:
    lines = list(_STACK_LINE.finditer(str(node.meta.get("stack_trace") or "")))
    return f"{PurePath(lines[-1]['file']).name}:{lines[-1]['line']}" if lines else ""


def call_text(node: fx.Node) -> tuple[str, bool]:
    """Return the node as an expression, or as a statement and False.

    Raises:
        PlanError: it calls something outside torch, or an argument has no text.
    """
    if node.op == "call_method":
        first, *rest = [_argument(value, node) for value in node.args]
        return f"{first}.{node.target}({_joined(rest, node)})", True
    if node.op != "call_function":
        raise PlanError(f"{node.name}: expected a function or a method, found {node.op} {node.target}")
    target = cast("Callable[..., object]", node.target)
    texts = [_argument(value, node) for value in node.args]
    name = getattr(target, "__name__", "")
    if getattr(target, "__module__", "") == "_operator" and not node.kwargs:
        if name == "setitem":
            return f"{texts[0]}[{texts[1]}] = {texts[2]}", False
        if name in magic_methods:
            return magic_methods[name].format(*texts), True
    return f"{_target_text(target, node)}({_joined(texts, node)})", True


def _target_text(target: Callable[..., object], node: fx.Node) -> str:
    if getattr(builtins, getattr(target, "__name__", ""), None) is target:
        return str(target.__name__)
    text = _get_qualified_name(target).replace("_operator.", "operator.")
    if text.split(".")[0] not in ("torch", "operator", "math") and "." in text:
        raise PlanError(
            f"{node.name} calls {text}, which is no function of torch: a program that imports torch alone cannot call "
            "it. Bisect a module that leaves it out, or write the graph to a file and give a command that compiles it."
        )
    return text


def _joined(texts: Sequence[str], node: fx.Node) -> str:
    return ", ".join([*texts, *(f"{name}={_argument(value, node)}" for name, value in node.kwargs.items())])


def _argument(value: object, node: fx.Node) -> str:
    if isinstance(value, fx.Node):
        return value.name
    if isinstance(value, tuple):
        inner = ", ".join(_argument(item, node) for item in value)
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    if isinstance(value, list):
        return f"[{', '.join(_argument(item, node) for item in value)}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key!r}: {_argument(item, node)}" for key, item in value.items()) + "}"
    if isinstance(value, slice):
        return f"slice({', '.join(_argument(part, node) for part in (value.start, value.stop, value.step))})"
    text = literal(value)
    if text is None:
        raise PlanError(f"{node.name}: an argument of {type(value).__name__} cannot be written as text: {value!r}")
    return text


def literal(value: object) -> str | None:
    """Return a constant as an expression, None for what has none."""
    if value is None or value is Ellipsis or isinstance(value, (bool, int, str)):
        return "..." if value is Ellipsis else repr(value)
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else f"float({str(value)!r})"
    if isinstance(value, complex):
        return repr(value)
    if isinstance(value, (torch.SymInt, torch.SymBool)):
        return repr(int(value))
    if isinstance(value, torch.SymFloat):
        return literal(float(value))
    if isinstance(value, torch.device):
        return f"torch.device({str(value)!r})"
    if isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
        return str(value)
    if isinstance(value, (tuple, list)):
        parts = [literal(item) for item in cast("Sequence[object]", value)]
        if any(part is None for part in parts):
            return None
        inner = "".join(f"{part}, " for part in parts)
        return f"[{inner.rstrip(', ')}]" if isinstance(value, list) else f"({inner.rstrip()})"
    return None


def function_text(name: str, graph: fx.GraphModule) -> str:
    """Return an inner graph, such as the branch of a `cond`, as a function of its inputs."""
    inputs, lines = [], []
    for node in graph.graph.nodes:
        if node.op == "placeholder":
            inputs.append(node.name)
        elif node.op == "output":
            lines.append(f"    return {_argument(node.args[0], node)}")
        elif node.op == "get_attr":
            raise PlanError(f"{name}: an inner graph that holds {node.target} cannot be written as a program")
        else:
            text, has_result = call_text(node)
            lines.append(f"    {node.name} = {text}" if has_result else f"    {text}")
    return f"def {name}({', '.join(inputs)}):\n" + "\n".join(lines)
