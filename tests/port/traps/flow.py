"""Traps that lie in how the parts are put together: each check looks at a run of a small random model, or a batch."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from port.config_rules import config_problems
from port.errors import ConfigError
from port.kernels.gather import load_rows
from port.kernels.hyper_connections import mixing_values
from port.kernels.index_selection import candidate_blocks, restrict_to_blocks
from port.kernels.quantize import round_trip_fp4, round_trip_fp4_e4m3, round_trip_fp8
from port.kernels.rotary import rotate_tail
from port.kernels.swiglu import clamped_swiglu
from port.model.attention import Attention
from port.model.block import Block
from port.model.engram import EngramTable
from port.model.experts import Expert
from port.model.indexer import Indexer
from port.model.precision import Precision
from port.model.taps import RecordingTap
from port.model.transformer import Transformer
from port.runtime import engram_hash, prefill_inputs
from port.runtime.cache_layout import CacheLayout
from port.runtime.decode_inputs import build_decode
from port.runtime.engram_hash import multiplier_table
from port.runtime.prefill_inputs import build_prefill
from port.runtime.sequence import Sequence
from port.runtime.text_model import TextModel
from port.tokenizer import Tokenizer
from port.verify_rules import row_errors
from tests.port.golden import CHECKPOINT_A, model_a, prefill_logits, prompt_ids, run_chunks
from tests.port.tiny import BASE, random_ids, tiny_config, tiny_model
from tests.port.traps.mutation import (
    Plant,
    Trap,
    replace_function,
    replace_method,
    rewrite_function,
    rewrite_method,
    wrap_function,
)

TOLERANCE = 1e-4
TOKENS = random_ids(60)


@functools.cache
def _tiny(profile: str) -> TextModel:
    return tiny_model(profile)


def tiny(profile: str = "fp32") -> TextModel:
    """Return the small model without the rotation tables that an earlier run made."""
    text_model = _tiny(profile)
    text_model.model._rotations = None
    return text_model


def taps_of(text_model: TextModel, token_ids: tuple[int, ...] = TOKENS) -> dict[str, Tensor]:
    tap = RecordingTap()
    prefill_logits(text_model, token_ids, tap)
    return tap.tensors


def alike(found: Tensor, expected: Tensor) -> None:
    assert float(row_errors(expected, found).max()) <= TOLERANCE


# Attention projections and index rows


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


# The hand-over between sub-layers


def sub_layers_hand_over_one_late() -> None:
    text_model = tiny()
    layers, taps = text_model.model.layers, taps_of(text_model)

    def collapse_weights(stream: Tensor, block: Block, part: str) -> Tensor:
        """The first mix of a sub-layer, from one statistic over all streams together."""
        flat = stream.flatten(1)
        mix = flat @ block.get_parameter(f"hc_{part}_fn").T / flat.square().mean(dim=-1, keepdim=True).sqrt()
        scale, base = block.get_parameter(f"hc_{part}_scale"), block.get_parameter(f"hc_{part}_base")
        return torch.sigmoid(mix[:, : BASE.hc_mult] * scale[0] + base[: BASE.hc_mult]) + BASE.hc_eps

    def entering(block: Block, part: str, stream: Tensor, pre: Tensor) -> Tensor:
        return getattr(block, f"{part}_norm")((pre.unsqueeze(-1) * stream).sum(dim=1))

    stream = taps["layers.0.engram.out"]
    copy_0 = torch.zeros(len(TOKENS), BASE.hc_mult)
    copy_0[:, 0] = 1
    alike(taps["layers.0.attn.in"], entering(layers[0], "attn", stream, copy_0))
    pre = collapse_weights(stream, layers[0], "attn")
    stream = taps["layers.0.attn.stream"]
    alike(taps["layers.0.ffn.in"], entering(layers[0], "ffn", stream, pre))
    pre = collapse_weights(stream, layers[0], "ffn")
    alike(taps["layers.1.attn.in"], entering(layers[1], "attn", taps["layers.1.engram.out"], pre))


def plant_collapsed_statistics(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(right, stream, weight, **options):
        return right(stream.mean(dim=1, keepdim=True).expand_as(stream), weight, **options)

    wrap_function(monkeypatch, mixing_values, wrong)


def mixing_of_a_small_stream_uses_rms_norm_eps() -> None:
    block = tiny().model.layers[2]
    stream = torch.randn(4, BASE.hc_mult, BASE.hidden_size, generator=torch.Generator().manual_seed(0))
    pre = torch.zeros(4, BASE.hc_mult)
    state = tiny().model.begin(one_sequence_batch(4)).replace(stream=stream, pre=pre)
    small = state.replace(stream=stream * 2.0**-16)
    for found, expected in zip(block._enter("attn", small)[2], block._enter("attn", state)[2], strict=True):
        alike(found.flatten(1), expected.flatten(1))


def mixing_has_no_norm_weight_of_its_own() -> None:
    assert not [name for name in tiny().model.state_dict() if "hc_" in name and "norm" in name]
    sub_layers_hand_over_one_late()


def plant_weighted_mixing(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Block._enter

    def wrong(self, part, state):
        stream, pre, _ = right(self, part, state)
        norm = getattr(self, f"{part}_norm").weight.float()
        _, _, mixes = right(self, part, state.replace(stream=stream * norm))
        return stream, pre, mixes

    replace_method(monkeypatch, Block, "_enter", wrong)


# Groups, entries and their positions


def one_sequence_batch(tokens: int, *, start: int = 0):
    """A prefill batch of one sequence, built without a model."""
    layout = CacheLayout(window=4, backtracking=1, ratios=(1, 2))
    sequence = Sequence(token_ids=tuple(range(start + tokens)), block_table=(1, 2), state_id=1, cached=start)
    return build_prefill(layout, [sequence])


def chunks_equal_one_prefill(chunks: list[int], profile: str = "fp32") -> None:
    text_model = tiny(profile)
    whole = prefill_logits(text_model, TOKENS)
    cache = text_model.cache_for([len(TOKENS)])
    found, _ = run_chunks(text_model, cache, cache.admit(TOKENS), chunks)
    alike(found, whole)


def groups_lie_at_absolute_positions() -> None:
    batch = one_sequence_batch(4, start=3)
    # token 3 completes group 1 with token 2, which lies in the state: above the 4 rows, ring slot 0
    assert batch.compress_rows["2"].tolist() == [[4, 0], [1, 2]]
    chunks_equal_one_prefill([3, 20, 7, 30])


def entries_rotate_at_their_first_token() -> None:
    assert one_sequence_batch(6).positions_c["2"].tolist() == [0, 2, 4]
    assert one_sequence_batch(6).positions_c["1"].tolist() == [0, 1, 2, 3, 4, 5]
    assert decode_batch(position=5).positions_c["2"].tolist() == [4]


def entries_are_visible_once_their_group_is_complete() -> None:
    assert one_sequence_batch(6).klen["2"].tolist() == [0, 1, 1, 2, 2, 3]
    assert [int(decode_batch(position=position).klen["2"]) for position in range(6)] == [0, 1, 1, 2, 2, 3]


def decode_batch(*, position: int):
    layout = CacheLayout(window=4, backtracking=1, ratios=(1, 2))
    tokens = tuple(range(position + 1))
    return build_decode(layout, [Sequence(token_ids=tokens, block_table=(1,), state_id=1, cached=position)])


def decode_scores_the_source_s_own_keys() -> None:
    text_model = tiny()
    whole = prefill_logits(text_model, TOKENS)
    begin = 52  # 26 entries of ratio 2, of which 7 are kept
    cache = text_model.cache_for([len(TOKENS)])
    _, sequence = run_chunks(text_model, cache, cache.admit(TOKENS[:begin], max_tokens=20), [begin])
    rows = []
    with torch.inference_mode():
        for token in TOKENS[begin:]:
            sequence = sequence.with_token(token)
            batch = build_decode(cache.layout, [sequence], engram=text_model.engram)
            rows.append(text_model.model(batch, cache))
            sequence = sequence.advanced(1)
    alike(torch.cat(rows), whole[begin:])


def plant_stale_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """The keys published last stay in place while a decode step completes no group."""
    right, published = Indexer._scores, {}

    def wrong(self, query, weight, batch, cache, gathered):
        if not batch.is_prompt:
            completes = int(batch.slot_mapping_store_ca[str(self.role.ratio)].max()) >= 0
            if completes or not published:
                published["cache"] = cache
            cache = published["cache"]
        return right(self, query, weight, batch, cache, gathered)

    replace_method(monkeypatch, Indexer, "_scores", wrong)


# Candidate blocks


def selections_follow_the_candidate_rules() -> None:
    """Every selection, in a prefill in two chunks, is the one a slow version makes of the same scores."""
    text_model = tiny()
    cache = text_model.cache_for([len(TOKENS)])
    sequence = cache.admit(TOKENS)
    for length in (33, 27):
        tap = RecordingTap()
        batch = build_prefill(cache.layout, [sequence], engram=text_model.engram, chunk_lens=[length])
        with torch.inference_mode():
            text_model.model(batch, cache, tap)
        sequence = sequence.advanced(length)
        scores = {layer: tap.tensors[f"layers.{layer}.attn.index_score"] for layer in BASE.index_source_layer_ids}
        for row in range(length):
            seen = int(batch.positions[row]) + 1
            allowed = slow_blocks(scores[4][row].tolist(), seen)
            for layer, score in scores.items():
                inside = [j for j in range(seen // BASE.compress_ratios[layer]) if layer != 6 or j // 5 in allowed]
                best = largest({j: float(score[row, j]) for j in inside}, BASE.index_topk)
                found = tap.tensors[f"layers.{layer}.attn.index_topk"][row].tolist()
                assert found == best + [-1] * (BASE.index_topk - len(best)), f"layer {layer}, row {row}"


def slow_blocks(scores: list[float], seen: int) -> set[int]:
    size = BASE.candidate_block_size
    best = {block: max(scores[block * size : (block + 1) * size]) for block in range(-(-seen // size))}
    best[(seen - 1) // size] = float("inf")
    return set(largest(best, BASE.candidate_topk_blocks))


def largest(values: dict[int, float], count: int) -> list[int]:
    """Return the ascending keys of the largest values; of equal values the lower key."""
    return sorted(sorted(values, key=lambda key: (-values[key], key))[:count])


# Cache rows


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


def stored_rows_are_read_back_from_their_slots() -> None:
    """Rows written by a prefill are the rows a decode reads, entry by entry."""
    text_model = tiny()
    cache = text_model.cache_for([len(TOKENS) + 1])
    sequence, tap = cache.admit(TOKENS, max_tokens=1), RecordingTap()
    with torch.inference_mode():
        text_model.model(build_prefill(cache.layout, [sequence], engram=text_model.engram), cache, tap)
    for layer in BASE.kv_source_layer_ids:
        for view, name in (("ca_cache", "compressed"), ("ica_cache", "index_key")):
            rows = tap.tensors[f"layers.{layer}.attn.{name}"]
            pool = getattr(cache.kv_caches[layer], view)
            slots = torch.arange(rows.shape[0]) + sequence.block_table[0] * pool.shape[1]
            assert torch.equal(load_rows(pool.flatten(0, 1), slots), rows)


def plant_planar_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows read as if each block held its columns one after the other: every index stays in bounds."""

    def wrong(right, pool, slot):
        return right(pool.T.reshape(pool.shape), slot)

    wrap_function(monkeypatch, load_rows, wrong)


