"""The ranks' parts put together are the checkpoint, and their bytes are the plan."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from port.checkpoint import open_checkpoint, plan_weights, rank_slices, read_rank_slice, tensor_table
from port.checkpoint.plan import HBM_BYTES, category_of
from port.checkpoint.slices import experts_of_rank, table_rows_of_rank
from port.config import ModelConfig
from port.errors import CheckpointError
from tests.port.checkpoint.test_writer import FIXTURE
from tests.shared import shared_path

GIB = 1 << 30


def test_experts_are_contiguous_blocks_when_they_divide() -> None:
    assert [experts_of_rank(384, rank, 64)[0] for rank in (0, 1, 63)] == [0, 6, 378]
    assert experts_of_rank(384, 63, 64) == tuple(range(378, 384))


def test_experts_that_do_not_divide_are_padded_with_copies_of_the_first() -> None:
    assert [experts_of_rank(8, rank, 3) for rank in range(3)] == [(0, 1, 2), (3, 4, 5), (6, 7, 0)]
    assert [experts_of_rank(2, rank, 5) for rank in range(5)] == [(0,), (1,), (0,), (1,), (0,)]


@pytest.mark.parametrize(("rows", "world_size"), [(408, 3), (384006168, 64), (5, 4), (1024, 1), (256, 2)])
def test_table_rows_meet_without_gap_or_overlap(rows: int, world_size: int) -> None:
    parts = [table_rows_of_rank(rows, rank, world_size) for rank in range(world_size)]
    kept = [row for part, _ in parts for row in (part.start, part.stop)]
    assert kept == sorted(kept)
    assert sum(part.stop - part.start for part, _ in parts) == rows
    sizes = {part.stop - part.start + padding for part, padding in parts}
    assert len(sizes) == 1
    assert (sizes.pop() * world_size) % 256 == 0


@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
def test_the_ranks_together_hold_every_tensor(world_size: int) -> None:
    checkpoint = open_checkpoint(FIXTURE)
    table = tensor_table(checkpoint.model_config())
    found: dict[str, list[torch.Tensor]] = {}
    with checkpoint.reader() as reader:
        for rank in range(world_size):
            for name, piece in rank_slices(table, rank=rank, world_size=world_size).items():
                tensor = read_rank_slice(checkpoint, piece, reader=reader)
                assert tuple(tensor.shape) == piece.shape
                assert tensor.nbytes == piece.nbytes
                rows = tensor.shape[0] - piece.padding_rows if tensor.dim() else None
                found.setdefault(name, []).append(tensor[:rows].view(torch.uint8))
    assert found.keys() == table.keys()
    for name, spec in table.items():
        whole = checkpoint.read(name).view(torch.uint8)
        if ".engram.embed." in name and world_size > 1:
            assert torch.equal(torch.cat(found[name]), whole)
        else:
            assert all(torch.equal(part, whole) for part in found[name]), spec


def test_padding_rows_are_zero_with_scale_one() -> None:
    checkpoint = open_checkpoint(FIXTURE)
    pieces = rank_slices(tensor_table(checkpoint.model_config()), rank=1, world_size=2)
    weight = pieces["layers.1.engram.embed.weight"]
    assert weight.rows is not None
    assert (weight.rows, weight.padding_rows) == (slice(256, 408), 104)
    scale = pieces["layers.1.engram.embed.scale"]
    assert (scale.rows, scale.padding_rows) == (weight.rows, weight.padding_rows)
    assert not read_rank_slice(checkpoint, weight)[152:].to(torch.float32).any()
    assert (read_rank_slice(checkpoint, scale)[152:].to(torch.float32) == 1).all()


def test_a_slice_made_for_another_configuration_is_refused() -> None:
    checkpoint = open_checkpoint(FIXTURE)
    (piece,) = rank_slices(
        {"norm.weight": tensor_table(checkpoint.model_config())["norm.weight"]}, rank=0, world_size=1
    ).values()
    wrong = dataclasses.replace(piece, spec=dataclasses.replace(piece.spec, shape=(65,)))
    with pytest.raises(CheckpointError, match=r"norm\.weight: expected BF16\[65\]; found BF16\[64\]"):
        read_rank_slice(checkpoint, wrong)


@pytest.mark.parametrize(("rank", "world_size"), [(-1, 2), (2, 2), (0, 0)])
def test_a_rank_outside_the_world_is_refused(rank: int, world_size: int) -> None:
    with pytest.raises(CheckpointError, match="expected a world size of at least 1 and a rank from 0"):
        plan_weights(open_checkpoint(FIXTURE), rank=rank, world_size=world_size)


def test_a_rank_of_64_of_the_release_keeps_the_figures_of_our_sum() -> None:
    config = ModelConfig.from_file(shared_path("spec", "released_config.json"))
    plan = plan_weights(config, world_size=64)
    figures = {row.category: round(row.rank_bytes / GIB, 2) for row in plan.rows}
    assert figures == {
        "experts": 4.2,
        "engram_tables": 2.95,
        "dense": 6.41,
        "engram_dense": 0.29,
        "embedding_head": 2.47,
    }
    assert round(plan.weights_bytes / GIB, 1) == 16.3
    assert plan.fits()
    assert plan.free_bytes() == HBM_BYTES - plan.weights_bytes
    assert not plan.fits(16 << 30)


def test_every_byte_of_a_part_is_counted_once() -> None:
    config = open_checkpoint(FIXTURE).model_config()
    plan = plan_weights(config, parts=("text", "draft", "vision"))
    assert plan.stored_bytes == plan.weights_bytes == open_checkpoint(FIXTURE).nbytes
    ranks = {plan_weights(config, rank=rank, world_size=4).weights_bytes for rank in range(4)}
    assert len(ranks) == 1  # table padding makes ranks equal
    assert {row.category for row in plan.rows} == {category_of(spec) for spec in tensor_table(config).values()}
    (draft,) = [row for row in plan.rows if row.category == "draft"]
    assert draft.sharing == "mixed"


def test_a_folder_without_draft_can_be_planned_for_text_only(tmp_path) -> None:
    checkpoint = open_checkpoint(FIXTURE)
    entries = {name: entry for name, entry in checkpoint.entries.items() if not name.startswith("mtp.")}
    text_only = dataclasses.replace(checkpoint, entries=entries)
    assert plan_weights(text_only).weights_bytes == plan_weights(checkpoint).weights_bytes
    with pytest.raises(CheckpointError, match="expected the tensors of the draft part; found none of them"):
        plan_weights(text_only, parts=("text", "draft"))


def test_a_folder_that_lacks_a_tensor_cannot_be_planned() -> None:
    checkpoint = open_checkpoint(FIXTURE)
    entries = {name: entry for name, entry in checkpoint.entries.items() if ".experts.3." not in name}
    with pytest.raises(CheckpointError, match="the weights cannot be planned") as caught:
        plan_weights(dataclasses.replace(checkpoint, entries=entries))
    assert {problem.kind for problem in caught.value.problems} == {"expert_ids"}
