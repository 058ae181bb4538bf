"""Which ranks work together, and what cannot be laid out."""

from __future__ import annotations

import pytest

from port.collectives.groups import open_groups, single_process
from port.collectives.layout import ParallelLayout
from port.collectives.parallel import Parallel
from port.errors import CollectiveError, ConfigError


def test_groups_are_consecutive_runs_and_data_groups_are_strided():
    layout = ParallelLayout(data_parallel=4, context_parallel=2, expert_parallel=4, engram_parallel=2)
    groups = layout.groups()
    assert layout.world_size == 8
    assert groups["world"] == (tuple(range(8)),)
    assert groups["local"] == tuple((rank,) for rank in range(8))
    assert groups["data"] == ((0, 2, 4, 6), (1, 3, 5, 7))
    assert groups["context"] == ((0, 1), (2, 3), (4, 5), (6, 7))
    assert groups["expert"] == groups["expert_host"] == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert groups["engram"] == ((0, 1), (2, 3), (4, 5), (6, 7))
    assert layout.members("engram", 5) == (4, 5)


def test_tables_may_be_shared_by_more_ranks_than_have_requests():
    layout = ParallelLayout(data_parallel=2, expert_parallel=2, engram_parallel=8)
    assert layout.world_size == 8
    assert layout.groups()["data"] == ((0, 1), (2, 3), (4, 5), (6, 7))
    assert layout.groups()["engram"] == (tuple(range(8)),)


def test_every_rank_is_in_one_group_of_each_kind():
    for sizes in ((1, 1, 1, 1), (4, 1, 2, 4), (6, 2, 4, 3), (2, 2, 1, 16)):
        names = ("data_parallel", "context_parallel", "expert_parallel", "engram_parallel")
        layout = ParallelLayout(**dict(zip(names, sizes, strict=True)))
        for kind, groups in layout.groups().items():
            assert sorted(rank for group in groups for rank in group) == list(range(layout.world_size)), kind


@pytest.mark.parametrize(
    ("sizes", "texts"),
    [
        ({"data_parallel": 0}, ["data_parallel: expected at least 1; found 0"]),
        (
            {"data_parallel": 4, "expert_parallel": 3},
            ["expert_parallel: expected a divisor of data_parallel * context_parallel (4); found 3"],
        ),
        (
            {"data_parallel": 4, "engram_parallel": 6},
            ["data_parallel * context_parallel: expected a divisor of the world size (6); found 4"],
        ),
        (
            {"data_parallel": 6, "engram_parallel": 4},
            ["engram_parallel: expected a divisor of the world size (6); found 4"],
        ),
    ],
)
def test_sizes_that_do_not_divide_are_refused(sizes, texts):
    with pytest.raises(ConfigError) as refused:
        ParallelLayout(**sizes)
    for text in texts:
        assert text in str(refused.value)


def test_a_rank_outside_the_layout_is_refused():
    with pytest.raises(ConfigError, match=r"rank: expected 0 to 1, .*; found 2"):
        ParallelLayout(data_parallel=2).members("data", 2)


def test_shared_prefill_is_refused_with_the_way_out(tmp_path):
    layout = ParallelLayout(context_parallel=2)
    groups = type(single_process())(layout=layout, rank=0)
    with pytest.raises(ConfigError, match=r"context_parallel: expected 1; found 2.*spread requests over data-parallel"):
        Parallel(groups=groups)
    with pytest.raises(ConfigError, match="max_tokens_per_rank: expected at least 1; found 0"):
        Parallel(groups=single_process(), max_tokens_per_rank=0)


def test_where_ranks_meet_is_checked_before_they_do():
    layout = ParallelLayout()
    with pytest.raises(ConfigError, match=r"rendezvous: expected file:///path or tcp://.*; found 'env://'"):
        open_groups(layout, rank=0, rendezvous="env://", backend="gloo").__enter__()
    with pytest.raises(ConfigError, match="timeout_s: expected a number above 0; found 0"):
        open_groups(layout, rank=0, rendezvous="tcp://127.0.0.1:1", backend="gloo", timeout_s=0).__enter__()


def test_a_rank_that_never_comes_is_an_error(tmp_path):
    layout = ParallelLayout(data_parallel=2)
    with (
        pytest.raises(CollectiveError, match=r"expected 2 ranks to meet at file://.* within 0\.2 s; rank 0 met"),
        open_groups(layout, rank=0, rendezvous=f"file://{tmp_path}/meeting", backend="gloo", timeout_s=0.2),
    ):
        pytest.fail("nobody else came")


def test_one_process_may_have_groups_of_its_own_and_not_twice(tmp_path):
    layout = ParallelLayout()
    with open_groups(layout, rank=0, rendezvous=f"file://{tmp_path}/meeting", backend="gloo", timeout_s=20) as groups:
        assert groups.world is not None
        with (
            pytest.raises(CollectiveError, match="expected no process group in this process; there is one"),
            open_groups(layout, rank=0, rendezvous=f"file://{tmp_path}/other", backend="gloo"),
        ):
            pytest.fail("two at a time")
    with open_groups(layout, rank=0, rendezvous=f"file://{tmp_path}/again", backend="gloo", timeout_s=20):
        pass