def history_is_read_before_it_is_overwritten() -> None:
    chunks_equal_one_prefill([20, 25, 15])  # every chunk is longer than the ring of 12


# Rotations


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


# Experts


def experts_weigh_before_the_second_product_and_gate_with_w1() -> None:
    text_model = tiny("fp32q")
    generator = torch.Generator().manual_seed(3)
    y = round_trip_fp8(torch.randn(9, BASE.hidden_size, generator=generator))
    weight = torch.rand(9, 1, generator=generator)
    expert = text_model.model.layers[0].ffn.experts[4]
    product = F.silu(y @ expert.w1.dense.T) * (y @ expert.w3.dense.T) * weight
    alike(expert(y, weight), round_trip_fp8(product) @ expert.w2.dense.T)


# Engram


def engram_scales_belong_to_rows() -> None:
    embed = tiny().model.layers[0].engram.embed
    rows = torch.tensor([[1, 40, 33], [63, 2, 100]], dtype=torch.int32)
    found = embed(rows, torch.float32)
    for token in range(2):
        for column, row in enumerate(rows[token].tolist()):
            scale = 2.0 ** (embed.scale[row].view(torch.uint8).item() - 127)
            expected = embed.weight[row].to(torch.float32) * scale
            assert torch.equal(found[token, 32 * column : 32 * (column + 1)], expected)


