"""Checks of exchanges, run by every rank of a group: each knows all ranks' inputs, so it can say what must come."""

from __future__ import annotations

import pytest
import torch

from port.collectives.expert_exchange import add_slots, return_rows, send_rows
from port.collectives.table_lookup import look_up_rows
from port.collectives.transport import exchange_counts, gather_tensors, sum_tensor
from port.errors import ShapeBucketError
from port.runtime import eplb
from port.vendor.deep_ep import BucketBuffer, EngramBuffer, EPBuffer

HIDDEN, TOPK, EXPERTS = 64, 3, 8
ROWS = (5, 0, 9, 1)  # of ranks 0 to 3: uneven, and one without any
MAX_ROWS = 12


def inputs(rank, seed=0):
    """Rows, ids and weights of one rank; some slots are unused, one row uses none, one expert is chosen often."""
    generator = torch.Generator().manual_seed(100 * seed + rank)
    rows = ROWS[rank]
    ids = torch.stack([torch.randperm(EXPERTS, generator=generator)[:TOPK] for _ in range(rows)] or [torch.zeros(0, 3)])
    ids = ids.to(torch.int64).view(rows, TOPK) if rows else torch.zeros(0, TOPK, dtype=torch.int64)
    ids[torch.rand(rows, TOPK, generator=generator) < 0.2] = -1
    ids[:1] = -1
    x = torch.randn(rows, HIDDEN, generator=generator).to(torch.bfloat16)
    return x, ids, torch.rand(rows, TOPK, generator=generator)


def expert_output(x, expert, weight):
    """What a stand-in expert makes of one row: differs by expert, and rounds."""
    return (torch.sin(x.float() * (expert + 1)) * weight).to(torch.bfloat16)


def reference(rank):
    """The combined rows of one rank by a loop: shared row first, then slots in order, float32, one rounding."""
    x, ids, weights = inputs(rank)
    out = torch.zeros(len(x), HIDDEN, dtype=torch.bfloat16)
    for row in range(len(x)):
        total = x[row].float()
        for slot in range(TOPK):
            if ids[row, slot] >= 0:
                total = total + expert_output(x[row], int(ids[row, slot]), weights[row, slot]).float()
        out[row] = total.to(torch.bfloat16)
    return out


def expected_groups(rank, world):
    """(expert, sending rank, row, slot) of all pairs that belong to this rank, in the contract's order."""
    local = EXPERTS // world
    pairs = [
        (expert, source, row, slot)
        for source in range(world)
        for row, chosen in enumerate(inputs(source)[1].tolist())
        for slot, expert in enumerate(chosen)
        if rank * local <= expert < (rank + 1) * local
    ]
    return sorted(pairs, key=lambda pair: pair[0])  # stable: by expert, then as listed


def buffer_of(groups, **options):
    return EPBuffer(groups.expert, MAX_ROWS, HIDDEN, TOPK, **options)


