"""Traps of the projections, rotations and cache rows of attention."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from port.kernels.quantize import round_trip_fp4, round_trip_fp4_e4m3, round_trip_fp8
from port.kernels.rotary import rotate_tail
from port.model.precision import Precision
from port.model.taps import RecordingTap
from port.model.transformer import Transformer
from tests.port.tiny import BASE
from tests.port.traps.mutation import (
    Plant,
    Trap,
    replace_method,
    wrap_function,
)
from tests.port.traps.runs import (
    TOKENS,
    alike,
    one_sequence_batch,
    taps_of,
    tiny,
)


def queries_keep_their_size() -> None:
    text_model = tiny()
    layer = text_model.model.layers[0]
    taps = taps_of(text_model)
    y = taps["layers.0.attn.in"]
    latent = layer.attn.q_norm(y @ layer.attn.wq_a.dense.T)
    query = (latent @ layer.attn.wq_b.dense.T).unflatten(-1, (BASE.num_attention_heads, -1))
    alike(taps["layers.0.attn.q"].norm(dim=-1), query.norm(dim=-1))


def plant_query_norm(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(right, x, cos, sin, *, inverse=False):
        if x.ndim == 3 and not inverse:
            x = x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True))
        return right(x, cos, sin, inverse=inverse)

    wrap_function(monkeypatch, rotate_tail, wrong)


def index_rows_are_quantised_as_they_are() -> None:
    one = torch.zeros(1, BASE.index_head_dim)
    one[0, 3] = 6.0
    assert torch.equal(tiny("fp32kv").model.precision.index_row(one), one)
    taps = taps_of(tiny("fp32kv"))
    for name in ("layers.1.attn.index_query", "layers.1.attn.index_key"):
        assert torch.equal(round_trip_fp4(taps[name]), taps[name]), name


def plant_hadamard(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Precision.index_row

    def wrong(self, x):
        matrix = torch.ones(1, 1)
        while matrix.shape[0] < x.shape[-1]:
            matrix = torch.cat((torch.cat((matrix, matrix), 1), torch.cat((matrix, -matrix), 1)))
        return right(self, x @ matrix * x.shape[-1] ** -0.5)

    replace_method(monkeypatch, Precision, "index_row", wrong)


def window_rows_are_quantised_whole() -> None:
    taps = taps_of(tiny("fp32kv"))
    for layer in (0, 4):
        rows = taps[f"layers.{layer}.attn.kv"]
        assert torch.equal(round_trip_fp8(rows), rows)


def compressed_rows_are_quantised_whole() -> None:
    taps = taps_of(tiny("fp32kv"))
    for layer in (1, 4):
        rows = taps[f"layers.{layer}.attn.compressed"]
        assert torch.equal(round_trip_fp4_e4m3(rows), rows)


def rotated_part_kept(name: str) -> Plant:
    def plant(monkeypatch: pytest.MonkeyPatch) -> None:
        right = vars(Precision)[name]

        def wrong(self, x):
            width = x.shape[-1] - BASE.qk_rope_head_dim
            return torch.cat((right(self, x)[..., :width], x[..., width:]), dim=-1)

        replace_method(monkeypatch, Precision, name, wrong)

    return plant


def attention_does_not_depend_on_where_it_happens() -> None:
    """A token that sees itself only has the same output at every position: keys double as values."""
    text_model = tiny()
    batch = one_sequence_batch(1)
    batch = dataclasses.replace(batch, engram_row_ids={str(n): torch.zeros(1, 9, dtype=torch.int32) for n in (0, 1)})
    heads = []
    for position in (0, 9):
        tap = RecordingTap({"layers.0.attn.heads"})
        moved = dataclasses.replace(batch, positions=torch.full_like(batch.positions, position), max_position=position)
        with torch.inference_mode():
            text_model.model(moved, text_model.cache_for([200]), tap)
        heads.append(tap.tensors["layers.0.attn.heads"])
    alike(heads[1].flatten(1), heads[0].flatten(1))


def a_layer_has_one_rotation_for_all_its_rows() -> None:
    text_model = tiny()
    taps, model = taps_of(text_model), text_model.model
    for layer, kind in ((0, "window"), (1, "compress"), (4, "compress")):
        attn, y = model.layers[layer].attn, taps[f"layers.{layer}.attn.in"]
        rotation = model.rotations(one_sequence_batch(len(TOKENS)))[kind](torch.arange(len(TOKENS)))
        alike(taps[f"layers.{layer}.attn.kv"], rotate_tail(attn.kv_norm(y @ attn.wkv.dense.T), *rotation))
        latent = attn.q_norm(y @ attn.wq_a.dense.T)
        query = (latent @ attn.wq_b.dense.T).unflatten(-1, (BASE.num_attention_heads, -1))
        alike(taps[f"layers.{layer}.attn.q"].flatten(1), rotate_tail(query, *rotation).flatten(1))


def plant_window_rotation_of_window_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Window rows of compressed layers rotate with the plain table."""
    right = Transformer.run_step

    def run_step(self, step, state, batch, cache, tap=None):
        tables = self.rotations(batch)

        def wrong(right_kernel, x, cos, sin, *, inverse=False):
            if step.kind == "attention" and x.ndim == 2 and x.shape == (len(batch.positions), BASE.head_dim):
                cos, sin = tables["window"](batch.positions)
            return right_kernel(x, cos, sin, inverse=inverse)

        with pytest.MonkeyPatch.context() as inner:
            wrap_function(inner, rotate_tail, wrong)
            return right(self, step, state, batch, cache, tap)

    replace_method(monkeypatch, Transformer, "run_step", run_step)


ATTENTION_TRAPS = (
    Trap(
        number=1,
        name="queries_have_no_norm_per_head",
        check=queries_keep_their_size,
        plant=plant_query_norm,
        golden=True,
    ),
    Trap(
        number=1,
        name="index_rows_have_no_hadamard",
        check=index_rows_are_quantised_as_they_are,
        plant=plant_hadamard,
    ),
    Trap(
        number=11,
        name="window_rows_are_quantised_whole",
        check=window_rows_are_quantised_whole,
        plant=rotated_part_kept("window_row"),
    ),
    Trap(
        number=11,
        name="compressed_rows_are_quantised_whole",
        check=compressed_rows_are_quantised_whole,
        plant=rotated_part_kept("compressed_row"),
    ),
    Trap(
        number=12,
        name="output_is_turned_back_by_the_query_position",
        check=attention_does_not_depend_on_where_it_happens,
        plant=lambda monkeypatch: wrap_function(
            monkeypatch,
            rotate_tail,
            lambda right, x, cos, sin, *, inverse=False: x if inverse else right(x, cos, sin),
        ),
        golden=True,
    ),
    Trap(
        number=13,
        name="window_rows_of_compressed_layers_use_their_table",
        check=a_layer_has_one_rotation_for_all_its_rows,
        plant=plant_window_rotation_of_window_rows,
    ),
)