def engram_multipliers_are_those_of_the_release() -> None:
    found = np.stack([engram_hash._draw_multipliers(layer, 4, 99092) for layer in (1, 14)])
    assert found.tolist() == [
        [76632096046245, 4839876093313, 35959672319349, 73987337458391],
        [67716810739261, 51510806800915, 30921347202721, 82619226485591],
    ]


def changed_generator_is_refused() -> None:
    """A NumPy that draws other numbers is an error, not another model."""
    engram_hash._verify_generator.cache_clear()
    multiplier_table(tiny_config())


# Tokenizer and sizes


def prompts_begin_with_bos() -> None:
    text_model = model_a()
    tokenizer = Tokenizer.from_checkpoint(CHECKPOINT_A, text_model.config)
    text = tokenizer.decode(prompt_ids("text2"))
    assert tokenizer.encode(text) == list(prompt_ids("text2"))
    assert tokenizer.encode("")[:1] == [text_model.config.bos_token_id]


def small_sizes_are_taken_and_uneven_ones_refused() -> None:
    assert tiny_config(head_dim=64, qk_rope_head_dim=10, index_head_dim=32, candidate_block_size=3).head_dim == 64
    for name in ("hidden_size", "head_dim", "moe_intermediate_size", "index_head_dim"):
        with pytest.raises(ConfigError, match=f"{name}: expected a multiple of 32"):
            tiny_config(**{name: 40})


