"""The faces of the communication package in one process: names, refusals, sizes. Ranks: tests/port/collectives."""

from __future__ import annotations

import inspect

import pytest
import torch

from port.vendor import deep_ep
from port.vendor.deep_ep import BucketBuffer, EngramBuffer, EPBuffer

E4M3 = torch.float8_e4m3fn


def ep_buffer(**options):
    return EPBuffer(None, 8, 64, 2, **options)


def rows(count=3, dtype=torch.bfloat16):
    return torch.ones(count, 64).to(dtype), torch.zeros(count, 2, dtype=torch.int64), torch.ones(count, 2)


def arguments_of(function):
    return " ".join(inspect.signature(function).parameters)


def test_arguments_have_the_contracts_names_and_order():
    assert arguments_of(EPBuffer.dispatch) == (
        "self x topk_idx topk_weights cumulative_local_expert_recv_stats num_experts num_max_tokens_per_rank "
        "expert_alignment num_sms previous_event async_with_compute_stream allocate_on_comm_stream do_handle_copy "
        "do_cpu_sync do_expand use_tma_aligned_col_major_sf defer_epilogue"
    )
    assert arguments_of(EPBuffer.combine).startswith("self x handle bias num_sms previous_event ")
    assert arguments_of(EPBuffer) == (
        "group num_max_tokens_per_rank hidden num_topk use_fp8_dispatch allow_hybrid_mode allow_multiple_reduction "
        "explicitly_destroy"
    )
    assert arguments_of(EngramBuffer.get_storage_size_hint) == (
        "group entries_per_layer hidden max_tokens entries_per_token dtype num_sf_packs"
    )
    assert arguments_of(EngramBuffer.get_theoretical_config) == "group num_layers max_tokens entries_per_token"


def test_a_buffer_may_be_destroyed_twice_and_not_used_afterwards():
    buffer = ep_buffer()
    buffer.destroy()
    buffer.destroy()
    with pytest.raises(ValueError, match=r"EPBuffer\.dispatch: expected a buffer in use; this one was destroyed"):
        buffer.dispatch(*rows(), num_experts=2)


def test_an_event_may_be_waited_for_before_a_dispatch():
    buffer = ep_buffer()
    event = buffer.capture()
    assert event.current_stream_wait() is None
    x, *routing = rows()
    recv_x, _, _, handle = buffer.dispatch(x, *routing, num_experts=2, previous_event=event).current_stream_wait()
    combined, weights = buffer.combine(recv_x, handle, previous_event=event).current_stream_wait()
    assert torch.equal(combined, x * 2)
    assert weights is None


def test_the_sum_begins_with_the_shared_row_and_goes_by_slot():
    # In bfloat16 rows and float32 sums the order shows: 2^25 swallows what is added to it one by one.
    buffer = EPBuffer(None, 1, 1, 3)
    x = torch.ones(1, 1, dtype=torch.bfloat16)
    recv_x, _, _, handle = buffer.dispatch(
        x, torch.tensor([[2, 0, 1]]), torch.ones(1, 3), num_experts=3
    ).current_stream_wait()
    by_expert = {2: 2.0**25, 0: 1.0, 1: -(2.0**25)}
    outputs = torch.tensor([[by_expert[expert]] for expert in range(3)]).to(torch.bfloat16)
    assert len(recv_x) == 3
    combined, _ = buffer.combine(outputs, handle, bias=x).current_stream_wait()
    assert combined.item() == 0.0, "(((1 + 2^25) + 1) - 2^25) in float32"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((rows(dtype=torch.float32)[0], *rows()[1:]), r"x: expected torch.bfloat16\[n, 64\]; found torch.float32"),
        ((rows()[0], rows()[1].int(), rows()[2]), r"topk_idx: expected torch.int64\[n, 2\]; found torch.int32"),
        ((*rows()[:2], rows()[2].double()), r"topk_weights: expected torch.float32\[n, 2\]"),
        ((rows(2)[0], *rows(3)[1:]), r"rows\[0\]: expected 3 rows, one per row of ids"),
    ],
)
def test_other_rows_are_refused(arguments, text):
    with pytest.raises(ValueError, match=text):
        ep_buffer().dispatch(*arguments, num_experts=2)


