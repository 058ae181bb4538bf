"""Every figure of the workspace table, reproduced on shapes alone; nothing here needs the memory it speaks of."""

from __future__ import annotations

import pytest
import torch
import torch.distributed._functional_collectives
import torch.nn.functional as F

from port.kernels.gather import gather_table_rows
from port.kernels.linear import MAX_DENSE_ELEMENTS, dense_weight, stored_linear
from workbench.devices.dry import DryDevice
from workbench.probes.memory import record_memory
from workbench.probes.workspace_rules import MOST_ELEMENTS_AT_ONCE, RULES, rule_named

GIB, MIB = 2**30, 2**20
WIDENED = "8-bit table widened to 32 bits"


@pytest.fixture(scope="module")
def dry() -> DryDevice:
    return DryDevice()


def recorded(dry: DryDevice, function, *args):
    args = dry.place(tuple(torch.empty(one.shape, dtype=one.dtype, device="meta") for one in args))
    with torch.no_grad():
        return record_memory(function, args, device=dry)


def meta(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


EMBEDDING = meta(129280, 5120, dtype=torch.bfloat16)
IDS = meta(32, dtype=torch.int32)
LOOKUPS = {
    "index_select": lambda table, ids: table.view(torch.uint8).index_select(0, ids),
    "index": lambda table, ids: table.view(torch.int8)[ids],
    "index of fp8": lambda table, ids: table.view(torch.float8_e4m3fn)[ids],
}


@pytest.mark.parametrize("lookup", LOOKUPS)
def test_an_index_into_a_table_of_bytes_widens_all_of_it(dry, lookup) -> None:
    findings = recorded(dry, LOOKUPS[lookup], EMBEDDING, IDS)
    (hidden,) = [one for one in findings.allocations if one.role == "workspace"]
    assert hidden.nbytes == 4 * 129280 * 5120 * 2
    assert round(hidden.nbytes / GIB, 1) == 4.9
    assert findings.peak.baseline_bytes == 129280 * 5120 * 2 + 32 * 4
    assert (hidden.op, hidden.basis, hidden.counts) == (WIDENED, "computed", "allocator")
    assert "test_workspace_rules.py" in hidden.source
    assert hidden.died == hidden.born + 2, "it is there while the rows are made, and gone after"
    rows = 32 * 10240
    assert findings.peak.peak_bytes_above_baseline == rows
    assert findings.allocator_peak.peak_bytes_above_baseline == hidden.nbytes + rows
    assert findings.allocator_peak.live_bytes_at_end == rows


@pytest.mark.parametrize("dtype", [torch.int32, torch.float16])
def test_an_embedding_lookup_on_a_wider_view_needs_nothing_extra(dry, dtype) -> None:
    findings = recorded(dry, lambda table, ids: F.embedding(ids, table.view(dtype)), EMBEDDING, IDS)
    assert findings.allocator_peak.peak_bytes_above_baseline == 32 * 10240
    ours = recorded(dry, gather_table_rows, meta(129280, 10240, dtype=torch.uint8), IDS)
    assert ours.allocator_peak.peak_bytes_above_baseline == 32 * 10240


def test_wider_tables_and_other_devices_are_not_widened(dry) -> None:
    findings = recorded(dry, lambda table, ids: table.index_select(0, ids), EMBEDDING, IDS)
    assert findings.allocator_peak.peak_bytes_above_baseline == 32 * 5120 * 2
    on_host = record_memory(lambda table, ids: table[ids], (torch.zeros(8, 4, dtype=torch.int8), torch.tensor([1])))
    assert not [one for one in on_host.allocations if one.op == WIDENED]
    with dry.active():
        faked = record_memory(lambda table: table.index_select(0, torch.zeros(2).int()), (torch.empty(8, 4).char(),))
    assert not [one for one in faked.allocations if one.op == WIDENED]


def test_a_weight_dequantised_at_once_takes_four_bytes_an_element(dry) -> None:
    # One release-sized expert matrix: 2304 x 5120; all 384 of a layer, one after the other but kept.
    weight, scale = meta(2304, 5120, dtype=torch.float8_e4m3fn), meta(72, 160, dtype=torch.float8_e8m0fnu)

    def all_kept(weight: torch.Tensor, scale: torch.Tensor) -> list[torch.Tensor]:
        return [dense_weight(weight, scale, out_dtype=torch.float32) for _ in range(6)]

    kept = recorded(dry, all_kept, weight, scale)
    assert kept.peak.live_bytes_at_end == 6 * 4 * 2304 * 5120

    def one_at_a_time(weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return torch.cat([dense_weight(weight, scale, out_dtype=torch.float32)[:1] * 1 for _ in range(6)])

    one = recorded(dry, one_at_a_time, weight, scale)
    assert one.peak.peak_bytes_above_baseline < 4 * 4 * 2304 * 5120 + 6 * 4 * 5120


def test_chunks_bound_every_piece_of_a_dequantised_weight(dry) -> None:
    assert MOST_ELEMENTS_AT_ONCE == MAX_DENSE_ELEMENTS
    # The widest dense matrix of the release: an Engram projection, (5 streams' worth of rows) x 6144.
    rows, columns = 25600, 6144
    weight = meta(rows, columns, dtype=torch.float8_e4m3fn)
    scale = meta(rows // 32, columns // 32, dtype=torch.float8_e8m0fnu)
    x = meta(8, columns, dtype=torch.float32)

    def at_once(x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return F.linear(x, dense_weight(weight, scale, out_dtype=torch.float32))

    def in_chunks(x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return stored_linear(x, weight, scale, operands=torch.float32, out_dtype=torch.float32)

    whole, chunked = recorded(dry, at_once, x, weight, scale), recorded(dry, in_chunks, x, weight, scale)
    assert max(one.nbytes for one in whole.allocations if one.born) == 4 * rows * columns
    assert max(one.nbytes for one in chunked.allocations if one.born) <= 128 * MIB
    # One piece at a time; beside it the scales of a piece and the products.
    assert chunked.peak.peak_bytes_above_baseline <= 128 * MIB + 2 * MIB
    assert whole.peak.peak_bytes_above_baseline >= 4 * rows * columns


def test_gathering_the_engram_scales_of_all_ranks_takes_a_copy_a_layer(dry) -> None:
    shard = meta(384006168 // 64 + 1, 256 // 32, dtype=torch.uint8)

    def gathered(shard: torch.Tensor) -> torch.Tensor:
        return torch.ops._c10d_functional.all_gather_into_tensor(shard, 64, "ranks")

    findings = recorded(dry, gathered, shard)
    (copy,) = [one for one in findings.allocations if one.born]
    assert copy.role == "collective"
    assert round(copy.nbytes / 1e9, 1) == 3.1
    own = recorded(dry, lambda shard, ids: F.embedding(ids, shard.view(torch.int32)), shard, IDS)
    assert own.peak.peak_bytes_above_baseline < MIB, "rows of this rank alone need no copy"


def test_every_rule_says_where_it_comes_from() -> None:
    for rule in RULES:
        assert rule.source
        assert rule.figure
        assert rule.remedy
        assert (rule.hidden_bytes is None) == (not rule.operations)
        assert rule_named(rule.name) is rule
    assert rule_named("aten::mm") is None
    assert len({rule.name for rule in RULES}) == len(RULES)
