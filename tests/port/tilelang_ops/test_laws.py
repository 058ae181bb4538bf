"""What holds for every kernel that a decode step calls: it traces whole, on shapes alone, and computes the same.

`CASES` has a line for every factory of the table whose phase is "decode" or "both"; a new one joins the list.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounter
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from port import tilelang_ops as ops
from port.tilelang_ops.table import ROWS, row
from tests.port.tilelang_ops.numbers import bf16, empty_ints, f32, ints

REFUSED = ("sort", "nonzero", "_local_scalar_dense", "masked_select", "unique", "histc", "multinomial", "rand")
ARITHMETIC = ("add", "sub", "mul", "div", "remainder", "floor_divide", "cumsum", "sum", "where", "bitwise")
BF16, F32 = torch.bfloat16, torch.float32


@dataclass(frozen=True)
class Case:
    """A factory with its compile-time arguments, and the tensors of one call, made anew each time."""

    name: str
    compile_time: tuple
    tensors: Callable[[], tuple]
    options: dict | None = None

    @property
    def kernel(self) -> Callable:
        return getattr(ops, self.name)(*self.compile_time, **(self.options or {}))


def cache(record: int, blocks: int = 3) -> Tensor:
    return torch.zeros(blocks, 4, 1, record, dtype=torch.uint8)


ROPE = {"has_norm": True, "has_rope": True, "rope_dim": 16}
FUSED = "fused_norm_rope_hadamard_cast_store_kvcache_tl"


def rows() -> tuple:
    return bf16(3, 64), bf16(64, seed=1), ints([2, 0, 5]), f32(8, 16)


def seeds() -> Tensor:
    return torch.tensor([2**63 + 1, 7], dtype=torch.uint64)


CASES = [
    Case(
        "norm_tl",
        (64, BF16, BF16, F32, True, 1e-20, 1.0, True, 32, False, True, True, True),
        lambda: (
            bf16(3, 64),
            bf16(64),
            bf16(3, 64, seed=2),
            torch.zeros(3, 64, dtype=torch.uint8),
            torch.zeros(3, 64, dtype=BF16),
            torch.zeros(3, 1, dtype=torch.int16),
            None,
            torch.zeros(3, 64, dtype=BF16),
        ),
    ),
    *(
        Case(
            FUSED,
            (1, 64),
            lambda r=record: (*rows(), cache(r), ints([4, -1, 9])),
            {"cast": c, "output": "store", **ROPE},
        )
        for c, record in (("fp8_main", 66), ("fp4_main", 36), ("fp4_index", 34))
    ),
    Case(
        FUSED, (1, 64), lambda: (*rows(), bf16(3, 64), None, bf16(3, 64)), {"cast": "fp8_main", "tap": "norm", **ROPE}
    ),
    Case(
        FUSED,
        (1, 64),
        lambda: (*rows(), torch.zeros(3, 32, dtype=torch.uint8), torch.zeros(3, 1, dtype=torch.int16)),
        {"cast": "fp4_index", "output": "quant", **ROPE},
    ),
    Case("gather_tl", (8, BF16, torch.int32, 8), lambda: (bf16(5, 8), ints([4, -1, 9]), bf16(3, 8))),
    Case("gather_tl", (8, torch.uint8, torch.int32, 8), lambda: (cache(8)[0, :, 0], ints([3, -1]), cache(8)[0, :2, 0])),
    Case("load_kv_index_tl", (4, 5, False), lambda: (ints([[7, 3], [3, 4]]), None, empty_ints(2, 4))),
    Case("load_kv_index_tl", (4, 5, True), lambda: (ints([[7, 3], [3, 4]]), ints([4, 1]), empty_ints(2, 4))),
    Case(
        "compress_and_update_state_decode_tl",
        (8, 2),
        lambda: (f32(3, 8), f32(3, 8), f32(4, 3, 2, 8), ints([1, 3, 1]), ints([3, 6, 4]), bf16(3, 8)),
    ),
    Case("candidate_block_max_tl", (10, 4), lambda: (bf16(3, 10), ints([0, 5, 10]), bf16(3, 3), empty_ints(3))),
    Case("get_candidate_compact_lens_tl", (3, 4), lambda: (ints([[0, 2, -1]]), ints([9]), empty_ints(1))),
    Case(
        "restore_candidate_indices_inplace_tl",
        (3, 2, 4, True),
        lambda: (ints([[0, 5, -1]]), ints([[2, 7]]), ints([100])),
    ),
    Case(
        "convert_kv_index_tl",
        (1, 3, 2, 4),
        lambda: (ints([[[0, 5, -1]], [[1, -1, -1]]]), ints([[2], [1]]), ints([[2, 7], [3, 99]])),
    ),
    Case(
        "fused_sample_tl",
        (40, True, False),
        lambda: (
            f32(2, 40),
            torch.tensor([0.7, 1e-5]),
            torch.tensor([0.8, 1.0]),
            ints([5, -1]),
            ints([7, 8]),
            seeds(),
            torch.zeros(2, dtype=torch.bool),
            torch.zeros(2, 40),
            empty_ints(2),
        ),
    ),
    Case("random_sampling_tl", (40, False), lambda: (f32(2, 40).softmax(-1), seeds(), ints([7, 8]), empty_ints(2))),
    Case("sum_smaller_probs_tl", (40,), lambda: (f32(2, 40).log_softmax(-1), ints([3, -1]), torch.zeros(2))),
    Case(
        "prepare_verification_metadata_tl",
        (2,),
        lambda: (ints([0, 2]), ints([2, 1]), empty_ints(3), empty_ints(3), torch.zeros(3, dtype=torch.bool)),
    ),
    Case(
        "expand_sampling_params_tl",
        (),
        lambda: (
            *(t := (f32(2), f32(2), ints([5, -1]), ints([10, 20]), seeds())),
            ints([1, 0, 0]),
            ints([0, 0, 1]),
            *(torch.zeros(3, dtype=values.dtype) for values in t),
        ),
    ),
    Case(
        "map_lookup_tl",
        (3, "key", F32),
        lambda: (ints([[1, 2, 3]] * 2), f32(2, 3), ints([[3], [9]]), torch.zeros(2)),
    ),
    Case("map_lookup_tl", (3, "index", F32), lambda: (None, f32(2, 3), ints([[2], [3]]), torch.zeros(2))),
    Case(
        "apply_token_bitmask_by_step_inplace_tl",
        (40, True),
        lambda: (f32(3, 40), ints([[5, 6], [7, -1]]), ints([1, 0]), ints([0, 2]), 1),
    ),
]
by_case = pytest.mark.parametrize("case", CASES, ids=[f"{i}-{case.name}" for i, case in enumerate(CASES)])


def test_every_decode_kernel_is_under_the_laws() -> None:
    assert {case.name for case in CASES} == {
        entry.name for entry in ROWS if entry.works and entry.phase in ("decode", "both")
    }


def clones(values: tuple) -> tuple:
    return tuple(value.clone() if isinstance(value, Tensor) else value for value in values)


def same(one: object, other: object) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))
    return one == other


@by_case
def test_kernels_take_the_tensors_of_the_table(case: Case) -> None:
    entry = row(case.name)
    assert ", ".join(inspect.signature(case.kernel).parameters) == ", ".join(
        filter(None, (entry.tensors, entry.outputs))
    )


@by_case
def test_results_are_the_outputs_given(case: Case) -> None:
    arguments = case.tensors()
    found = case.kernel(*arguments)
    for result in found if isinstance(found, tuple) else (found,):
        assert any(result is argument for argument in arguments)


@by_case
def test_shapes_alone_are_enough_and_nothing_refused_is_asked(case: Case) -> None:
    kernel = case.kernel
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        faked = tuple(mode.from_tensor(value) if isinstance(value, Tensor) else value for value in case.tensors())
        kernel(*faked)
    traced = make_fx(lambda *tensors: kernel(*tensors), tracing_mode="fake")(*case.tensors())
    for node in traced.graph.nodes:
        if node.op != "call_function":
            continue
        name = str(node.target)
        assert not any(refused in name for refused in REFUSED), name
        value = node.meta.get("val")
        if isinstance(value, Tensor) and any(f"aten.{word}" in name for word in ARITHMETIC):
            assert value.dtype not in (torch.int64, torch.float64), f"{name} computes in {value.dtype}"


@by_case
@pytest.mark.filterwarnings("default")  # Dynamo's own deprecations are not ours to fail on
def test_one_graph_computes_the_same(case: Case) -> None:
    kernel, counter = case.kernel, CompileCounter()
    eager = case.tensors()
    compiled_arguments = clones(eager)
    kernel(*eager)
    torch._dynamo.reset()
    try:
        torch.compile(kernel, fullgraph=True, dynamic=False, backend=counter)(*compiled_arguments)
    finally:
        torch._dynamo.reset()
    assert counter.frame_count == 1
    assert all(same(one, other) for one, other in zip(eager, compiled_arguments, strict=True))
