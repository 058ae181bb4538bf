"""What a batch tells the model, worked by hand on short sequences."""

from __future__ import annotations

import pytest
import torch

from port.errors import ShapeBucketError
from port.runtime.cache_layout import CacheLayout
from port.runtime.decode_inputs import build_decode
from port.runtime.input_metadata import PADDING_QUERY_INDEX
from port.runtime.prefill_inputs import build_prefill
from port.runtime.sequence import Sequence

LAYOUT = CacheLayout(window=3, backtracking=1, ratios=(1, 2))


def sequence(tokens, *, cached=0, state=1, table=(1,)):
    return Sequence(token_ids=tuple(range(10, 10 + tokens)), block_table=table, state_id=state, cached=cached)


def test_prefill_of_two_sequences():
    batch = build_prefill(LAYOUT, [sequence(5, cached=2), sequence(2, state=2, table=(2,))])
    assert batch.is_prompt
    assert batch.num_reqs == 2
    assert batch.total_q == 5
    assert batch.max_position == 4
    assert batch.input_ids.tolist() == [12, 13, 14, 10, 11]
    assert batch.positions.tolist() == [2, 3, 4, 0, 1]
    assert batch.cu_seqlens_q.tolist() == [0, 3, 5]
    assert batch.cu_seqlens_k.tolist() == [0, 5, 7]
    assert batch.klen["1"].tolist() == [3, 4, 5, 1, 2]
    assert batch.klen["2"].tolist() == [1, 2, 2, 0, 1]
    # ring of 4: state 1 has slots 4 to 7, state 2 slots 8 to 11
    assert batch.slot_mapping_store_swa.tolist() == [6, 7, 4, 8, 9]
    assert batch.load_slots_swa.tolist() == [-1, 4, 5, -1, -1, -1]
    # history of 3 rows per sequence, then this batch's rows from 6 on
    assert batch.kv_swa_full_index.tolist() == [[1, 2, 6], [2, 6, 7], [6, 7, 8], [9, -1, -1], [9, 10, -1]]
    # entries of ratio 2: the first sequence completes entry 1, the second entry 0
    assert batch.positions_c["2"].tolist() == [2, 0]
    assert batch.slot_mapping_store_ca["2"].tolist() == [64 + 1, 128]
    assert batch.compress_rows["2"].tolist() == [[0, 1], [3, 4]]
    assert batch.load_slots_ca["2"].tolist() == [64, 65, 128]
    assert batch.ks["2"].tolist() == [0, 0, 0, 2, 2]
    assert batch.ke["2"].tolist() == [1, 2, 2, 2, 3]
    assert [span.entries["2"] for span in batch.requests] == [(0, 2), (2, 3)]
    assert [span.rows for span in batch.requests] == [(0, 3), (3, 5)]
    # the state keeps the rows of the last group; both slots of state 1 are 2 and 3
    assert batch.slot_mapping_store_state["2"].tolist() == [-1, 3, 2, 4, 5]


def test_a_sequence_without_an_entry_gets_a_dummy_that_is_not_stored():
    batch = build_prefill(LAYOUT, [sequence(1)])
    assert batch.slot_mapping_store_ca["2"].tolist() == [-1]
    assert batch.load_slots_ca["2"].tolist() == [-1]
    assert batch.klen["2"].tolist() == [0]


def test_only_rows_that_the_ring_can_hold_are_stored():
    batch = build_prefill(LAYOUT, [sequence(9)])
    kept = [slot for slot in batch.slot_mapping_store_swa.tolist() if slot >= 0]
    assert len(kept) == LAYOUT.ring
    assert len(set(kept)) == len(kept), "no slot is written twice"