def plant_engine_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(right, config):
        limits = [] if config.head_dim == 512 else [f"head_dim: expected 512; found {config.head_dim}"]
        return [*right(config), *limits]

    wrap_function(monkeypatch, config_problems, wrong)


FLOW_TRAPS = (
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
        number=2,
        name="sub_layers_read_with_the_weights_of_the_one_before",
        check=sub_layers_hand_over_one_late,
        plant=rewrite_method(
            Block, "_enter", ("return state.stream, state.pre, mixes", "return state.stream, mixes[0], mixes")
        ),
        golden=True,
    ),
    Trap(
        number=2,
        name="mixes_come_from_the_uncollapsed_streams",
        check=sub_layers_hand_over_one_late,
        plant=plant_collapsed_statistics,
        golden=True,
    ),
    Trap(
        number=2,
        name="first_input_is_copy_0",
        check=sub_layers_hand_over_one_late,
        plant=rewrite_method(Transformer, "_embed", ("pre[:, 0] = 1.0", "pre[:] = 1.0 / streams")),
    ),
    Trap(
        number=5,
        name="mixing_uses_rms_norm_eps",
        check=mixing_of_a_small_stream_uses_rms_norm_eps,
        plant=rewrite_method(Block, "_enter", ("eps=config.rms_norm_eps", "eps=config.hc_eps")),
    ),
    Trap(
        number=5,
        name="mixing_has_no_norm_weight_of_its_own",
        check=mixing_has_no_norm_weight_of_its_own,
        plant=plant_weighted_mixing,
        golden=True,
    ),
    Trap(
        number=6,
        name="groups_lie_at_absolute_positions",
        check=groups_lie_at_absolute_positions,
        plant=rewrite_method(
            prefill_inputs._RatioInputs,
            "__init__",
            ("positions[-1][:, None] + np.arange(ratio)", "positions[-1][:, None] + np.arange(ratio) + start % ratio"),
        ),
    ),
    Trap(
        number=6,
        name="entries_rotate_at_their_first_token",
        check=entries_rotate_at_their_first_token,
        plant=rewrite_method(
            prefill_inputs._RatioInputs,
            "__init__",
            ("self.positions = np.concatenate(positions)", "self.positions = np.concatenate(positions) + ratio - 1"),
        ),
        golden=True,
    ),
    Trap(
        number=6,
        name="entries_are_visible_once_their_group_is_complete",
        check=entries_are_visible_once_their_group_is_complete,
        plant=rewrite_function(build_prefill, ("(positions + 1) // inputs.ratio", "positions // inputs.ratio")),
        golden=True,
    ),
    Trap(
        number=6,
        name="entries_are_visible_in_the_decode_step_that_completes_them",
        check=entries_are_visible_once_their_group_is_complete,
        plant=rewrite_function(build_decode, ("(positions + 1) // ratio", "positions // ratio")),
        golden=True,
    ),
    Trap(
        number=7,
        name="decode_scores_the_source_s_own_keys",
        check=decode_scores_the_source_s_own_keys,
        plant=plant_stale_keys,
        golden=True,
    ),
    Trap(
        number=8,
        name="source_of_the_blocks_selects_freely",
        check=selections_follow_the_candidate_rules,
        plant=rewrite_method(
            Indexer,
            "forward",
            (
                'published = tap(f"{prefix}.candidate_blocks", published)',
                'published = tap(f"{prefix}.candidate_blocks", published)\n'
                "        score = restrict_to_blocks(score, published, block_size=config.candidate_block_size)",
            ),
        ),
        golden=True,
    ),
    Trap(
        number=8,
        name="newest_block_is_pinned",
        check=selections_follow_the_candidate_rules,
        plant=rewrite_function(
            candidate_blocks, ("torch.where(block == newest.unsqueeze(-1), torch.inf, best)", "best")
        ),
        golden=True,
    ),
    Trap(
        number=8,
        name="later_sources_select_inside_the_blocks",
        check=selections_follow_the_candidate_rules,
        plant=lambda monkeypatch: replace_function(
            monkeypatch, restrict_to_blocks, lambda score, blocks, *, block_size: score
        ),
        golden=True,
    ),
    Trap(
        number=8,
        name="blocks_belong_to_one_query_row",
        check=selections_follow_the_candidate_rules,
        plant=lambda monkeypatch: wrap_function(
            monkeypatch,
            restrict_to_blocks,
            lambda right, score, blocks, **options: right(score, blocks[-1:].expand_as(blocks), **options),
        ),
        golden=True,
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
    Trap(
        number=15,
        name="routing_weight_comes_before_w2",
        check=experts_weigh_before_the_second_product_and_gate_with_w1,
        plant=rewrite_method(
            Expert,
            "forward",
            ("clamped_swiglu(gate, up, weight, limit", "clamped_swiglu(gate, up, None, limit"),
            (
                "return self.w2(self.precision.linear_input(product), operands=operands, out_dtype=activation)",
                "output = self.w2(self.precision.linear_input(product), operands=operands, out_dtype=activation)\n"
                "    return output if weight is None else output * weight",
            ),
        ),
    ),
    Trap(
        number=17,
        name="w1_is_the_gate",
        check=experts_weigh_before_the_second_product_and_gate_with_w1,
        plant=lambda monkeypatch: wrap_function(
            monkeypatch,
            clamped_swiglu,
            lambda right, gate, up, weight, **options: right(up, gate, weight, **options),
        ),
        golden=True,
    ),
    Trap(
        number=19,
        name="engram_scales_belong_to_rows",
        check=engram_scales_belong_to_rows,
        plant=rewrite_method(
            EngramTable,
            "forward",
            (
                "gather_table_rows(self.scale, row_ids.flatten())",
                "gather_table_rows(self.scale, row_ids.flatten() // 32 * 32)",
            ),
        ),
        golden=True,
    ),
    Trap(
        number=19,
        name="engram_multipliers_are_those_of_the_release",
        check=engram_multipliers_are_those_of_the_release,
        plant=lambda monkeypatch: monkeypatch.setattr(engram_hash, "_SEED_FACTOR", 10009),
    ),
    Trap(
        number=19,
        name="a_generator_that_draws_other_numbers_is_refused",
        check=changed_generator_is_refused,
        plant=lambda monkeypatch: monkeypatch.setattr(engram_hash, "_SEED_FACTOR", 10009),
    ),
    Trap(
        number=21,
        name="stored_rows_are_read_back_from_their_slots",
        check=stored_rows_are_read_back_from_their_slots,
        plant=plant_planar_reading,
        golden=True,
    ),
    Trap(
        number=23,
        name="history_is_read_before_it_is_overwritten",
        check=history_is_read_before_it_is_overwritten,
        plant=rewrite_method(
            Attention,
            "_window_source",
            (
                "history = load_rows(rows, batch.load_slots_swa)",
                "store_rows(rows, batch.slot_mapping_store_swa, window_row)\n"
                "        history = load_rows(rows, batch.load_slots_swa)",
            ),
        ),
    ),
    Trap(
        number=24,
        name="prompts_begin_with_bos",
        check=prompts_begin_with_bos,
        plant=rewrite_method(Tokenizer, "encode", ("[self.bos_token_id, *ids]", "ids")),
    ),
    Trap(
        number=26,
        name="small_sizes_are_taken",
        check=small_sizes_are_taken_and_uneven_ones_refused,
        plant=plant_engine_limits,
    ),
    Trap(
        number=26,
        name="uneven_sizes_are_refused",
        check=small_sizes_are_taken_and_uneven_ones_refused,
        plant=lambda monkeypatch: replace_function(monkeypatch, config_problems, lambda config: []),
    ),
)
