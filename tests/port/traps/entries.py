"""Traps of compressed entries: their groups, who sees them, who selects them, and where they are stored."""

from __future__ import annotations

import pytest
import torch

from port.kernels.gather import load_rows
from port.kernels.index_selection import block_scores, restrict_to_blocks
from port.model.attention import Attention
from port.model.indexer import Indexer
from port.model.taps import RecordingTap
from port.runtime import prefill_inputs
from port.runtime.decode_inputs import build_decode
from port.runtime.prefill_inputs import build_prefill
from tests.port.golden import prefill_logits, run_chunks
from tests.port.tiny import BASE
from tests.port.traps.mutation import (
    Trap,
    replace_function,
    replace_method,
    rewrite_function,
    rewrite_method,
    wrap_function,
)
from tests.port.traps.runs import (
    TOKENS,
    alike,
    chunks_equal_one_prefill,
    decode_batch,
    one_sequence_batch,
    tiny,
)


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


ENTRY_TRAPS = (
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
        plant=rewrite_function(block_scores, ("torch.where(block == newest.unsqueeze(-1), torch.inf, best)", "best")),
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
)
