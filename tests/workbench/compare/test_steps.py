"""Choices apart from rounding, and where two runs part."""

import torch

from workbench.compare import compare_choices, compare_layers, culprit, first_difference, flipped_rows
from workbench.compare.steps import compare_step
from workbench.records import DiscreteFlip, Stamp, TensorDiff

STAMP = Stamp(step=3, module="layers.1.ffn")


def step(reference: dict, candidate: dict, **options) -> dict[str, TensorDiff | DiscreteFlip]:
    records = compare_step(reference, candidate, error="accumulated", rules=(), stamp=STAMP, **options)
    return {record.name: record for record in records}  # type: ignore[union-attr]


def test_choices_are_sets_per_row() -> None:
    one, two = torch.tensor([[1, 2], [3, 4], [5, -1]]), torch.tensor([[2, 1], [3, 5], [-1, 5]])
    assert flipped_rows(one, two).tolist() == [False, True, False]
    flip = compare_choices("ids", one, two, margin=torch.tensor([9.0, 0.25, 9.0]))
    assert (flip.rows, flip.flipped_rows, flip.first_row, flip.min_margin) == (3, 1, 1, 0.25)


def test_flipped_rows_are_no_rounding_error_of_what_they_decide() -> None:
    ids = torch.tensor([[0, 1], [2, 3], [4, 5]])
    out = torch.randn(3, 32, generator=torch.Generator().manual_seed(0))
    other_ids, other_out = ids.clone(), out.clone()
    other_ids[1, 0] = 7
    other_out[1] += 5
    names = ("layers.1.ffn.router_ids", "layers.1.ffn.out", "layers.1.out")
    found = step(
        dict(zip(names, (ids, out, out), strict=True)), dict(zip(names, (other_ids, other_out, other_out), strict=True))
    )
    assert found[names[0]].flipped_rows == 1
    assert found[names[1]].verdict == "match"
    assert found[names[1]].note == "1 rows reported as flips"
    assert found[names[2]].verdict == "differ", "the stream carries the flip on; that is not hidden"


def test_masks_of_different_width_compare_as_the_blocks_they_mark() -> None:
    name = "layers.2.attn.candidate_blocks"
    one = torch.tensor([[1, 0, 1], [0, 1, 0]], dtype=torch.uint8)
    two = torch.tensor([[True, False, True, False], [True, False, False, False]])
    assert step({name: one}, {name: two})[name].flipped_rows == 1


def test_router_weights_compare_by_expert_and_not_by_place() -> None:
    ids, weights = torch.tensor([[4, 9]]), torch.tensor([[0.75, 0.25]])
    names = ("layers.0.ffn.router_ids", "layers.0.ffn.router_weights")
    found = step(
        dict(zip(names, (ids, weights), strict=True)), dict(zip(names, (ids.flip(-1), weights.flip(-1)), strict=True))
    )
    assert found[names[1]].max_abs == 0


def test_what_one_side_does_not_show_is_left_out() -> None:
    assert list(step({"a": torch.ones(2), "b": torch.ones(2)}, {"b": torch.ones(2), "c": torch.ones(2)})) == ["b"]


def test_halving_looks_at_few_steps() -> None:
    for first in range(50):
        asked: list[int] = []

        def differs(index: int, first: int = first, asked: list[int] = asked) -> bool:
            asked.append(index)
            return index >= first

        found = first_difference(50, differs)
        assert found.index == first
        assert len(asked) == found.comparisons == len(set(asked)) <= 7
    assert first_difference(50, lambda _: False).index is None
    assert first_difference(0, lambda _: True).index is None


def test_the_step_that_stands_out_is_the_culprit() -> None:
    assert culprit([1e-3, 1.2e-3, 5e-2, 1e-3]) == 2
    assert culprit([1e-3, 1.2e-3, 2e-3]) is None
    assert culprit([1e-3, float("nan"), 1e-3]) == 1
    assert culprit([]) is None


def test_a_wrong_layer_is_told_from_the_layers_after_it() -> None:
    weights = torch.randn(6, 16, 16, generator=torch.Generator().manual_seed(1)) / 4

    def reference(layer: int, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x @ weights[layer])

    def candidate(layer: int, x: torch.Tensor) -> torch.Tensor:
        return reference(layer, x) + (0.2 if layer == 2 else 0)

    found = compare_layers(reference, candidate, 6, torch.ones(3, 16))
    assert found.culprit == 2
    assert found.first.index == 2
    assert [diff.verdict for diff in found.isolated] == ["match", "match", "differ", "match", "match", "match"]
    assert [diff.verdict for diff in found.accumulated][2:4] == ["differ", "differ"]