def test_decode_of_two_sequences_with_padding():
    batch = build_decode(
        LAYOUT, [sequence(6, cached=5), sequence(3, cached=2, state=2, table=(2, 3))], rows=4, table_width=3
    )
    assert not batch.is_prompt
    assert batch.num_reqs == 2
    assert batch.total_q == 4
    assert batch.input_ids.tolist() == [15, 12, 0, 0]
    assert batch.positions.tolist() == [5, 2, 0, 0]
    assert batch.max_position == 3 * 128 - 1, "a property of the shape, not of the step"
    assert batch.valid_token_mask.tolist() == [True, True, False, False]
    assert batch.query_indices.tolist() == [0, 1, PADDING_QUERY_INDEX, PADDING_QUERY_INDEX]
    assert batch.context_lens.tolist() == [6, 3, 1, 1]
    assert batch.klen["2"].tolist() == [3, 1, 0, 0]
    assert batch.slot_mapping_store_swa.tolist() == [4 + 1, 8 + 2, -1, -1]
    assert batch.kv_swa_index.tolist() == [[7, 4, 5], [8, 9, 10], [-1] * 3, [-1] * 3]
    assert batch.slot_mapping_store_ca["2"].tolist() == [64 + 2, -1, -1, -1]
    assert batch.slot_mapping_store_ca["1"].tolist() == [128 + 5, 256 + 2, -1, -1]
    # row 0 finds the first half of its group in the state, above the 4 rows; the others name themselves
    assert batch.compress_rows["2"].tolist() == [[4, 0], [1, 1], [2, 2], [3, 3]]
    assert batch.block_tables.tolist() == [[1, 0, 0], [2, 3, 0], [0, 0, 0], [0, 0, 0]]
    assert batch.state_block_idx.tolist() == [1, 2, 0, 0]


def test_every_index_is_int32_on_the_host():
    for batch in (build_prefill(LAYOUT, [sequence(5)]), build_decode(LAYOUT, [sequence(5, cached=4)])):
        for name, tensor in batch.tensors().items():
            assert tensor.dtype == (torch.bool if name == "valid_token_mask" else torch.int32), name
            assert tensor.device.type == "cpu"


def test_a_batch_maps_every_tensor_and_stays_where_it_is():
    batch = build_prefill(LAYOUT, [sequence(5)])
    assert batch.to("cpu") is batch
    moved = batch.to("meta")
    assert set(moved.tensors()) == set(batch.tensors())
    assert {tensor.device.type for tensor in moved.tensors().values()} == {"meta"}


def test_wrong_prefills_are_explained():
    with pytest.raises(ValueError, match="expected at least one sequence to prefill; found none"):
        build_prefill(LAYOUT, [])
    with pytest.raises(ValueError, match=r"chunk_lens: expected one per sequence \(1\); found 2"):
        build_prefill(LAYOUT, [sequence(3)], chunk_lens=[1, 1])
    for length in (0, 4):
        with pytest.raises(ValueError, match=rf"chunk_lens\[0\]: expected 1 to 3, .*found {length}"):
            build_prefill(LAYOUT, [sequence(3)], chunk_lens=[length])


def test_wrong_decodes_are_explained():
    with pytest.raises(ValueError, match="expected at least one sequence to decode; found none"):
        build_decode(LAYOUT, [])
    with pytest.raises(ValueError, match=r"sequences\[1\]: expected 1 to 1 pending tokens.*found 2"):
        build_decode(LAYOUT, [sequence(3, cached=2), sequence(3, cached=1)])
    with pytest.raises(
        ShapeBucketError, match="rows: expected at least 2, the pending tokens of all sequences; found 1"
    ):
        build_decode(LAYOUT, [sequence(3, cached=2), sequence(3, cached=2)], rows=1)
    with pytest.raises(ShapeBucketError, match="table_width: expected at least 2 blocks for 200 tokens; found 1"):
        build_decode(LAYOUT, [sequence(200, cached=199, table=(1, 2))], table_width=1)


def test_a_sequence_is_a_value():
    one = sequence(4)
    assert (len(one), one.pending) == (4, 4)
    two = one.advanced(3).with_token(99)
    assert (two.cached, two.pending, two.token_ids[-1]) == (3, 2, 99)
    assert one.cached == 0
    assert two.rewound(1).cached == 1
    with pytest.raises(ValueError, match="expected to advance by 0 to 4 tokens; found 5"):
        one.advanced(5)
    with pytest.raises(ValueError, match="expected to rewind to a length from 0 to 3; found 4"):
        two.rewound(4)
