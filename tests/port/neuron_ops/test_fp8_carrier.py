"""fp8 as bytes across a graph's edge: the inner back end sees none, and the bits are those of the direct path."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn

import port
from port.kernels.quantize import quantize_fp8_rows, quantize_fp8_tiles
from port.neuron_ops.fp8_carrier import NAME, carrier_backend, fp8_edges, register_backend
from port.runtime.generate import generate
from tests.test_readme import ROOT

FP8, E8M0 = torch.float8_e4m3fn, torch.float8_e8m0fnu


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Inner:
    """`aot_eager` that notes which of a graph's inputs and outputs are fp8."""

    def __init__(self) -> None:
        self.graphs = 0
        self.seen: list[str] = []

    def __call__(self, graph: fx.GraphModule, example_inputs: list[Any]) -> Any:
        self.graphs += 1
        self.seen += fp8_edges(graph, example_inputs)
        return torch._dynamo.lookup_backend("aot_eager")(graph, example_inputs)


def both(program: Any, *args: Any) -> tuple[Any, Any, Inner]:
    """Return the results of a program as it is and through the carrier, each on inputs of its own."""
    inner = Inner()
    compiled = torch.compile(program, backend=carrier_backend(inner), dynamic=False, fullgraph=True)
    return program(*(arg.clone() for arg in args)), compiled(*args), inner


def bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(torch.uint8)


def rows(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


def test_fp8_inputs_and_outputs_cross_as_bytes() -> None:
    def program(code: Tensor, scale: Tensor, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        wide = code.to(torch.float32) * x
        new_code, new_scale = quantize_fp8_rows(wide)
        return wide, new_code, new_scale, code[:1]

    code, scale = quantize_fp8_rows(rows(4, 64))
    plain, carried, inner = both(program, code, scale, rows(4, 64))
    assert [one.dtype for one in carried] == [torch.float32, FP8, E8M0, FP8]
    for one, two in zip(plain, carried, strict=True):
        assert torch.equal(bits(one), bits(two))
    assert (inner.graphs, inner.seen) == (1, [])


def test_without_the_carrier_the_same_back_end_sees_fp8() -> None:
    inner = Inner()
    code, _ = quantize_fp8_rows(rows(4, 64))
    torch.compile(lambda x: (x.to(torch.float32), x[:1]), backend=inner, dynamic=False)(code)
    assert len(inner.seen) == 2


def test_an_input_handed_through_stays_fp8() -> None:
    code, _ = quantize_fp8_rows(rows(4, 64))
    plain, carried, _ = both(lambda x: (x, x.to(torch.float32) + 1), code)
    assert carried[0].dtype == FP8
    assert torch.equal(bits(plain[0]), bits(carried[0]))
    assert torch.equal(plain[1], carried[1])


def test_a_cache_that_the_graph_writes_to_is_written_to() -> None:
    def program(cache: Tensor, new: Tensor) -> Tensor:
        cache[2:4].copy_(new.to(FP8))
        return cache.to(torch.float32).sum(dim=0)

    cache = torch.zeros(6, 64).to(FP8)
    expected = cache.clone()
    new = rows(2, 64)
    total = program(expected, new)
    inner = Inner()
    storage = cache.untyped_storage().data_ptr()
    compiled = torch.compile(program, backend=carrier_backend(inner), dynamic=False, fullgraph=True)
    assert torch.equal(compiled(cache, new), total)
    assert torch.equal(bits(cache), bits(expected))
    assert cache.untyped_storage().data_ptr() == storage
    assert inner.seen == []


class Held(nn.Module):
    """A weight in stored form, as parameter and buffer."""

    def __init__(self) -> None:
        super().__init__()
        weight, scale = quantize_fp8_tiles(rows(64, 64))
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.register_buffer("scale", scale)

    def forward(self, x: Tensor) -> Tensor:
        from port.kernels.linear import stored_linear

        return stored_linear(x, self.weight, self.scale, operands=torch.float32, out_dtype=torch.float32)


def test_parameters_and_buffers_cross_as_bytes_too() -> None:
    module = Held()
    plain, carried, inner = both(module, rows(3, 64))
    assert torch.equal(plain, carried)
    assert inner.seen == []
    assert module.weight.dtype == FP8


def test_a_decode_step_over_stored_weights_has_the_same_bits() -> None:
    prompts = [(5, 6, 7, 8, 9)]
    folder = ROOT / "fixtures" / "tiny_v41"
    plain = port.open_text_model(folder, profile="bf16@224", moe="all", weights="stored")
    carried = port.open_text_model(folder, profile="bf16@224", moe="all", weights="stored")
    inner = Inner()
    layer = carried.model.layers[0].ffn
    layer.forward = torch.compile(layer.forward, backend=carrier_backend(inner), dynamic=False, fullgraph=True)
    one, two = generate(plain, prompts, max_tokens=2), generate(carried, prompts, max_tokens=2)
    assert one[0].token_ids == two[0].token_ids
    assert inner.graphs >= 1
    assert inner.seen == []


def test_the_name_is_registered_once_and_only_when_asked() -> None:
    register_backend()
    register_backend()
    assert NAME in torch._dynamo.list_backends(exclude_tags=())


def test_an_unknown_inner_back_end_is_told_at_the_first_graph() -> None:
    compiled = torch.compile(lambda x: x + 1, backend=carrier_backend("no_such_backend"), dynamic=False)
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="no_such_backend"):
        compiled(torch.ones(2))
