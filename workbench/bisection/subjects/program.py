"""A captured graph as data, and any part of it as a Python program that imports torch alone.

Every node is one statement in text; what a part needs from outside becomes an input with the shape, strides and dtype
that were seen in the captured run. Text only; needs no torch. How a graph is captured is in `capture`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

MOST_EMBEDDED = 4096
"""Integers of an input that are written into the program."""

_LINE = 118


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorValue:
    """A tensor a program may need as an input.

    Attributes:
        shape, stride: as in the captured run.
        dtype: torch spelling, without `torch.`.
        device: as torch prints it.
        requires_grad: as in the captured run.
        parameter: it was an `nn.Parameter`.
        leaf: it had no history.
        mean, std: of a floating tensor; what is made up in its place has the same.
        low, high: smallest and largest value of an integer tensor.
        items: values of a small integer tensor in row-major order, None otherwise.
        raw: a dtype of bits that has no values; zeros stand for it.
    """

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: str
    device: str = "cpu"
    requires_grad: bool = False
    parameter: bool = False
    leaf: bool = True
    mean: float = 0.0
    std: float = 1.0
    low: int = 0
    high: int = 0
    items: tuple[int, ...] | None = None
    raw: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstantValue:
    """A value that is no tensor, as a literal, or as a tuple of other values.

    Attributes:
        text: Python expression; may speak of `parts`.
        parts: names of tensors in it.
    """

    text: str
    parts: tuple[str, ...] = ()


Value = TensorValue | ConstantValue


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphNode:
    """One operation.

    Attributes:
        name: of its result, unique, an identifier.
        operation: as people write it: `linear`, `view`, `aten.add.Tensor`.
        module: path of the module it came from, "" for none.
        text: the expression, or the statement where it has no result.
        uses: names it reads.
        has_result: False for a statement.
        source: line of the user's that made it, as `file.py:12`, "" when unknown.
        grad_enabled: whether gradients were recorded when it ran.
        opens, closes: name of the context (autocast and the like) it enters or leaves, "" for an ordinary node.
    """

    name: str
    operation: str
    module: str
    text: str
    uses: tuple[str, ...]
    has_result: bool = True
    source: str = ""
    grad_enabled: bool = True
    opens: str = ""
    closes: str = ""

    @property
    def is_item(self) -> bool:
        """Whether the search may leave it out; contexts come and go with what they hold."""
        return not (self.opens or self.closes)

    @property
    def title(self) -> str:
        """Name, operation and module, for people."""
        return f"{self.name} = {self.operation}{f' in {self.module}' if self.module else ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramGraph:
    """A captured graph.

    Attributes:
        nodes: in order.
        values: what every name held in the captured run.
        functions: definitions of functions the nodes call by name, such as the branches of a `cond`.
        outputs: names the graph returns.
        grad_enabled: whether gradients were recorded when it began.
    """

    nodes: tuple[GraphNode, ...]
    values: Mapping[str, Value]
    functions: Mapping[str, str] = field(default_factory=dict[str, str])
    outputs: tuple[str, ...] = ()
    grad_enabled: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A part of a graph, ready to be written.

    Attributes:
        nodes: that are kept, with the contexts around them.
        inputs: tensors it takes, in order.
        constants: other values it needs, by name.
        outputs: names it returns: what nobody in it reads, or somebody outside does.
    """

    nodes: tuple[GraphNode, ...]
    inputs: Mapping[str, TensorValue]
    constants: Mapping[str, ConstantValue]
    outputs: tuple[str, ...]


def extract(graph: ProgramGraph, kept: Collection[int]) -> Program:
    """Return the part of a graph that consists of some of its nodes; the indices count all nodes."""
    chosen = set(kept)
    nodes = _with_contexts(graph, chosen)
    defined = {node.name for node in nodes}
    inputs: dict[str, TensorValue] = {}
    constants: dict[str, ConstantValue] = {}
    for node in nodes:
        for name in node.uses:
            if name not in defined and name not in graph.functions:
                _need(graph, name, inputs, constants)
    outside = {name for index, node in enumerate(graph.nodes) if index not in chosen for name in node.uses}
    inside = {name for node in nodes for name in node.uses}
    wanted = outside | set(graph.outputs)
    outputs = tuple(
        node.name
        for node in nodes
        if node.is_item and node.has_result and (node.name in wanted or node.name not in inside)
    )
    return Program(nodes=nodes, inputs=inputs, constants=constants, outputs=outputs)