def test_what_is_not_supported_says_so():
    with pytest.raises(ValueError, match="do_expand: expected True, one row per expert; found False"):
        ep_buffer().dispatch(*rows(), num_experts=2, do_expand=False)
    codes = torch.zeros(3, 64, dtype=torch.uint8).view(E4M3)
    with pytest.raises(ValueError, match=r"x\[1\]: expected packed scales in int16, int32 or uint8; found torch.float"):
        ep_buffer(use_fp8_dispatch=True).dispatch((codes, torch.ones(3, 2)), *rows()[1:], num_experts=2)
    with pytest.raises(ValueError, match=r"cumulative_local_expert_recv_stats: expected int32\[2\]"):
        ep_buffer().dispatch(*rows(), torch.zeros(3, dtype=torch.int32), num_experts=2)
    with pytest.raises(ValueError, match="num_experts: expected a multiple of the 1 ranks that share them; found 0"):
        ep_buffer().dispatch(*rows())
    with pytest.raises(ValueError, match="num_max_tokens_per_rank: expected at least 1; found 0"):
        EPBuffer(None, 0, 64, 2)
    *_, handle = ep_buffer().dispatch(*rows(), num_experts=2).current_stream_wait()
    with pytest.raises(ValueError, match=r"combine: expected bfloat16\[6, 64\], the rows of this dispatch; found"):
        ep_buffer().combine(torch.zeros(5, 64, dtype=torch.bfloat16), handle)
    with pytest.raises(ValueError, match=r"bias: expected bfloat16\[3, 64\]"):
        ep_buffer().combine(torch.zeros(6, 64, dtype=torch.bfloat16), handle, bias=torch.zeros(3, 64))


def test_sizes_are_told_beforehand():
    assert EPBuffer.get_theoretical_num_sms(384, 6) == 0
    # 8 slots: 128 bytes of bfloat16 and 16 of routing each; back come 2 rows of 128 per slot.
    assert EPBuffer.get_buffer_size_hint(None, 8, 64, 2) == 2 * 2048
    fetched, stored = EngramBuffer.get_storage_size_hint(None, (700, 1030), 256, 4, 24, E4M3, 4)
    assert (fetched, stored) == (2 * 4 * 24 * 264, (768 + 1280) * 264)
    assert EngramBuffer.get_theoretical_config(None, 2, 4, 24) == (1, 192, False)
    assert deep_ep.get_physical_domain_size(None) == 1
    assert deep_ep.get_num_rdma_alignment() == 1
    assert deep_ep.get_num_allocation_alignment() == 512


def engram_buffer(**options):
    return EngramBuffer(None, (5, 300), 32, 4, 2, **{"num_sf_packs": 4, **options})


def engram_tables(*, packs=4):
    codes = [torch.full((rows_, 32), 56, dtype=torch.uint8).view(E4M3) for rows_ in (256, 512)]
    return codes, [torch.full((rows_, packs), 0x7F7F, dtype=torch.int16) for rows_ in (256, 512)]


def test_an_index_below_zero_gives_zeros_and_no_token_gives_no_row():
    buffer = engram_buffer()
    buffer.set_config(*EngramBuffer.get_theoretical_config(None, 2, 4, 2))
    buffer.write(*engram_tables())
    codes, scales = buffer.fetch(torch.tensor([[[-1, 0]], [[-7, 1]]], dtype=torch.int32))[1]()
    assert codes.float().tolist() == [[0.0] * 32 + [1.0] * 32]
    assert scales.tolist() == [[0] * 4 + [0x7F7F] * 4]
    codes, scales = buffer.fetch(torch.zeros(2, 0, 2, dtype=torch.int32))[0]()
    assert (tuple(codes.shape), tuple(scales.shape)) == ((0, 64), (0, 8))


