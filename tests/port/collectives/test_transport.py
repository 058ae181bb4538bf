"""What exchanges are made of, in one process: bytes and back, results that come once, no group at all, no numbers."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from port.collectives.expert_exchange import add_slots, return_rows, send_rows
from port.collectives.expert_groups import group_by_expert, largest_expansion
from port.collectives.table_lookup import look_up_rows
from port.collectives.transport import (
    Pending,
    as_bytes,
    exchange_counts,
    exchange_rows,
    exchange_slots,
    from_bytes,
    gather_tensors,
    group_rank,
    group_size,
    sum_tensor,
)
from port.errors import CollectiveError
from port.runtime.turns import Turns
from tests.port.tiny import tiny_model


@pytest.mark.parametrize("rows", [0, 1, 3])
def test_rows_of_any_dtype_come_back_from_bytes(rows):
    parts = [
        torch.arange(rows * 3, dtype=torch.uint8).view(rows, 3),  # an odd width before wider elements
        torch.randn(rows, 5).to(torch.bfloat16),
        torch.randn(rows, 2, 4).to(torch.float8_e4m3fn),
        torch.arange(rows, dtype=torch.int64),
        torch.rand(rows, 1),
    ]
    packed = as_bytes(parts)
    assert (packed.dtype, tuple(packed.shape)) == (torch.uint8, (rows, 3 + 10 + 8 + 8 + 4))
    for part, found in zip(parts, from_bytes(packed, parts), strict=True):
        assert (found.dtype, found.shape) == (part.dtype, part.shape)
        assert torch.equal(found.view(torch.uint8), part.view(torch.uint8))


def test_a_result_is_made_once_and_a_failure_is_not_tried_again():
    calls = []
    pending = Pending(lambda: calls.append(1) or len(calls))
    assert [pending.wait(), pending.wait()] == [1, 1]

    def fail():
        calls.append(2)
        raise CollectiveError("gone")

    failed = Pending(fail)
    with pytest.raises(CollectiveError, match="gone"):
        failed.wait()
    with pytest.raises(CollectiveError, match="it failed when it was first waited for"):
        failed.wait()
    assert calls == [1, 2]


def test_without_a_group_everything_stays_here():
    x = torch.arange(6, dtype=torch.uint8).view(2, 3)
    assert (group_rank(None), group_size(None)) == (0, 1)
    assert exchange_counts([2], None) == [2]
    assert torch.equal(exchange_rows(x, [2], [2], None).wait(), x)
    assert torch.equal(exchange_slots(x.unsqueeze(0), None).wait(), x.unsqueeze(0))
    assert torch.equal(gather_tensors(x, None).wait(), x.unsqueeze(0))
    total = sum_tensor(x, None)
    assert torch.equal(total, x)
    assert total.data_ptr() != x.data_ptr()


def test_fixed_slots_need_no_numbers():
    ids, weights, x = torch.tensor([[1, -1], [0, 2]]), torch.ones(2, 2), torch.ones(2, 8)
    table = torch.zeros(16, 4, dtype=torch.uint8)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        ids, weights, x, table = (mode.from_tensor(tensor) for tensor in (ids, weights, x, table))
        received = send_rows([x], ids, weights, num_experts=4, group=None, max_rows=5).wait()
        rows = largest_expansion(5, slots=2, local_experts=4, alignment=8)
        groups = group_by_expert(received.route.ids_MK, local_experts=4, alignment=8, expanded_rows=rows)
        outputs = groups.collapse(groups.expand(received.rows[0]))
        assert tuple(add_slots(return_rows(outputs, received.route).wait(), first_ND=x).shape) == (2, 8)
        assert tuple(look_up_rows(ids.flatten().int(), [table], group=None, max_ids=4).wait()[0].shape) == (4, 4)


def test_a_model_that_is_whole_asks_nobody():
    turns = Turns(tiny_model().model)
    assert not turns.is_shared
    turns.finish()