def program_text(graph: ProgramGraph, program: Program) -> str:
    """Return a self-contained module: `INPUTS`, `program(...)` and `example_inputs()`; importing it runs nothing."""
    body: list[str] = [f"    {name} = {constant.text}" for name, constant in program.constants.items()]
    state = graph.grad_enabled
    for node in program.nodes:
        if node.grad_enabled != state:
            state = node.grad_enabled
            body.append(f"    torch._C._set_grad_enabled({state})")
        statement = f"    {node.name} = {node.text}" if node.has_result else f"    {node.text}"
        place = "  ".join(part for part in (node.module, node.source) if part)
        body.append(f"{statement}  # {place}" if place and len(statement) + len(place) < _LINE else statement)
    if state != graph.grad_enabled:
        body.append(f"    torch._C._set_grad_enabled({graph.grad_enabled})")
    body.append(f"    return ({''.join(name + ', ' for name in program.outputs).rstrip()})")
    text = "\n".join(body)
    called = [definition for name, definition in graph.functions.items() if _is_named(name, program)]
    whole = "\n\n\n".join([*called, f"def program({', '.join(program.inputs)}):\n{text}"])
    imports = [name for name in ("math", "operator") if f"{name}." in whole]
    heads = "".join(f"import {name}\n" for name in imports) + ("\n" if imports else "")
    inputs = "".join(f"    {name!r}: {_spec_text(value)},\n" for name, value in program.inputs.items())
    return (
        f"{heads}import torch\n\nGRAD_ENABLED = {graph.grad_enabled}\nINPUTS = {{\n{inputs}}}\n\n\n{whole}\n\n\n"
        + _EXAMPLE_INPUTS
    )


def _is_named(name: str, program: Program) -> bool:
    return any(name in node.uses for node in program.nodes)


def _with_contexts(graph: ProgramGraph, chosen: set[int]) -> tuple[GraphNode, ...]:
    """Return the chosen nodes and the contexts that hold one of them."""
    opened: dict[str, int] = {}
    needed: set[int] = set()
    for index, node in enumerate(graph.nodes):
        if node.opens:
            opened[node.opens] = index
        elif node.closes:
            begin = opened.pop(node.closes, None)
            if begin is not None and any(begin < one < index for one in chosen):
                needed |= {begin, index}
    # A context that is never left holds everything behind it.
    needed |= {begin for begin in opened.values() if any(one > begin for one in chosen)}
    return tuple(
        node for index, node in enumerate(graph.nodes) if (index in chosen and node.is_item) or index in needed
    )


def _need(graph: ProgramGraph, name: str, inputs: dict[str, TensorValue], constants: dict[str, ConstantValue]) -> None:
    value = graph.values[name]
    if isinstance(value, TensorValue):
        inputs.setdefault(name, value)
        return
    for part in value.parts:
        _need(graph, part, inputs, constants)
    constants.setdefault(name, value)


def _spec_text(value: TensorValue) -> str:
    fields: list[str] = [f'"dtype": torch.{value.dtype}', f'"shape": {value.shape}', f'"stride": {value.stride}']
    if value.device != "cpu":
        fields.append(f'"device": {value.device!r}')
    if value.raw:
        fields.append('"raw": True')
    elif value.items is not None and len(value.items) <= MOST_EMBEDDED:
        fields.append(f'"items": {list(value.items)}')
    elif value.dtype.startswith(("int", "uint", "bool")):
        fields.append(f'"range": ({value.low}, {value.high})')
    else:
        fields.append(f'"mean": {value.mean:.4g}, "std": {value.std:.4g}')
    flags = {"requires_grad": value.requires_grad, "parameter": value.parameter, "leaf": value.leaf}
    fields += [f'"{name}": {flag}' for name, flag in flags.items() if flag != (name == "leaf")]
    return "{" + ", ".join(fields) + "}"


_EXAMPLE_INPUTS = '''\
def example_inputs(exact=None, seed=0):
    """Return the inputs: the tensors of `exact` where it has them, made up ones of the same kind otherwise."""
    generator = torch.Generator().manual_seed(seed)
    return [_example(spec, (exact or {}).get(name), generator) for name, spec in INPUTS.items()]


def _example(spec, exact, generator):
    shape, stride, dtype = spec["shape"], spec["stride"], spec["dtype"]
    if exact is not None:
        data = exact
    elif "items" in spec:
        data = torch.tensor(spec["items"], dtype=torch.int64).to(dtype).reshape(shape)
    elif "raw" in spec:
        data = torch.zeros(shape, dtype=torch.uint8).view(dtype)
    elif "range" in spec:
        low, high = spec["range"]
        data = torch.randint(low, high + 1, shape, generator=generator).to(dtype)
    else:
        data = (torch.randn(shape, generator=generator) * spec["std"] + spec["mean"]).to(dtype)
    if data.stride() != stride and "raw" not in spec:
        # One element where the stride is 0, spread afterwards: memory is shared as it was.
        dense = [1 if step == 0 else size for size, step in zip(shape, stride)]
        part = data[tuple(slice(0, size) for size in dense)]
        data = torch.empty_strided(dense, stride, dtype=dtype).copy_(part).expand(shape)
    made = data.to(spec.get("device", "cpu"))
    if spec.get("parameter"):
        return torch.nn.Parameter(made, requires_grad=spec.get("requires_grad", False))
    if spec.get("requires_grad"):
        made = made.detach().requires_grad_()
        return made if spec.get("leaf", True) else made.clone(memory_format=torch.preserve_format)
    return made
'''
