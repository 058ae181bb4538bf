"""The cache: who holds which block, what a slot number means, and what its packed form would weigh."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from port.config import ModelConfig
from port.errors import PortError
from port.numerics import NumericProfile
from port.runtime.block_manager import BlockManager
from port.runtime.cache_engine import CacheEngine
from port.runtime.cache_layout import CacheLayout, packed_block_bytes, packed_state_bytes
from port.runtime.prefill_inputs import build_prefill
from port.runtime.slots import compressed_slots, compressor_slots, window_slots
from tests.port.golden import prefill_logits, run_chunks
from tests.port.tiny import BASE, random_ids, tiny_config, tiny_model
from tests.shared import shared_path

FP32 = NumericProfile.named("fp32")


def test_ids_are_handed_out_in_order_and_zero_never():
    manager = BlockManager(5)
    assert manager.allocate(3) == (1, 2, 3)
    assert manager.in_use == (1, 2, 3)
    assert manager.free_count == 1


def test_freed_ids_go_to_the_end_of_the_list_last_first():
    manager = BlockManager(6)
    first = manager.allocate(3)
    manager.free(first)
    assert manager.allocate(5) == (4, 5, 3, 2, 1)


def test_a_pinned_id_is_kept_until_its_last_reference_goes():
    manager = BlockManager(3)
    ids = manager.allocate(2)
    manager.pin(ids[:1])
    manager.free(ids)
    assert manager.in_use == (1,)
    manager.free(ids[:1])
    assert manager.in_use == ()


def test_too_large_a_request_takes_nothing_and_says_how_much_there_is():
    manager = BlockManager(4)
    manager.allocate(1)
    with pytest.raises(PortError, match="expected 3 free ids; found 2 of 3"):
        manager.allocate(3)
    assert manager.free_count == 2


def test_ids_that_nobody_holds_cannot_be_freed_or_pinned():
    manager = BlockManager(4)
    ids = manager.allocate(1)
    manager.free(ids)
    for call in (manager.free, manager.pin):
        with pytest.raises(KeyError):
            call(ids)
    assert manager.allocate(3) == (2, 3, 1), "no id is on the list twice"


def test_slot_numbers_are_those_of_the_contract():
    layout = CacheLayout(window=128, backtracking=1, ratios=(1, 2))
    state, position = torch.tensor([3]).numpy(), torch.tensor([300]).numpy()
    assert window_slots(layout, state, position).tolist() == [3 * 129 + 300 % 129]
    assert compressor_slots(layout, 2, state, position).tolist() == [3 * 2 + 0]
    table, entries = torch.tensor([7, 9]).numpy(), torch.tensor([0, 63, 64, 100]).numpy()
    assert compressed_slots(layout, 2, table, entries).tolist() == [7 * 64, 7 * 64 + 63, 9 * 64, 9 * 64 + 36]
    assert compressed_slots(layout, 1, table, entries).tolist() == [7 * 128, 7 * 128 + 63, 7 * 128 + 64, 7 * 128 + 100]


def test_rings_hold_the_window_and_what_may_be_taken_back():
    assert CacheLayout(window=128, backtracking=1, ratios=(2,)).ring == 129
    assert CacheLayout(window=128, backtracking=6, ratios=(2,)).ring == 134
    assert CacheLayout(window=128, backtracking=1, ratios=(2,)).compressor_ring(2) == 2
    assert CacheLayout(window=128, backtracking=6, ratios=(2,)).compressor_ring(2) == 7
    with pytest.raises(ValueError, match="backtracking: expected at least 1; found 0"):
        CacheLayout(window=128, backtracking=0, ratios=(2,))


def test_blocks_stand_for_128_tokens():
    layout = CacheLayout(window=4, backtracking=1, ratios=(1, 2))
    assert [layout.blocks_for(tokens) for tokens in (0, 1, 128, 129, 256)] == [0, 1, 1, 2, 2]
    assert [layout.entries_per_block(ratio) for ratio in (1, 2)] == [128, 64]


def test_packed_bytes_of_the_release_are_those_of_the_contract():
    config = ModelConfig.from_file(shared_path("spec", "released_config.json"))
    assert packed_block_bytes(config) == 114_048
    assert packed_state_bytes(config) == 2_954_688
    assert packed_state_bytes(config, backtracking=6) == 3_128_928


def test_packed_bytes_worked_by_hand():
    # main entries: 96 / 2 + 96 / 16 = 54 bytes, index entries: 64 / 2 + 64 / 32 = 34 bytes
    sections = 2 * (64 * 34 + 64 * 54) + (128 * 34 + 128 * 54)
    assert packed_block_bytes(BASE) == math.ceil(sections / math.lcm(128, 54)) * math.lcm(128, 54)
    wide = tiny_config(use_fp4_sparse_kv=False)
    sections = 2 * (64 * 34 + 64 * 99) + (128 * 34 + 128 * 99)
    assert packed_block_bytes(wide) == math.ceil(sections / math.lcm(128, 99)) * math.lcm(128, 99)
    # 8 rings (the draft layer's too) of 12 rows of 96 + 3 bytes, padded to 32; two states of 2 x 2 x 96 float32
    rings = 8 * math.ceil(12 * 99 / 32) * 32
    states = 2 * 2 * 2 * 96 * 4
    assert packed_state_bytes(BASE) == math.ceil((rings + states) / math.lcm(32, 99)) * math.lcm(32, 99)


def test_views_are_shared_with_their_source_and_owned_otherwise():
    cache = CacheEngine(BASE, profile=FP32, num_blocks=3, num_states=4)
    views = cache.kv_caches
    assert [None if view.ca_cache is None else tuple(view.ca_cache.shape) for view in views] == [
        None,
        *[(3, 64, 96)] * 3,
        *[(3, 128, 96)] * 3,
    ]
    assert views[2].ca_cache is views[1].ca_cache
    assert views[2].ica_cache is views[1].ica_cache
    assert views[3].ca_cache is not views[1].ca_cache
    assert views[6].ca_cache is views[4].ca_cache
    assert [view.ca_state is not None for view in views] == [False, True, False, True, False, False, False]
    assert tuple(views[1].ca_state.shape) == (4, 2, 2, 96)
    assert {tuple(view.swa_cache.shape) for view in views} == {(4, 12, 96)}
    assert len({view.swa_cache.data_ptr() for view in views}) == 7
    by_hand = 7 * 4 * 12 * 96 + 2 * 3 * 64 * (96 + 64) + 3 * 128 * (96 + 64) + 2 * 4 * 2 * 2 * 96
    assert cache.nbytes == 4 * by_hand


def test_rows_take_the_activation_dtype_and_group_states_stay_float32():
    view = CacheEngine(BASE, profile=NumericProfile.named("bf16"), num_blocks=2, num_states=2).kv_caches[1]
    assert view.swa_cache.dtype == view.ca_cache.dtype == view.ica_cache.dtype == torch.bfloat16
    assert view.ca_state.dtype == torch.float32


def test_admitting_takes_blocks_and_a_state_and_releasing_gives_them_back():
    cache = CacheEngine(BASE, profile=FP32, num_blocks=5, num_states=3)
    one = cache.admit((1,) * 100, max_tokens=28)
    two = cache.admit((1,) * 100, max_tokens=29)
    assert (one.block_table, one.state_id) == ((1,), 1)
    assert (two.block_table, two.state_id) == ((2, 3), 2)
    cache.release(one)
    assert (cache.blocks.in_use, cache.states.in_use) == ((2, 3), (2,))


def test_a_sequence_that_does_not_fit_takes_nothing():
    cache = CacheEngine(BASE, profile=FP32, num_blocks=3, num_states=2)
    with pytest.raises(PortError, match="expected 3 free ids; found 2 of 2"):
        cache.admit((1,) * 300)
    cache.admit((1,))
    with pytest.raises(PortError, match="expected 1 free ids; found 0 of 1"):
        cache.admit((1,))
    assert cache.blocks.in_use == (1,), "the block of the second sequence went back when there was no state for it"


def test_reused_blocks_and_states_need_no_clearing():
    text_model, first, second = tiny_model(), random_ids(60, seed=1), random_ids(50, seed=2)
    cache = text_model.cache_for([60])
    sequence = cache.admit(first)
    _, sequence = run_chunks(text_model, cache, sequence, [60])
    cache.release(sequence)
    again = cache.admit(second)
    assert (again.block_table, again.state_id) == (sequence.block_table, sequence.state_id)
    found, _ = run_chunks(text_model, cache, again, [13, 37])
    torch.testing.assert_close(found, prefill_logits(text_model, second), rtol=1e-4, atol=1e-4)


def test_row_0_of_every_pool_stays_zero():
    text_model, ids = tiny_model(), random_ids(30)
    cache = text_model.cache_for([30])
    run_chunks(text_model, cache, cache.admit(ids), [11, 19])
    for view in cache.kv_caches:
        for name in ("swa_cache", "ca_cache", "ica_cache"):
            pool = getattr(view, name)
            if pool is not None:
                assert pool[0].abs().sum() == 0
                assert pool[1].abs().sum() > 0


def test_sequences_do_not_touch_each_other():
    text_model = tiny_model()
    cache = text_model.cache_for([40, 40])
    one, two = cache.admit(random_ids(40, seed=1)), cache.admit(random_ids(40, seed=2))
    run_chunks(text_model, cache, one, [40])
    before = {i: view.swa_cache[one.state_id].clone() for i, view in enumerate(cache.kv_caches)}
    blocks = cache.kv_caches[4].ca_cache[list(one.block_table)].clone()
    run_chunks(text_model, cache, two, [9, 31])
    assert all(torch.equal(view.swa_cache[one.state_id], before[i]) for i, view in enumerate(cache.kv_caches))
    assert torch.equal(cache.kv_caches[4].ca_cache[list(one.block_table)], blocks)


@pytest.mark.parametrize("layer", range(7))
def test_a_restored_layer_runs_again_with_the_same_bits(layer):
    text_model, ids = tiny_model(), random_ids(40)
    model, cache = text_model.model, text_model.cache_for([40])
    _, sequence = run_chunks(text_model, cache, cache.admit(ids), [25])
    batch = build_prefill(cache.layout, [sequence], engram=text_model.engram)
    with torch.inference_mode():
        state = model.begin(batch)
        for step in model.steps():
            if step.layer == layer and step.kind == "attention":
                break
            state = model.run_step(step, state, batch, cache)
        kept = cache.snapshot(layer)
        before = copies(cache)
        once = model.run_step(step, state, batch, cache)
        after = copies(cache)
        covered = {(layer, name) for name in kept.tensors}
        assert changed(cache, before, after) == covered, "a step changes what its snapshot covers, and nothing else"
        cache.restore(kept)
        assert changed(cache, before, copies(cache)) == set()
        again = model.run_step(step, state, batch, cache)
    assert all(torch.equal(tensor, again.tensors()[name]) for name, tensor in once.tensors().items())
    assert kept.nbytes == sum(tensor.numel() * tensor.element_size() for tensor in kept.tensors.values()) > 0


def test_without_a_restore_a_step_run_again_differs():
    """The snapshot test can fail: rows stored by the first run take the place of history the second one needs."""
    text_model, ids = tiny_model(), random_ids(40)
    model, cache = text_model.model, text_model.cache_for([40])
    _, sequence = run_chunks(text_model, cache, cache.admit(ids), [25])
    batch = build_prefill(cache.layout, [sequence], engram=text_model.engram)
    with torch.inference_mode():
        state = model.begin(batch)
        for step in model.steps()[:2]:
            state = model.run_step(step, state, batch, cache)
        attention = model.steps()[2]
        once = model.run_step(attention, state, batch, cache)
        again = model.run_step(attention, state, batch, cache)
    assert not torch.equal(once.stream, again.stream)


def copies(cache):
    return {
        (index, field.name): getattr(view, field.name).clone()
        for index, view in enumerate(cache.kv_caches)
        for field in dataclasses.fields(view)
        if getattr(view, field.name) is not None
    }


def changed(cache, before, after):
    """Owning layer and name of the views that differ."""
    owners = {}
    for index, name in before:
        owners.setdefault(getattr(cache.kv_caches[index], name).data_ptr(), index)
    return {
        (owners[getattr(cache.kv_caches[index], name).data_ptr()], name)
        for (index, name), tensor in before.items()
        if not torch.equal(tensor, after[index, name])
    }
