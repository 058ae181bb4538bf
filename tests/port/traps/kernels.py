"""Traps that lie in one kernel: each check is worked by hand on a few numbers."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from port.kernels import dequantize, exponents, quantize, rotary, routing
from port.kernels.attention import KeySource, sparse_attention
from port.kernels.dequantize import unpack_fp4
from port.kernels.engram_gate import engram_gate
from port.kernels.hyper_connections import combine_streams, sinkhorn
from port.kernels.index_selection import candidate_blocks
from port.kernels.normalize import rms_norm
from port.kernels.quantize import (
    quantize_fp4_e4m3_rows,
    quantize_fp4_rows,
    quantize_fp8_rows,
    round_to_fp4,
)
from port.kernels.routing import affinities, route
from port.kernels.swiglu import clamped_swiglu
from port.model.rotary import rotation_tables
from tests.port.golden import model_a, units
from tests.port.traps.mutation import Plant, Trap, replace_function, rewrite_function, wrap_function


def close(found: torch.Tensor, expected: object, *, rel: float = 1e-5) -> None:
    torch.testing.assert_close(found, torch.as_tensor(expected, dtype=found.dtype), rtol=rel, atol=1e-7)


# Hyper-connections


def combine_sums_over_the_first_index() -> None:
    comb = torch.tensor([[[1.0, 2.0], [3.0, 4.0]]])
    found = combine_streams(torch.zeros(1, 1), torch.tensor([[[1.0], [10.0]]]), torch.zeros(1, 2), comb)
    close(found, [[[31.0], [42.0]]])


def plant_transposed_mix(monkeypatch: pytest.MonkeyPatch) -> None:
    wrap_function(
        monkeypatch,
        combine_streams,
        lambda right, output, stream, post, comb: right(output, stream, post, comb.transpose(1, 2)),
    )


def sinkhorn_begins_with_columns() -> None:
    logits = torch.tensor([[[math.log(3.0), 0.0], [0.0, 0.0]]])
    close(sinkhorn(logits, eps=0.0, iterations=1), [[[3 / 5, 1 / 3], [2 / 5, 2 / 3]]])
    # a row pass (14/15 and 16/15), then columns again
    rows = [[9 / 14, 5 / 14], [3 / 8, 5 / 8]]
    columns = [rows[0][k] + rows[1][k] for k in range(2)]
    close(
        sinkhorn(logits, eps=0.0, iterations=2),
        [[[rows[j][k] / columns[k] for k in range(2)] for j in range(2)]],
    )


def rows_first(logits: torch.Tensor, *, eps: float, iterations: int) -> torch.Tensor:
    matrix = torch.exp(logits - logits.amax(dim=(-1, -2), keepdim=True)) + eps
    for _ in range(iterations):
        matrix = matrix / (matrix.sum(dim=-2, keepdim=True) + eps)
        matrix = matrix / (matrix.sum(dim=-1, keepdim=True) + eps)
    return matrix


def sinkhorn_eps_follows_the_softmax_and_joins_every_denominator() -> None:
    logits = torch.tensor([[[1000.0, 0.0], [0.0, 1000.0]]])
    close(sinkhorn(logits, eps=0.25, iterations=1), [[[1.25 / 1.75, 0.25 / 1.75], [0.25 / 1.75, 1.25 / 1.75]]])


# Scales and codes


def fp8_scale_rounds_up() -> None:
    rows = torch.zeros(4, 32)
    rows[:, 0] = torch.tensor([448.0, 449.0, 600.0, 896.0])
    close(quantize_fp8_rows(rows)[1].to(torch.float32).flatten(), [1.0, 2.0, 2.0, 2.0])
    rows[:, 0] = torch.tensor([6.0, 6.1, 9.0, 12.0])
    close(quantize_fp4_rows(rows)[1].to(torch.float32).flatten(), [1.0, 2.0, 2.0, 2.0])


def nearest_exponents(value: torch.Tensor) -> torch.Tensor:
    return (torch.log2(value).round() + 127).to(torch.uint8)


def fp4_cache_scale_rounds_to_nearest() -> None:
    rows = torch.zeros(3, 16)
    rows[:, 0] = 6 * torch.tensor([1.05, 1.07, 1.1875])  # e4m3 has 1, 1.125 and 1.25; the last is a tie
    close(quantize_fp4_e4m3_rows(rows)[1].to(torch.float32).flatten(), [1.0, 1.125, 1.25])


def plant_scale_rounded_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(x, group, scale_division, scale_max):
        grouped = x.to(torch.float32).unflatten(-1, (-1, group))
        amax = grouped.abs().amax(dim=-1).clamp(min=quantize.FP4_E4M3_AMAX_FLOOR)
        power = exponents.decode_exponents(exponents.ceil_exponents(amax / 6))
        return round_to_fp4(grouped / power.unsqueeze(-1)), power.to(torch.float8_e4m3fn)

    replace_function(monkeypatch, quantize._fp4_e4m3_values, wrong)


def fp8_floor_is_1e_4() -> None:
    # 1e-4 / 448 lies between 2 ** -23 and 2 ** -22
    scale = quantize_fp8_rows(torch.full((1, 32), 1e-9))[1]
    close(scale.to(torch.float32), [[2.0**-22]])


def fp4_floor_is_the_smallest_normal_scale() -> None:
    x = torch.full((1, 32), 2.0**-126)
    x[0, 0] = 6 * 2.0**-120
    assert quantize_fp4_rows(x)[1].view(torch.uint8).item() == 127 - 120
    assert quantize_fp4_rows(torch.zeros(1, 32))[1].view(torch.uint8).item() == 1


def fp4_cache_floor_is_the_smallest_e4m3_scale() -> None:
    codes, scale = quantize_fp4_e4m3_rows(torch.zeros(1, 16))
    assert scale.to(torch.float32).item() == 2.0**-9
    assert codes.tolist() == [[0] * 8]


def floor_of(name: str, value: float):
    return lambda monkeypatch: monkeypatch.setattr(quantize, name, value)


def fp4_ties_go_to_the_even_code() -> None:
    ties = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, -0.25, -2.5, -5.0])
    close(round_to_fp4(ties), [0.0, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0, -0.0, -2.0, -4.0])


def ties_away(x: torch.Tensor) -> torch.Tensor:
    grid = torch.tensor(dequantize.FP4_VALUES[:8])
    upper_bounds = (grid[1:] + grid[:-1]) / 2
    return torch.copysign(grid[torch.bucketize(x.abs(), upper_bounds, right=True)], x)


def low_nibble_is_the_even_column() -> None:
    close(unpack_fp4(torch.tensor([[0x21]], dtype=torch.int8)), [[0.5, 1.0]])
    packed, _ = quantize_fp4_rows(torch.tensor([[0.5, 1.0] + [0.0] * 29 + [6.0]]))
    assert packed[0, 0].item() == 0x21


def plant_swapped_nibbles(monkeypatch: pytest.MonkeyPatch) -> None:
    wrap_function(
        monkeypatch,
        unpack_fp4,
        lambda right, packed, **options: right(packed, **options).unflatten(-1, (-1, 2)).flip(-1).flatten(-2),
    )


# Rotations


def yarn_changes_compressed_layers_only() -> None:
    text_model = model_a()
    tables = rotation_tables(text_model.config, 256, "cpu")
    for kind, table in tables.items():
        assert torch.equal(table.cos, units()[f"rope.A.{kind}.cos"]), kind
        assert torch.equal(table.sin, units()[f"rope.A.{kind}.sin"]), kind
    ropes = [role.rope for role in text_model.model.schedule.roles]
    assert ropes == ["window"] * 2 + ["compress"] * 4


def one_table(kind: str) -> Plant:
    def wrong(right, config, positions, device):
        return dict.fromkeys(("window", "compress"), right(config, positions, device)[kind])

    return lambda monkeypatch: wrap_function(monkeypatch, rotation_tables, wrong)


def plant_no_yarn(monkeypatch: pytest.MonkeyPatch) -> None:
    replace_function(
        monkeypatch, rotary.yarn_frequencies, lambda width, theta, **_: rotary.plain_frequencies(width, theta)
    )


# Norms, routing and experts


def norm_eps_is_not_clamped() -> None:
    x = torch.tensor([[1.0, -2.0, 2.0]])
    close(rms_norm(x * 1e-8, torch.ones(3), eps=1e-20), rms_norm(x, torch.ones(3), eps=0.0), rel=1e-3)
    assert {module.eps for module in model_a().model.modules() if hasattr(module, "eps")} == {1e-20}


def plant_clamped_eps(monkeypatch: pytest.MonkeyPatch) -> None:
    wrap_function(monkeypatch, rms_norm, lambda right, x, weight, *, eps: right(x, weight, eps=max(eps, 1e-6)))


def gate_is_clamped_from_above_only() -> None:
    found = clamped_swiglu(torch.tensor([[-5.0, 5.0]]), torch.tensor([[-5.0, 5.0]]), None, limit=2.0)
    close(found, F.silu(torch.tensor([[-5.0, 2.0]])) * torch.tensor([[-2.0, 2.0]]))


def plant_symmetric_clamp(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(right, gate, up, weight, *, limit):
        return right(gate.clamp(min=-limit), up, weight, limit=limit)

    wrap_function(monkeypatch, clamped_swiglu, wrong)


def weights_are_scaled_after_they_are_normalised() -> None:
    _, weights = route(torch.tensor([[2.0, 1.0, -1.0]]), torch.zeros(3), topk=2, scaling=2.5)
    close(weights.sum(dim=-1), [2.5])


def bias_never_enters_the_weights() -> None:
    logits = torch.tensor([[2.0, 1.0, -1.0]])
    ids, weights = route(logits, torch.tensor([0.0, 0.0, 9.0]), topk=2, scaling=1.0)
    close(weights, (affinities(logits)[0, ids] / affinities(logits)[0, ids].sum()))


def routing_division_keeps_small_affinities() -> None:
    _, weights = route(torch.full((1, 3), -60.0), torch.zeros(3), topk=2, scaling=1.0)
    close(weights, [[0.5, 0.5]])


def softplus_does_not_underflow() -> None:
    close(affinities(torch.tensor([[-60.0, -30.0, 100.0]])), [[math.exp(-30.0), math.exp(-15.0), 10.0]])


def naive_affinities(logit: torch.Tensor) -> torch.Tensor:
    return torch.log(1 + torch.exp(logit)).sqrt()


# Attention sink, Engram gate, candidate blocks


def sink_enters_the_denominator_unscaled_and_per_head() -> None:
    source = KeySource(torch.tensor([[0.0, 6.0]]), torch.tensor([[0]], dtype=torch.int32))
    found = sparse_attention(
        torch.tensor([[[1.0, 0.0], [1.0, 0.0]]]),
        (source,),
        torch.tensor([0.0, math.log(2.0)]),
        scale=0.125,
        operands=torch.float32,
        probability_dtype=torch.float32,
    )
    close(found, [[[0.0, 3.0], [0.0, 2.0]]])


def plant_scaled_sink(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(right, query, sources, sink, *, scale, **options):
        return right(query, sources, sink * scale, scale=scale, **options)

    wrap_function(monkeypatch, sparse_attention, wrong)


def plant_one_sink_for_all_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(right, query, sources, sink, **options):
        return right(query, sources, sink.mean().expand_as(sink), **options)

    wrap_function(monkeypatch, sparse_attention, wrong)


def engram_statistics_are_per_stream() -> None:
    stream = torch.tensor([[[2.0, 2.0], [200.0, 200.0]]])
    gate = engram_gate(stream, stream, torch.ones(2, 2), torch.ones(2, 2), eps=0.0)
    close(gate, torch.sigmoid(torch.tensor([[2.0**0.25, 2.0**0.25]])))


def candidate_blocks_may_be_fewer_than_the_count_kept() -> None:
    score = torch.tensor([[1.0, 2.0, -math.inf]])
    found = candidate_blocks(score, torch.tensor([2], dtype=torch.int32), block_size=2, topk_blocks=2048)
    assert found.tolist() == [[True, False]]


def plant_context_floor(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(right, score, length, *, block_size, topk_blocks):
        assert score.shape[1] >= block_size * topk_blocks, "the score row holds fewer blocks than are kept"
        return right(score, length, block_size=block_size, topk_blocks=topk_blocks)

    wrap_function(monkeypatch, candidate_blocks, wrong)


KERNEL_TRAPS = (
    Trap(
        number=3,
        name="combine_sums_over_the_first_index",
        check=combine_sums_over_the_first_index,
        plant=plant_transposed_mix,
        golden=True,
    ),
    Trap(
        number=4,
        name="sinkhorn_begins_with_columns",
        check=sinkhorn_begins_with_columns,
        plant=lambda monkeypatch: replace_function(monkeypatch, sinkhorn, rows_first),  # 20 passes end nearly alike
    ),
    Trap(
        number=4,
        name="sinkhorn_eps_follows_the_softmax",
        check=sinkhorn_eps_follows_the_softmax_and_joins_every_denominator,
        plant=rewrite_function(sinkhorn, ("dim=-1) + eps", "dim=-1)")),
    ),
    Trap(
        number=4,
        name="sinkhorn_eps_joins_every_denominator",
        check=sinkhorn_eps_follows_the_softmax_and_joins_every_denominator,
        plant=rewrite_function(sinkhorn, ("keepdim=True) + eps", "keepdim=True)")),
    ),
    Trap(
        number=9,
        name="fp8_scale_rounds_up",
        check=fp8_scale_rounds_up,
        plant=lambda monkeypatch: replace_function(monkeypatch, exponents.ceil_exponents, nearest_exponents),
    ),
    Trap(
        number=9,
        name="fp4_cache_scale_rounds_to_nearest",
        check=fp4_cache_scale_rounds_to_nearest,
        plant=plant_scale_rounded_up,
    ),
    Trap(number=9, name="fp8_floor_is_1e_4", check=fp8_floor_is_1e_4, plant=floor_of("FP8_AMAX_FLOOR", 1e-10)),
    Trap(
        number=9,
        name="fp4_floor_is_the_smallest_normal_scale",
        check=fp4_floor_is_the_smallest_normal_scale,
        plant=floor_of("FP4_AMAX_FLOOR", 1e-4),
    ),
    Trap(
        number=9,
        name="fp4_cache_floor_is_the_smallest_e4m3_scale",
        check=fp4_cache_floor_is_the_smallest_e4m3_scale,
        plant=floor_of("FP4_E4M3_AMAX_FLOOR", 1e-4),
    ),
    Trap(
        number=10,
        name="fp4_ties_go_to_the_even_code",
        check=fp4_ties_go_to_the_even_code,
        plant=lambda monkeypatch: replace_function(monkeypatch, round_to_fp4, ties_away),
    ),
    Trap(
        number=13,
        name="yarn_leaves_window_layers_alone",
        check=yarn_changes_compressed_layers_only,
        plant=one_table("compress"),
        golden=True,
    ),
    Trap(
        number=13,
        name="compressed_layers_have_a_theta_of_their_own",
        check=yarn_changes_compressed_layers_only,
        plant=one_table("window"),
        golden=True,
    ),
    Trap(
        number=13,
        name="yarn_changes_compressed_layers",
        check=yarn_changes_compressed_layers_only,
        plant=plant_no_yarn,
        golden=True,
    ),
    Trap(number=14, name="norm_eps_is_not_clamped", check=norm_eps_is_not_clamped, plant=plant_clamped_eps),
    Trap(
        number=15,
        name="gate_is_clamped_from_above_only",
        check=gate_is_clamped_from_above_only,
        plant=plant_symmetric_clamp,
        golden=True,
    ),
    Trap(
        number=15,
        name="weights_are_scaled_after_they_are_normalised",
        check=weights_are_scaled_after_they_are_normalised,
        plant=rewrite_function(
            route,
            ("chosen = affinity.gather(-1, ids)", "chosen = affinity.gather(-1, ids) * scaling"),
            (" + _SUM_EPS) * scaling", " + _SUM_EPS)"),
        ),
        golden=True,
    ),
    Trap(
        number=15,
        name="bias_never_enters_the_weights",
        check=bias_never_enters_the_weights,
        plant=rewrite_function(route, ("affinity.gather", "(affinity + bias_E).gather")),
        golden=True,
    ),
    Trap(
        number=15,
        name="routing_division_keeps_small_affinities",
        check=routing_division_keeps_small_affinities,
        plant=lambda monkeypatch: monkeypatch.setattr(routing, "_SUM_EPS", 1e-6),
    ),
    Trap(
        number=16,
        name="softplus_does_not_underflow",
        check=softplus_does_not_underflow,
        plant=lambda monkeypatch: replace_function(monkeypatch, affinities, naive_affinities),
    ),
    Trap(
        number=18,
        name="low_nibble_is_the_even_column",
        check=low_nibble_is_the_even_column,
        plant=plant_swapped_nibbles,
        golden=True,
    ),
    Trap(
        number=20,
        name="engram_statistics_are_per_stream",
        check=engram_statistics_are_per_stream,
        plant=rewrite_function(
            engram_gate, (".square().mean(dim=-1)", ".square().mean(dim=(-1, -2), keepdim=True)[..., 0]")
        ),
        golden=True,
    ),
    Trap(
        number=22,
        name="sink_is_not_scaled",
        check=sink_enters_the_denominator_unscaled_and_per_head,
        plant=plant_scaled_sink,
        golden=True,
    ),
    Trap(
        number=22,
        name="sink_is_per_head",
        check=sink_enters_the_denominator_unscaled_and_per_head,
        plant=plant_one_sink_for_all_heads,
        golden=True,
    ),
    Trap(
        number=25,
        name="candidate_blocks_may_be_fewer_than_the_count_kept",
        check=candidate_blocks_may_be_fewer_than_the_count_kept,
        plant=plant_context_floor,
    ),
)