def test_tables_without_scales_give_one_tensor():
    buffer = EngramBuffer(None, (256,), 8, 4, 2, dtype=torch.bfloat16)
    buffer.write([torch.arange(256.0).unsqueeze(1).expand(256, 8).to(torch.bfloat16)])
    (fetch,) = buffer.fetch(torch.tensor([[[3, 9]]], dtype=torch.int32))
    assert fetch().tolist() == [[3.0] * 8 + [9.0] * 8]


def test_wrong_tables_and_indices_are_refused():
    codes, scales = engram_tables()
    with pytest.raises(ValueError, match=r"fetch: expected tables; nothing was written"):
        engram_buffer().fetch(torch.zeros(2, 1, 2, dtype=torch.int32))
    with pytest.raises(ValueError, match="write: expected 2 tables and as many scales; found 1, 1"):
        engram_buffer().write(codes[:1], scales[:1])
    with pytest.raises(
        ValueError, match=r"tables\[1\]: expected torch.float8_e4m3fn\[512, 32\], one rank's rows of 300"
    ):
        engram_buffer().write([codes[0], codes[0]], scales)
    with pytest.raises(ValueError, match=r"sfs\[0\]: expected 4 scale words per row; found none"):
        engram_buffer().write(codes)
    with pytest.raises(ValueError, match=r"sfs\[0\]: expected \[rows, 4\]; found \[256, 2\].*Pack the scale bytes"):
        engram_buffer().write(codes, [scale[:, :2] for scale in scales])
    with pytest.raises(ValueError, match=r"sfs\[0\]: expected 256 rows \(this rank's\), 5 or 256 \(all\); found 100"):
        engram_buffer().write(codes, [scales[0][:100], scales[1]])
    with pytest.raises(ValueError, match=r"num_sf_packs: expected at least 1; found 0"):
        engram_buffer(num_sf_packs=0)
    buffer = engram_buffer()
    buffer.write(codes, scales)
    with pytest.raises(ValueError, match=r"fetch: expected int32\[2, tokens, 2\]; found torch.int64\[2, 1, 2\]"):
        buffer.fetch(torch.zeros(2, 1, 2, dtype=torch.int64))
    with pytest.raises(ValueError, match="fetch: expected at most 4 tokens; found 5"):
        buffer.fetch(torch.zeros(2, 5, 2, dtype=torch.int32))
    with pytest.raises(ValueError, match="expected ids from -1 to 255; found 256 to 256"):
        buffer.fetch(torch.full((2, 1, 2), 256, dtype=torch.int32))
    with pytest.raises(ValueError, match="expected at least one queue pair and a depth of at least 1; found 0 and 1"):
        buffer.set_config(0, 1)


def test_a_session_cuts_the_bucket_anew():
    buffer = BucketBuffer(None, 1024)
    with buffer.session() as session:
        first = session.allocate((2, 3), torch.float32)
        second = session.allocate((4,), torch.int64)
        first.fill_(1.0)
        second.fill_(2)
        assert first.sum() == 6.0
        assert second.data_ptr() - first.data_ptr() == 512
        with pytest.raises(ValueError, match=r"expected at most 0 bytes, what the session has left of 1024; found 4"):
            session.allocate((1,), torch.float32)
        with pytest.raises(ValueError, match="expected no open session; there is one"), buffer.session():
            pytest.fail("a session within a session")
    with buffer.session() as session:
        assert session.allocate((1024,), torch.uint8).data_ptr() == first.data_ptr()
    with pytest.raises(ValueError, match="expected an open session"):
        buffer.allocate((1,), torch.float32)
    with pytest.raises(ValueError, match="num_bytes: expected at least 1; found 0"):
        BucketBuffer(None, 0)


@pytest.mark.parametrize("name", ["reduce_scatter", "all_reduce"])
def test_sums_over_the_ranks_of_a_prefill_are_refused_with_the_way_out(name):
    with pytest.raises(NotImplementedError, match=rf"BucketBuffer\.{name}: expected context_parallel_size=1; .*Set"):
        getattr(BucketBuffer(None, 1), name)(torch.ones(1))
