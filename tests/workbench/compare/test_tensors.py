"""Two tensors compared: figures worked by hand, verdicts in the steps of the coarser format."""

import math

import pytest
import torch

from workbench.compare import compare_tensors, default_tolerance, measure, step_size, tolerance_for, value_dtype
from workbench.errors import PlanError
from workbench.plan import Tolerance


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_figures_worked_by_hand() -> None:
    figures = measure(torch.tensor([3.0, -4.0, 0.0]), torch.tensor([3.0, -3.0, 0.5]))
    assert figures.max_abs == 1
    assert figures.worst_index == (1,)
    assert figures.max_rel == 0.25
    assert figures.rel_l2 == pytest.approx(math.sqrt(1.25) / 5)
    assert figures.cosine == pytest.approx((9 + 12) / (5 * math.sqrt(9 + 9 + 0.25)))


@pytest.mark.parametrize(
    ("value", "dtype", "step"),
    [
        (1.0, torch.bfloat16, 2**-7),
        (1.99, torch.bfloat16, 2**-7),
        (2.0, torch.bfloat16, 2**-6),
        (18.0, torch.bfloat16, 0.125),
        (40.0, torch.bfloat16, 0.25),
        (1.0, torch.float32, 2**-23),
        (1024.0, torch.float16, 1.0),
        (448.0, torch.float8_e4m3fn, 32.0),
        (0.0, torch.float32, 2**-149),
    ],
)
def test_a_step_is_the_distance_to_the_next_value(value: float, dtype: torch.dtype, step: float) -> None:
    assert step_size(torch.tensor([value], dtype=torch.float64), dtype).item() == step


def test_rounded_values_keep_their_format_when_widened() -> None:
    x = noise(64)
    assert value_dtype(x) is torch.float32
    assert value_dtype(x.bfloat16().float()) is torch.bfloat16
    assert value_dtype(x.half().double()) is torch.float16
    assert value_dtype(torch.arange(64.0)) is torch.float32, "whole numbers fit every format and prove nothing"


def test_a_limit_below_one_step_of_the_format_is_judged_in_steps_and_said_so() -> None:
    reference = noise(4, 64) * 30
    strict = Tolerance(reason="copied from a float32 test", atol=1e-3)
    diff = compare_tensors("x", reference, reference.bfloat16(), tolerance=strict)
    assert diff.verdict == "match"
    assert "below one bfloat16 step" in diff.note
    assert compare_tensors("x", reference, reference + 0.01, tolerance=strict).verdict == "differ"


def test_a_cosine_near_one_never_hides_a_wrong_element() -> None:
    reference = noise(1, 4096).bfloat16()
    candidate = reference.clone()
    candidate[0, 7] += 2
    diff = compare_tensors("x", reference, candidate, error="isolated")
    assert (diff.cosine or 0) > 0.999
    assert diff.verdict == "differ"
    assert diff.worst_index == (0, 7)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_nonfinite_element_on_one_side_differs_whatever_the_rule(bad: float) -> None:
    reference, candidate = noise(4, 32), noise(4, 32)
    candidate[2, 5] = bad
    diff = compare_tensors("x", reference, candidate, tolerance=Tolerance(reason="any", rel_l2=1e9))
    assert diff.verdict == "differ"
    assert diff.worst_index == (2, 5)
    assert "NaN or infinity on one side only in 1 elements" in diff.note
    reference[2, 5] = bad
    assert compare_tensors("x", reference, candidate).verdict == "match"


def test_integers_and_booleans_must_be_equal() -> None:
    ids = torch.tensor([1, 2, 3])
    assert compare_tensors("x", ids, ids.clone()).verdict == "match"
    assert compare_tensors("x", ids, ids + 1).verdict == "differ"
    assert compare_tensors("x", ids > 1, ids > 2).verdict == "differ"


def test_shapes_that_differ_are_incomparable_and_named() -> None:
    diff = compare_tensors("x", torch.zeros(2, 3), torch.zeros(3, 2))
    assert diff.verdict == "incomparable"
    assert "float32[2, 3]@cpu and float32[3, 2]@cpu" in diff.note
    assert compare_tensors("x", torch.zeros(2), torch.zeros(2, device="meta")).verdict == "incomparable"


def test_rows_left_out_decide_nothing_and_the_index_counts_all_rows() -> None:
    reference = noise(4, 32)
    candidate = reference.clone()
    candidate[1] += 100
    candidate[3, 2] += 1e-7
    keep = torch.tensor([True, False, True, True])
    diff = compare_tensors("x", reference, candidate, keep_rows=keep)
    assert diff.verdict == "match"
    assert diff.worst_index == (3, 2)


def test_what_a_side_computes_in_loosens_the_default_but_not_for_integers() -> None:
    reference = noise(4, 64)
    candidate = reference + 1e-3 * reference.abs().mean()
    assert compare_tensors("x", reference, candidate).verdict == "differ"
    assert compare_tensors("x", reference, candidate, precision=torch.bfloat16).verdict == "match"
    ids = torch.tensor([1, 2])
    assert compare_tensors("x", ids, ids + 1, precision=torch.bfloat16).verdict == "differ"


def test_an_empty_tensor_matches_and_says_so() -> None:
    diff = compare_tensors("x", torch.zeros(0, 4), torch.zeros(0, 4))
    assert (diff.verdict, diff.note) == ("match", "no element to compare")


def test_the_first_rule_that_fits_holds_and_none_that_fits_is_exact() -> None:
    rules = (Tolerance(reason="a", rtol=1, names="layers.*"), Tolerance(reason="b", rtol=2, names="*.out"))
    assert tolerance_for("layers.0.out", rules) is rules[0]
    assert tolerance_for("embed.out", rules) is rules[1]
    exact = tolerance_for("logits", rules)
    assert exact is not None
    assert (exact.atol, exact.rtol, exact.rel_l2, exact.steps) == (0, 0, None, None)
    assert tolerance_for("logits", ()) is None


def test_a_tolerance_needs_a_reason_and_figures_of_at_least_0() -> None:
    with pytest.raises(PlanError, match="expected a reason in words"):
        Tolerance(reason="  ", atol=1)
    with pytest.raises(PlanError, match=r"at least 0, got \{'rtol': -1\}"):
        Tolerance(reason="x", rtol=-1)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn])
def test_accumulated_errors_may_be_larger_than_isolated_ones(dtype: torch.dtype) -> None:
    isolated, accumulated = (default_tolerance(dtype, error) for error in ("isolated", "accumulated"))
    assert isolated.reason
    assert (accumulated.rel_l2 or 0) > (isolated.rel_l2 or 0) > 0
