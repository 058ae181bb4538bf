"""What holds for every kernel: the dtype it promises, inputs left alone, no state, torch only.

`CASES` names every public function of `port/kernels`; a new one joins the list and inherits the laws.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

import port.kernels
from port.kernels import (
    attention,
    cache_records,
    compress,
    dequantize,
    engram_gate,
    exponents,
    fixed_point,
    fp8_range,
    gather,
    hyper_connections,
    index_lists,
    index_selection,
    linear,
    normalize,
    paged_copy,
    philox,
    quantize,
    rotary,
    routing,
    row_pipeline,
    sampling,
    sampling_rows,
    swiglu,
    topk,
)

F32, BF16 = torch.float32, torch.bfloat16
FP8, E8M0 = torch.float8_e4m3fn, torch.float8_e8m0fnu
SAME = "the activation dtype"


def seeded(*shape: int, dtype: torch.dtype = F32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


FP8_WEIGHT, FP8_SCALE = quantize.quantize_fp8_tiles(seeded(64, 64))
FP4_WEIGHT, FP4_SCALE = quantize.quantize_fp4_rows(seeded(64, 64))
INDEX = torch.tensor([[0, -1], [2, 1], [3, 3]], dtype=torch.int32)
BYTES = torch.arange(32, dtype=torch.uint8).view(8, 4)
LENGTHS = torch.tensor([2, 0, 3], dtype=torch.int32)
I32, U8 = torch.int32, torch.uint8
COUNTERS = torch.arange(12, dtype=I32).view(3, 4)
SEEDS = torch.tensor([3, 1, 2], dtype=torch.int64)
SHARES = torch.tensor([0.5, 1.0, 0.25])


@dataclass(frozen=True)
class Case:
    """One kernel, arguments for an activation dtype, and the dtypes of its results (`SAME` follows the activation)."""

    kernel: Callable
    arguments: Callable[[torch.dtype], tuple]
    options: dict
    results: tuple

    def call(self, dtype: torch.dtype):
        found = self.kernel(*self.arguments(dtype), **self.options)
        return found if isinstance(found, tuple) else (found,)


CASES = [
    Case(
        attention.sparse_attention,
        lambda d: (seeded(3, 2, 4, dtype=d), (attention.KeySource(seeded(4, 4, dtype=d), INDEX),), seeded(2)),
        {"scale": 0.5, "operands": F32, "probability_dtype": F32},
        (SAME,),
    ),
    Case(cache_records.encode_rows, lambda d: (seeded(3, 64, dtype=d), cache_records.FP8_MAIN), {}, (U8, U8)),
    Case(
        cache_records.decode_rows,
        lambda d: (BYTES.flatten(), BYTES.flatten()[:2], cache_records.FP4_INDEX),
        {"out_dtype": BF16},
        (BF16,),
    ),
    Case(
        cache_records.read_slots,
        lambda d: (torch.ones(4, 2, 1, 34, dtype=U8), INDEX, cache_records.FP4_INDEX),
        {},
        (U8, U8),
    ),
    Case(compress.pool_groups, lambda d: (seeded(3, 2, 4), seeded(3, 2, 4)), {}, (F32,)),
    Case(dequantize.dequantize_fp8_tiles, lambda d: (FP8_WEIGHT, FP8_SCALE), {}, (F32,)),
    Case(dequantize.dequantize_fp8_tiles, lambda d: (FP8_WEIGHT, FP8_SCALE), {"out_dtype": BF16}, (BF16,)),
    Case(dequantize.dequantize_fp4_rows, lambda d: (FP4_WEIGHT, FP4_SCALE), {}, (F32,)),
    Case(dequantize.dequantize_fp4_rows, lambda d: (FP4_WEIGHT, FP4_SCALE), {"out_dtype": BF16}, (BF16,)),
    Case(dequantize.unpack_fp4, lambda d: (FP4_WEIGHT,), {}, (F32,)),
    Case(
        engram_gate.engram_gate,
        lambda d: (*(seeded(3, 2, 4, dtype=d) for _ in range(2)), seeded(2, 4, dtype=BF16), seeded(2, 4, dtype=BF16)),
        {"eps": 1e-20},
        (F32,),
    ),
    Case(engram_gate.add_gated, lambda d: (seeded(3, 2, 4, dtype=d), seeded(3, 2), seeded(3, 4, dtype=d)), {}, (SAME,)),
    Case(exponents.decode_exponents, lambda d: (BYTES,), {}, (F32,)),
    Case(exponents.ceil_exponents, lambda d: (seeded(3, 4).abs() + 0.1,), {}, (torch.uint8,)),
    Case(fp8_range.halve_fp8_codes, lambda d: (BYTES,), {}, (U8,)),
    Case(
        fp8_range.limit_fp8_tiles,
        lambda d: (torch.full((32, 32), 0x7E, dtype=U8), torch.full((1, 1), 9, dtype=U8)),
        {"block": (32, 32), "limit": 240.0},
        (U8, U8),
    ),
    Case(gather.gather_table_rows, lambda d: (BYTES.view(FP8), INDEX.clamp(min=0)), {}, (FP8,)),
    Case(gather.gather_table_rows, lambda d: (BYTES.view(E8M0), INDEX.clamp(min=0)), {}, (E8M0,)),
    Case(gather.load_rows, lambda d: (seeded(4, 3, dtype=d), INDEX), {}, (SAME,)),
    Case(gather.load_known_rows, lambda d: (seeded(4, 3, dtype=d), INDEX - 1), {}, (SAME,)),
    Case(gather.load_known_rows, lambda d: (BYTES.view(FP8), INDEX), {}, (FP8,)),
    Case(hyper_connections.mixing_values, lambda d: (seeded(3, 2, 4, dtype=d), seeded(8, 8)), {"eps": 1e-20}, (F32,)),
    Case(
        hyper_connections.mixing_values,
        lambda d: (seeded(3, 2, 4, dtype=d), seeded(8, 8)),
        {"eps": 1e-20, "tf32": True},
        (F32,),
    ),
    Case(
        hyper_connections.split_mixing,
        lambda d: (seeded(3, 8), seeded(3), seeded(8)),
        {"streams": 2, "eps": 1e-6, "iterations": 3},
        (F32, F32, F32),
    ),
    Case(hyper_connections.sinkhorn, lambda d: (seeded(3, 2, 2),), {"eps": 1e-6, "iterations": 3}, (F32,)),
    Case(hyper_connections.collapse_streams, lambda d: (seeded(3, 2, 4, dtype=d), seeded(3, 2)), {}, (SAME,)),
    Case(
        hyper_connections.combine_streams,
        lambda d: (seeded(3, 4, dtype=d), seeded(3, 2, 4, dtype=d), seeded(3, 2), seeded(3, 2, 2)),
        {},
        (SAME,),
    ),
    Case(index_lists.range_index, lambda d: (LENGTHS, LENGTHS), {"width": 4, "ring": 3}, (I32,)),
    Case(index_lists.two_ranges_index, lambda d: (INDEX.view(1, 6)[:, :4].clamp(min=0),), {"width": 4}, (I32,)),
    Case(index_lists.shift_index, lambda d: (INDEX, 7), {}, (I32,)),
    Case(
        index_lists.paged_slots,
        lambda d: (INDEX, INDEX.clamp(min=0)),
        {"entries_per_block": 2, "valid_NJ": INDEX >= 0},
        (I32,),
    ),
    Case(index_lists.flat_table_slots, lambda d: (INDEX, LENGTHS), {"entries_per_block": 2}, (I32,)),
    Case(index_lists.compact_lengths, lambda d: (INDEX, LENGTHS), {"block_size": 2}, (I32,)),
    Case(index_lists.restore_candidates, lambda d: (INDEX, INDEX), {"block_size": 2}, (I32,)),
    Case(
        index_selection.block_scores,
        lambda d: (seeded(3, 7, dtype=d), torch.tensor([7, 7, 7], dtype=torch.int32)),
        {"block_size": 2},
        (F32,),
    ),
    Case(
        index_selection.index_scores,
        lambda d: (seeded(3, 2, 4, dtype=d), seeded(3, 2, dtype=d), seeded(5, 4, dtype=d)),
        {"operands": F32, "round_per_head": True},
        (SAME,),
    ),
    Case(
        index_selection.index_scores,
        lambda d: (seeded(3, 2, 4, dtype=d), seeded(3, 2, dtype=d), seeded(3, 5, 4, dtype=d)),
        {"operands": F32, "round_per_head": False},
        (SAME,),
    ),
    Case(
        index_selection.candidate_blocks,
        lambda d: (seeded(3, 7, dtype=d), torch.tensor([7, 7, 7], dtype=torch.int32)),
        {"block_size": 2, "topk_blocks": 2},
        (torch.bool,),
    ),
    Case(
        index_selection.restrict_to_blocks,
        lambda d: (seeded(3, 7, dtype=d), seeded(3, 4) > 0),
        {"block_size": 2},
        (SAME,),
    ),
    Case(index_selection.select_entries, lambda d: (seeded(3, 7, dtype=d),), {"topk": 3}, (torch.int32,)),
    *(
        Case(linear.linear, lambda d: (seeded(3, 8, dtype=d), seeded(4, 8)), {"operands": o, "out_dtype": r}, (r,))
        for o in (F32, BF16)
        for r in (F32, BF16)
    ),
    *(
        Case(linear.stored_linear, lambda d, w=w: (seeded(3, 64, dtype=d), *w), {"operands": o, "out_dtype": r}, (r,))
        for w in ((FP8_WEIGHT, FP8_SCALE), (FP4_WEIGHT, FP4_SCALE))
        for o, r in ((F32, BF16), (BF16, F32))
    ),
    Case(linear.dense_weight, lambda d: (FP8_WEIGHT, FP8_SCALE), {"out_dtype": BF16}, (BF16,)),
    Case(
        linear.grouped_linear,
        lambda d: (seeded(3, 2, 4, dtype=d), seeded(2, 5, 4)),
        {"operands": F32, "out_dtype": BF16},
        (BF16,),
    ),
    Case(normalize.rms_norm, lambda d: (seeded(3, 4, dtype=d), seeded(4, dtype=BF16)), {"eps": 1e-20}, (SAME,)),
    Case(
        paged_copy.segment_slots,
        lambda d: (torch.tensor([[1, 0, 2, 1]], dtype=I32),),
        {"rows": 4, "entries_per_block": 2},
        (I32, torch.bool),
    ),
    Case(quantize.quantize_fp8_rows, lambda d: (seeded(3, 64, dtype=d),), {}, (FP8, E8M0)),
    Case(quantize.quantize_fp4_rows, lambda d: (seeded(3, 64, dtype=d),), {}, (torch.int8, E8M0)),
    Case(quantize.quantize_fp4_e4m3_rows, lambda d: (seeded(3, 64, dtype=d),), {}, (torch.int8, FP8)),
    Case(quantize.quantize_fp8_tiles, lambda d: (seeded(40, 64, dtype=d),), {}, (FP8, E8M0)),
    Case(quantize.round_trip_fp8, lambda d: (seeded(3, 64, dtype=d),), {}, (SAME,)),
    Case(quantize.round_trip_fp4, lambda d: (seeded(3, 64, dtype=d),), {}, (SAME,)),
    Case(quantize.round_trip_fp4_e4m3, lambda d: (seeded(3, 64, dtype=d),), {}, (SAME,)),
    Case(quantize.round_to_fp4, lambda d: (seeded(3, 64),), {}, (F32,)),
    Case(rotary.plain_frequencies, lambda d: (8, 1e4), {}, (F32,)),
    Case(
        rotary.yarn_frequencies,
        lambda d: (8, 1e4),
        {"factor": 4.0, "beta_fast": 32.0, "beta_slow": 1.0, "original_positions": 64},
        (F32,),
    ),
    Case(rotary.rotation_table, lambda d: (seeded(4), 5), {}, (F32, F32)),
    Case(rotary.rotate_tail, lambda d: (seeded(3, 2, 8, dtype=d), seeded(3, 2), seeded(3, 2)), {}, (SAME,)),
    Case(routing.affinities, lambda d: (seeded(3, 5),), {}, (F32,)),
    Case(routing.route, lambda d: (seeded(3, 5), seeded(5)), {"topk": 2, "scaling": 1.5}, (torch.int64, F32)),
    Case(
        row_pipeline.prepare_rows,
        lambda d: (seeded(3, 8, dtype=d), seeded(8), (seeded(3, 2), seeded(3, 2))),
        {"eps": 1e-6, "rotary_offset": 2},
        (SAME, SAME),
    ),
    Case(sampling_rows.request_of_rows, lambda d: (LENGTHS, LENGTHS), {"rows": 6}, (I32, I32, torch.bool)),
    Case(sampling_rows.spread_to_rows, lambda d: (seeded(3, dtype=d), LENGTHS.clamp(max=2)), {}, (SAME,)),
    Case(sampling_rows.look_up_key, lambda d: (INDEX, seeded(3, 2, dtype=d), LENGTHS), {}, (SAME,)),
    Case(sampling_rows.look_up_column, lambda d: (seeded(3, 2, dtype=d), LENGTHS), {}, (SAME,)),
    Case(
        sampling_rows.mask_tokens,
        lambda d: (seeded(3, 40), torch.tensor([[5, -1], [0, 1]], dtype=I32), INDEX[0].clamp(min=0), INDEX[0]),
        {},
        (F32,),
    ),
    Case(philox.philox4x32, lambda d: (COUNTERS, COUNTERS[:, :2]), {}, (I32,)),
    Case(philox.multiply_words, lambda d: (COUNTERS, 7), {}, (I32, I32)),
    Case(philox.draw_words, lambda d: (SEEDS, LENGTHS), {"case": 1}, (I32,)),
    Case(fixed_point.fixed_point_weights, lambda d: (SHARES,), {}, (I32,)),
    Case(fixed_point.unit_threshold, lambda d: (SHARES,), {}, (I32, torch.bool)),
    Case(fixed_point.word_below, lambda d: (COUNTERS, COUNTERS), {}, (torch.bool,)),
    Case(fixed_point.draw_columns, lambda d: (COUNTERS[:, :3] + 1, COUNTERS[:, :2]), {}, (I32,)),
    Case(sampling.filtered_logprobs, lambda d: (seeded(3, 9), SHARES, SHARES, LENGTHS), {}, (F32,)),
    Case(sampling.draw_tokens, lambda d: (seeded(3, 9).log_softmax(1), SEEDS, LENGTHS), {}, (I32,)),
    Case(sampling.sample_rows, lambda d: (seeded(3, 9), SHARES, SHARES, LENGTHS, SEEDS, LENGTHS), {}, (F32, I32)),
    Case(sampling.forbid_tokens, lambda d: (seeded(3, 9), LENGTHS), {}, (F32,)),
    Case(sampling.sum_smaller_probs, lambda d: (seeded(3, 9).log_softmax(1), LENGTHS), {}, (F32,)),
    Case(sampling.token_logprobs, lambda d: (seeded(3, 9).log_softmax(1), LENGTHS), {}, (F32,)),
    Case(
        sampling.verify_rows,
        lambda d: (seeded(3, 9).log_softmax(1), seeded(3, 9).log_softmax(1), LENGTHS, SEEDS, LENGTHS),
        {},
        (torch.bool, I32, F32, F32),
    ),
    Case(topk.top_columns, lambda d: (seeded(3, 9, dtype=d), 2), {}, (SAME, I32)),
    Case(topk.top_mask, lambda d: (seeded(3, 9, dtype=d), 2), {}, (torch.bool,)),
    Case(topk.left_packed, lambda d: (seeded(3, 9) > 0, 9), {}, (I32,)),
    Case(topk.select_columns, lambda d: (seeded(3, 9, dtype=d), 2), {"end_N": LENGTHS}, (SAME, I32)),
    Case(
        swiglu.clamped_swiglu,
        lambda d: (seeded(3, 4, dtype=d), seeded(3, 4, dtype=d), seeded(3, 1)),
        {"limit": 1.0},
        (F32,),
    ),
]
IN_PLACE = {"store_rows", "write_slots", "compress_decode_rows", "compress_prefill_rows"}
"""Kernels that change an argument; their tests say what."""
NO_TENSORS = {"format_of", "slot_count", "largest_code"}
"""Functions of numbers alone."""


def kernel_modules():
    return [
        importlib.import_module(f"port.kernels.{module.name}") for module in pkgutil.iter_modules(port.kernels.__path__)
    ]


def public_kernels(modules) -> set[str]:
    return {
        name
        for module in modules
        for name, value in vars(module).items()
        if inspect.isfunction(value) and value.__module__ == module.__name__ and not name.startswith("_")
    }


def tensors_in(value):
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, tuple):
        for item in value:
            yield from tensors_in(item)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().flatten().view(torch.uint8)


by_name = pytest.mark.parametrize("case", CASES, ids=[f"{i}-{case.kernel.__name__}" for i, case in enumerate(CASES)])
by_dtype = pytest.mark.parametrize("dtype", [F32, BF16], ids=["float32", "bfloat16"])


def test_every_kernel_is_under_the_laws():
    assert public_kernels(kernel_modules()) == {case.kernel.__name__ for case in CASES} | IN_PLACE | NO_TENSORS


@by_name
@by_dtype
def test_results_have_the_promised_dtype(case, dtype):
    expected = tuple(dtype if result is SAME else result for result in case.results)
    assert tuple(result.dtype for result in case.call(dtype)) == expected


@by_name
@by_dtype
def test_inputs_are_left_as_they_were(case, dtype):
    arguments = case.arguments(dtype)
    before = [bits(tensor).clone() for tensor in tensors_in(arguments)]
    case.kernel(*arguments, **case.options)
    assert all(torch.equal(old, bits(new)) for old, new in zip(before, tensors_in(arguments), strict=True))


@by_name
def test_the_same_input_gives_the_same_bits(case):
    for one, two in zip(case.call(F32), case.call(F32), strict=True):
        assert torch.equal(bits(one), bits(two))


def test_kernels_import_torch_only():
    allowed = {"torch", "dataclasses", "math", "typing"}
    for path in Path(port.kernels.__path__[0]).glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                inside = name.startswith("port.kernels.") or name.split(".")[0] in allowed
                assert inside, f"{path.name} imports {name}"