def dispatch_groups_rows_by_expert_and_combine_brings_them_back(groups, _folder):
    rank, world = groups.rank, groups.layout.world_size
    x, ids, weights = inputs(rank)
    local, first = EXPERTS // world, rank * (EXPERTS // world)
    pairs = expected_groups(rank, world)
    counts = torch.tensor([sum(expert == first + e for expert, *_ in pairs) for e in range(local)], dtype=torch.int32)
    for alignment in (1, 4):
        for do_cpu_sync in (True, False):
            buffer, stats = buffer_of(groups), torch.full((local,), 7, dtype=torch.int32)
            event = buffer.dispatch(x, ids, weights, stats, EXPERTS, MAX_ROWS, alignment, do_cpu_sync=do_cpu_sync)
            recv_x, recv_idx, recv_weights, handle = event.current_stream_wait()
            assert event.current_stream_wait()[3] is handle
            assert torch.equal(stats, counts + 7)
            ends = handle.psum_num_recv_tokens_per_expert
            assert ends.dtype == torch.int32
            begin, used = 0, torch.zeros(len(recv_x), dtype=torch.bool)
            outputs = torch.full_like(recv_x, torch.nan)  # gap rows must not matter
            for expert in range(local):
                begin = -(-begin // alignment) * alignment
                mine = [pair for pair in pairs if pair[0] == first + expert]
                assert int(ends[expert]) == begin + len(mine)
                for place, (_, source, row, slot) in enumerate(mine, start=begin):
                    assert torch.equal(recv_x[place], inputs(source)[0][row])
                    assert recv_weights[place] == inputs(source)[2][row, slot]
                    outputs[place] = expert_output(recv_x[place], first + expert, recv_weights[place])
                    used[place] = True
                begin = int(ends[expert])
            assert recv_x[~used].abs().sum() == 0
            assert recv_weights[~used].abs().sum() == 0
            worst = world * MAX_ROWS * min(TOPK, local) + local * (alignment - 1)
            wanted = -(-begin // alignment) if do_cpu_sync else -(-worst // alignment)
            assert len(recv_x) == wanted * alignment
            assert recv_idx.dtype == torch.int64
            assert int(recv_idx.max()) < local if len(recv_idx) else True
            combined, _ = buffer.combine(outputs, handle, bias=x).current_stream_wait()
            assert torch.equal(combined, reference(rank))


def fp8_rows_travel_with_their_packed_scales(groups, _folder):
    rank, world = groups.rank, groups.layout.world_size
    for dtype in (torch.int16, torch.int32, torch.uint8):

        def coded(source, dtype=dtype):
            generator = torch.Generator().manual_seed(source)
            codes = torch.randint(0, 127, (ROWS[source], HIDDEN), dtype=torch.uint8, generator=generator)
            scales = torch.randint(0, 255, (ROWS[source], 4), dtype=torch.uint8, generator=generator)
            return codes.view(torch.float8_e4m3fn), scales.view(dtype)

        _, ids, weights = inputs(rank)
        buffer = buffer_of(groups, use_fp8_dispatch=True)
        (codes, scales), _, _, handle = buffer.dispatch(
            coded(rank), ids, weights, None, EXPERTS, MAX_ROWS, 1, do_cpu_sync=dtype == torch.int16
        ).current_stream_wait()
        assert (codes.dtype, scales.dtype) == (torch.float8_e4m3fn, dtype)
        for place, (_, source, row, _slot) in enumerate(expected_groups(rank, world)):
            assert torch.equal(codes[place].view(torch.uint8), coded(source)[0][row].view(torch.uint8))
            assert torch.equal(scales[place], coded(source)[1][row])
        assert int(handle.psum_num_recv_tokens_per_expert[-1]) == len(expected_groups(rank, world))


def slots_add_in_float32_in_order_for_any_number_of_ranks(groups, _folder):
    x, ids, weights = inputs(groups.rank)
    rows = torch.randn(len(x), HIDDEN, generator=torch.Generator().manual_seed(groups.rank)) * 1e3
    local = EXPERTS // groups.layout.world_size
    found = []
    for max_rows in (None, MAX_ROWS):
        received = send_rows([rows], ids, weights, num_experts=EXPERTS, group=groups.expert, max_rows=max_rows).wait()
        experts = received.route.ids_MK.unsqueeze(-1) + groups.rank * local
        outputs = received.rows[0].unsqueeze(1) * (experts + 0.3) * received.weights_MK.unsqueeze(-1)
        found.append(add_slots(return_rows(outputs, received.route).wait(), first_ND=rows))
    alone = send_rows([rows], ids, weights, num_experts=EXPERTS, group=None).wait()
    experts = alone.route.ids_MK.unsqueeze(-1)
    outputs = alone.rows[0].unsqueeze(1) * (experts + 0.3) * alone.weights_MK.unsqueeze(-1)
    expected = add_slots(return_rows(outputs, alone.route).wait(), first_ND=rows)
    assert torch.equal(found[0], expected)
    assert torch.equal(found[1], expected)


def all_rows_to_one_rank_and_none_at_all(groups, _folder):
    rank, world = groups.rank, groups.layout.world_size
    for expert in (0, -1):
        ids = torch.full((ROWS[rank], TOPK), -1)
        ids[:, 1] = expert
        x = torch.full((ROWS[rank], HIDDEN), float(rank + 1)).to(torch.bfloat16)
        buffer = buffer_of(groups)
        recv_x, _, _, handle = buffer.dispatch(x, ids, torch.ones(ids.shape), None, EXPERTS).current_stream_wait()
        assert len(recv_x) == (sum(ROWS[:world]) if rank == 0 and expert == 0 else 0)
        combined, _ = buffer.combine(recv_x * 2, handle).current_stream_wait()
        assert torch.equal(combined, x * 2 if expert == 0 else torch.zeros_like(x))


def too_many_rows_for_fixed_slots_are_refused_before_anything_is_sent(groups, _folder):
    ids = torch.zeros(MAX_ROWS + 1, TOPK, dtype=torch.int64)
    with pytest.raises(ShapeBucketError, match=r"expected at most 12 rows, the fixed slots.*found 13"):
        send_rows([ids], ids, ids.float(), num_experts=EXPERTS, group=groups.expert, max_rows=MAX_ROWS)


TABLE_ROWS = (700, 1030)  # ranks pad them to 768 (256 each for 2: 384) and 1280


def tables(layer):
    generator = torch.Generator().manual_seed(layer)
    codes = torch.randint(0, 127, (TABLE_ROWS[layer], 32), dtype=torch.uint8, generator=generator)
    scales = torch.randint(1, 255, (TABLE_ROWS[layer], 8), dtype=torch.uint8, generator=generator)
    return codes, scales


def padded(part, world, fill):
    rows = -(-len(part) // 256) * 256
    return torch.cat((part, torch.full((rows - len(part), part.shape[1]), fill, dtype=torch.uint8)))


def shard(part, rank, world, fill=0):
    return padded(part, world, fill).chunk(world)[rank].clone()


def engram_rows_come_from_their_owners(groups, _folder):
    rank, world = groups.rank, groups.layout.world_size
    for dtype, full in ((torch.int16, "padded"), (torch.int32, "rows"), (torch.uint8, "local")):
        packs = 8 // dtype.itemsize
        buffer = EngramBuffer(groups.engram, TABLE_ROWS, 32, 16, 6, torch.float8_e4m3fn, packs)
        scales = {
            "padded": [padded(tables(layer)[1], world, 127) for layer in (0, 1)],
            "rows": [tables(layer)[1] for layer in (0, 1)],
            "local": [shard(tables(layer)[1], rank, world, 127) for layer in (0, 1)],
        }[full]
        codes = [shard(tables(layer)[0], rank, world).view(torch.float8_e4m3fn) for layer in (0, 1)]
        buffer.write(codes, sfs=[scale.view(dtype) for scale in scales])
        kept = [parts[1] for parts in buffer._tables]
        assert [len(part) for part in kept] == [len(part) for part in codes]
        if world > 1:
            largest = max(part.untyped_storage().nbytes() for part in kept)
            assert largest == max(len(part) * 8 for part in codes), "a rank holds no other rank's scales, nor a view"
        generator = torch.Generator().manual_seed(rank)
        ids = torch.stack(
            [torch.randint(0, rows, (ROWS[rank], 6), generator=generator, dtype=torch.int32) for rows in TABLE_ROWS]
        )
        ids[:, :, 3] = ids[:, :, 2]  # repeated
        ids[:, 1:2, 4] = -1
        ids[:, :1, 5] = TABLE_ROWS[0] - 1
        callables = buffer.fetch(ids)
        for layer in (1, 0):  # in whatever order layers ask
            found, scale = callables[layer]()
            assert (found.dtype, scale.dtype) == (torch.float8_e4m3fn, dtype)
            assert tuple(found.shape) == (ROWS[rank], 6 * 32)
            assert tuple(scale.shape) == (ROWS[rank], 6 * packs)
            for token in range(ROWS[rank]):
                for column, row in enumerate(ids[layer, token].tolist()):
                    cells = found.view(torch.uint8)[token, column * 32 : column * 32 + 32]
                    words = scale.view(torch.uint8)[token, column * 8 : column * 8 + 8]
                    assert torch.equal(cells, tables(layer)[0][row] if row >= 0 else torch.zeros_like(cells))
                    assert torch.equal(words, tables(layer)[1][row] if row >= 0 else torch.zeros_like(words))


def fixed_slots_find_the_same_rows(groups, _folder):
    rank, world = groups.rank, groups.layout.world_size
    parts = [shard(part, rank, world) for part in tables(0)]
    ids = torch.randint(-1, 700, (ROWS[rank],), generator=torch.Generator().manual_seed(rank), dtype=torch.int32)
    exact = look_up_rows(ids, parts, group=groups.engram).wait()
    fixed = look_up_rows(ids, parts, group=groups.engram, max_ids=9).wait()
    assert all(torch.equal(*pair) for pair in zip(exact, fixed, strict=True))
    with pytest.raises(ShapeBucketError, match="expected at most 4 ids"):
        look_up_rows(torch.zeros(5, dtype=torch.int32), parts, group=groups.engram, max_ids=4)
    with pytest.raises(ValueError, match=r"expected ids from -1 to 767; found 768 to 768"):
        look_up_rows(torch.tensor([768], dtype=torch.int32), parts, group=groups.engram)


def buckets_gather_in_order_of_rank(groups, _folder):
    rank, world = groups.rank, groups.layout.world_size
    buffer = BucketBuffer(groups.data, 4096)
    for dtype in (torch.bfloat16, torch.float8_e4m3fn, torch.int64):
        with buffer.session():
            x = buffer.allocate((2, 3), dtype)
            x.copy_(torch.full((2, 3), rank + 1.0).to(dtype))
            gathered = buffer.all_gather(x).wait()
        assert gathered.float().tolist() == [[r + 1.0] * 3 for r in range(world) for _ in range(2)]
    buffer.barrier()


def counts_sums_and_gathers_are_plain(groups, _folder):
    rank, world = groups.rank, groups.layout.world_size
    assert exchange_counts([10 * rank + other for other in range(world)], groups.world) == [
        10 * other + rank for other in range(world)
    ]
    assert sum_tensor(torch.tensor([rank, 1]), groups.data_host).tolist() == [sum(range(world)), world]
    assert gather_tensors(torch.tensor([rank]), groups.expert).wait().tolist() == [[r] for r in range(world)]
    for name in ("world", "data", "data_host", "expert", "expert_host", "engram"):
        assert torch.distributed.get_world_size(getattr(groups, name)) == world
    assert torch.distributed.get_world_size(groups.local) == torch.distributed.get_world_size(groups.context) == 1


def load_statistics_cover_all_ranks(groups, _folder):
    rank, world = groups.rank, groups.layout.world_size
    slots = eplb.ExpertSlots(experts=6, ranks=world)
    balancer = eplb.ExpertBalancer(slots, layers=2, rank=rank, group=groups.expert_host)
    for step in range(128):
        balancer.layer(1)[2].add_(rank + 1)
        assert balancer.statistics is None
        balancer.step(step < 3)
    if world == 1:
        assert balancer.statistics is None
        return
    rows = [128 * (slot // slots.local + 1) for slot in range(slots.physical)]
    assert balancer.statistics.rows.tolist() == [[0] * slots.physical, rows]
    assert balancer.statistics.imbalance == (1.0, world / ((world + 1) / 2))
    assert balancer.expert_count.sum() == 0
    assert balancer.window_counts()[1].tolist() == [100 * (rank + 1)] * slots.local


CHECKS = (
    counts_sums_and_gathers_are_plain,
    dispatch_groups_rows_by_expert_and_combine_brings_them_back,
    fp8_rows_travel_with_their_packed_scales,
    slots_add_in_float32_in_order_for_any_number_of_ranks,
    all_rows_to_one_rank_and_none_at_all,
    too_many_rows_for_fixed_slots_are_refused_before_anything_is_sent,
    engram_rows_come_from_their_owners,
    fixed_slots_find_the_same_rows,
    buckets_gather_in_order_of_rank,
    load_statistics_cover_all_ranks,
)
