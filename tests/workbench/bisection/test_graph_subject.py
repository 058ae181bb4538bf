"""A captured graph can be cut anywhere: what is left runs by itself and gives the values of the whole."""

from __future__ import annotations

import importlib.util
import random
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from tests.workbench.bisection.models_of_tests import Contexts, Stack, contexts_input, stack_input
from workbench.bisection.subjects.capture import CapturedCall, capture
from workbench.bisection.subjects.graph import GraphSubject, layer_of
from workbench.bisection.subjects.program import TensorValue, extract
from workbench.errors import PlanError, TargetCrash


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> CapturedCall:
    return capture(Stack(), (stack_input(),), folder=tmp_path_factory.mktemp("stack"), grad=False)


@pytest.fixture(scope="module")
def contexts(tmp_path_factory: pytest.TempPathFactory) -> CapturedCall:
    return capture(Contexts(), contexts_input(), folder=tmp_path_factory.mktemp("contexts"), grad=True)


def load(subject: GraphSubject, kept: list[int], folder: Path) -> ModuleType:
    file = subject.write(kept, folder).file
    spec = importlib.util.spec_from_file_location(f"program_{len(kept)}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(module: ModuleType, values: dict[str, Tensor] | None) -> tuple[Any, ...]:
    with torch.set_grad_enabled(module.GRAD_ENABLED):
        return module.program(*module.example_inputs(values))


def test_the_levels_group_the_same_nodes(stack: CapturedCall) -> None:
    layers = GraphSubject(stack.graphs[0], stack.values[0], level="layers")
    assert layers.items == ("layers.0", "layers.1", "layers.2", "layers.3", "head")
    everything = range(len(layers.items))
    modules = layers.refined("modules", everything)
    assert "layers.2.proj" in modules.items
    nodes = layers.refined("nodes", everything)
    assert len(nodes.items) == len(stack.graphs[0].nodes)
    assert {layers.content(everything), modules.content(range(len(modules.items)))} == {
        nodes.content(range(len(nodes.items)))
    }


def test_a_part_is_refined_to_its_own_nodes(stack: CapturedCall) -> None:
    layers = GraphSubject(stack.graphs[0], stack.values[0], level="layers")
    part = layers.refined("nodes", [2])
    assert [name.split(" in ")[0] for name in part.items][:2] == ["y_2 = linear", "topk = topk"]
    assert all("layers.2" in name for name in part.items)


@pytest.mark.parametrize("name", ["stack", "contexts"])
def test_the_whole_gives_what_the_model_gives(name: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    captured = request.getfixturevalue(name)
    model, inputs = (Stack(), (stack_input(),)) if name == "stack" else (Contexts(), contexts_input())
    subject = GraphSubject(captured.graphs[0], captured.values[0])
    module = load(subject, list(range(len(subject.items))), tmp_path)
    with torch.set_grad_enabled(module.GRAD_ENABLED):
        expected = model(*inputs)
    assert any(
        torch.equal(expected, found) for found in run(module, load_file(captured.values[0])) if found is not None
    )


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("name", ["stack", "contexts"])
def test_any_cut_gives_the_values_of_the_whole(
    name: str, seed: int, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    captured = request.getfixturevalue(name)
    graph, values = captured.graphs[0], load_file(captured.values[0])
    subject = GraphSubject(graph, captured.values[0])
    rng = random.Random(seed)
    kept = sorted(rng.sample(range(len(subject.items)), rng.randrange(1, len(subject.items))))
    program = extract(graph, subject.nodes(kept))
    results = run(load(subject, kept, tmp_path), values)
    assert len(results) == len(program.outputs)
    # A value that is written in place was noted before that, so what reads it afterwards is not compared.
    written = {node.uses[0] for node in graph.nodes if node.operation in ("setitem", "copy_")}
    for node in graph.nodes:
        written |= {node.name} if written & set(node.uses) else set()
    for output, result in zip(program.outputs, results, strict=True):
        if isinstance(result, Tensor) and output not in written:
            torch.testing.assert_close(result, values[output])
    assert isinstance(run(load(subject, kept, tmp_path), None), tuple), "made-up inputs run too"


def test_single_nodes_keep_shape_strides_and_flags_of_their_inputs(contexts: CapturedCall, tmp_path: Path) -> None:
    graph = contexts.graphs[0]
    subject = GraphSubject(graph, contexts.values[0])
    for index in range(len(subject.items)):
        program = extract(graph, subject.nodes([index]))
        made = load(subject, [index], tmp_path).example_inputs()
        for (name, spec), tensor in zip(program.inputs.items(), made, strict=True):
            assert isinstance(spec, TensorValue)
            assert (tuple(tensor.shape), tensor.stride()) == (spec.shape, spec.stride), name
            assert str(tensor.dtype) == f"torch.{spec.dtype}"
            assert (tensor.requires_grad, tensor.is_leaf) == (spec.requires_grad, spec.leaf), name
            assert isinstance(tensor, nn.Parameter) == spec.parameter


def test_contexts_come_and_go_with_what_they_hold(contexts: CapturedCall) -> None:
    graph = contexts.graphs[0]
    subject = GraphSubject(graph, None)
    where = {node.operation: index for index, node in enumerate(node for node in graph.nodes if node.is_item)}
    linear, topk, double = subject.content([where["linear"]]), subject.content([where["topk"]]), subject.content([0])
    assert "_enter_autocast" in linear
    assert "_exit_autocast" in linear
    assert "autocast" not in topk
    assert "_set_grad_enabled(False)\n    y = l_x_ * 2" in double
    assert "_set_grad_enabled" not in topk
    assert "def cond_true_0(" in subject.content([where["cond"]])
    assert "def cond_true_0(" not in topk
    assert not any("autocast" in name for name in subject.items)


def test_an_inner_value_that_is_a_tuple_becomes_several_inputs(contexts: CapturedCall) -> None:
    graph = contexts.graphs[0]
    subject = GraphSubject(graph, None)
    first = next(index for index, name in enumerate(subject.items) if name.startswith("values = getitem"))
    text = subject.content([first])
    assert "topk = (topk__0, topk__1,)" in text
    assert "def program(topk__0, topk__1):" in text


def test_the_program_imports_torch_alone(stack: CapturedCall) -> None:
    text = GraphSubject(stack.graphs[0], None).content(range(6))
    imports = {line.split()[1] for line in text.splitlines() if line.startswith(("import ", "from "))}
    assert imports <= {"torch", "math", "operator"}


def test_capturing_changes_neither_the_model_nor_its_inputs_nor_random_state(tmp_path: Path) -> None:
    model, x = Stack(), stack_input()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}, torch.get_rng_state(), x.clone()
    capture(model, (x,), folder=tmp_path)
    assert all(torch.equal(before[0][name], tensor) for name, tensor in model.state_dict().items())
    assert torch.equal(before[1], torch.get_rng_state())
    assert torch.equal(before[2], x)


def test_a_graph_break_gives_two_graphs(tmp_path: Path) -> None:
    def broken(x: Tensor) -> Tensor:
        y = x.sin()
        torch._dynamo.graph_break()
        return y.cos()

    found = capture(broken, (torch.ones(2),), folder=tmp_path)
    assert [[node.operation for node in graph.nodes] for graph in found.graphs] == [["sin"], ["cos"]]


def test_names_of_a_wrapped_module_begin_below_it(tmp_path: Path) -> None:
    class Wrapper(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Stack()

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x)

    wrapper = Wrapper()
    found = capture(wrapper, (stack_input(),), folder=tmp_path, module=wrapper.inner)
    assert GraphSubject(found.graphs[0], None, level="layers").items[0] == "layers.0"


def test_layers_are_named_up_to_their_number() -> None:
    assert [layer_of(path) for path in ("layers.3.attn.wq", "blocks.0.1.x", "head", "")] == [
        "layers.3", "blocks.0", "head", "",
    ]  # fmt: skip


def test_errors_name_what_cannot_be_captured(tmp_path: Path) -> None:
    def raises(x: Tensor) -> Tensor:
        return x.reshape(7)

    def eager_only(x: Tensor) -> int:
        return 3

    with pytest.raises(TargetCrash, match="while its graphs were captured"):
        capture(raises, (torch.ones(2),), folder=tmp_path)
    with pytest.raises(PlanError, match="expected at least one captured graph to narrow, found none"):
        capture(eager_only, (torch.ones(2),), folder=tmp_path)
    with pytest.raises(PlanError, match="expected one of layers, modules, nodes for a captured graph, found 'ops'"):
        GraphSubject(capture(Stack(), (stack_input(),), folder=tmp_path).graphs[0], None, level="ops")
