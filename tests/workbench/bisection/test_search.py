"""The search finds sets that fail and that no single removal shrinks, whatever the failure looks like."""

from __future__ import annotations

import math
import random

import pytest

from bench.bisection import ddmin
from tests.workbench.bisection.oracles import any_of, contains, drive, is_one_minimal
from workbench.bisection.search import Kept, SearchResult, Verdict


@pytest.mark.parametrize(
    "needed", [(0,), (63,), (31,), (0, 63), (5, 6), (2, 30, 61), (7, 8, 9, 10, 11), (1, 9, 20, 33, 47, 62)]
)
def test_monotone_failure_is_found_exactly(needed: Kept) -> None:
    found = drive(64, contains(*needed)).result
    assert found == SearchResult(verdict="found", kept=needed, minimal=True)


def test_two_items_needed_together_defeat_halving_but_not_the_search() -> None:
    oracle = contains(2, 5)
    assert oracle((0, 1, 2, 3)) == oracle((4, 5, 6, 7)) == "passes"
    assert drive(8, oracle).result.kept == (2, 5)


def test_of_two_failures_apart_one_is_found_whole() -> None:
    oracle = any_of(contains(3, 4), contains(90))
    run = drive(100, oracle)
    assert run.result.kept in ((3, 4), (90,))
    assert is_one_minimal(run.result.kept, oracle)


@pytest.mark.parametrize("seed", range(60))
def test_any_failure_that_is_not_monotone_ends_one_minimal(seed: int) -> None:
    rng = random.Random(seed)
    count = rng.randrange(3, 14)
    answers: dict[Kept, Verdict] = {}

    def oracle(kept: Kept) -> Verdict:
        if len(kept) == count:
            return "fails_same"
        if kept not in answers:
            answers[kept] = rng.choice(("fails_same", "passes", "passes", "other_failure"))
        return answers[kept]

    run = drive(count, oracle)
    assert run.result.verdict == "found"
    assert run.result.minimal
    assert is_one_minimal(run.result.kept, oracle)
    assert run.trials == len({one.kept for one in run.proposals}), "a set was asked for twice"


def test_another_failure_is_never_followed() -> None:
    def oracle(kept: Kept) -> Verdict:
        if {10, 20} <= set(kept):
            return "fails_same"
        return "other_failure" if 15 in kept else "passes"

    assert drive(32, oracle).result.kept == (10, 20)


def test_what_could_not_be_judged_is_told_and_not_called_minimal() -> None:
    def oracle(kept: Kept) -> Verdict:
        if {1, 4} <= set(kept):
            return "fails_same"
        return "unresolved" if 1 in kept else "passes"

    found = drive(6, oracle).result
    assert (found.kept, found.minimal, found.doubts) == ((1, 4), False, (4,))


def test_failure_of_an_empty_set_is_found_empty() -> None:
    assert drive(16, lambda _: "fails_same").result.kept == ()


@pytest.mark.parametrize(
    ("verdict", "expected"), [("passes", "not_reproduced"), ("other_failure", "undecided"), ("unresolved", "undecided")]
)
def test_a_whole_that_does_not_fail_is_not_searched(verdict: Verdict, expected: str) -> None:
    run = drive(12, lambda _: verdict)
    assert (run.result.verdict, run.trials, run.result.minimal) == (expected, 1, False)


def test_no_items_at_all_are_one_question() -> None:
    assert drive(0, lambda _: "fails_same").trials == 1


def test_a_failure_that_needs_more_than_so_many_items_is_narrowed_to_just_that_many() -> None:
    run = drive(64, lambda kept: "fails_same" if len(kept) > 20 else "passes")
    assert len(run.result.kept) == 21
    assert run.result.minimal


@pytest.mark.parametrize("count", [8, 64, 512, 4096])
def test_one_culprit_takes_about_the_logarithm_of_trials(count: int) -> None:
    for culprit in (0, count // 3, count - 1):
        assert drive(count, contains(culprit)).trials <= math.ceil(math.log2(count)) + 3


def test_pairs_take_about_two_logarithms_more() -> None:
    rng = random.Random(0)
    for _ in range(20):
        first, second = sorted(rng.sample(range(1024), 2))
        assert drive(1024, contains(first, second)).trials <= 4 * 10 + 6


def test_trials_stay_below_plain_delta_debugging() -> None:
    rng = random.Random(1)
    ours = plain = 0
    for size in (1, 2, 2, 3, 3, 4, 6):
        needed = tuple(sorted(rng.sample(range(200), size)))
        run = drive(200, contains(*needed))
        kept, tests = ddmin(200, lambda kept, needed=needed: set(needed) <= set(kept))
        assert run.result.kept == kept == needed
        ours, plain = ours + run.trials, plain + tests
    assert ours < 0.7 * plain, (ours, plain)


def test_worst_case_is_bounded() -> None:
    rng = random.Random(2)
    for _ in range(30):
        count = rng.randrange(2, 40)
        salt = rng.random()

        def oracle(kept: Kept, salt: float = salt, count: int = count) -> Verdict:
            hashed = random.Random(f"{salt}{kept}").random()
            return "fails_same" if len(kept) == count or hashed < 0.3 else "passes"

        assert drive(count, oracle).trials <= count * count + 3 * count + 8


def test_same_answers_give_the_same_questions() -> None:
    oracle = any_of(contains(3, 17), contains(9, 11, 30))
    assert drive(40, oracle).proposals == drive(40, oracle).proposals
