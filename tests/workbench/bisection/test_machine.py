"""A search driven by hand: look, answer, skip, take back, stop, go on."""

from __future__ import annotations

import pytest

from tests.workbench.bisection.oracles import contains
from workbench.bisection.machine import Bisection
from workbench.errors import StepError

_ITEMS = tuple("abcdefgh")


def machine(*needed: int) -> Bisection:
    oracle = contains(*needed)
    return Bisection(_ITEMS, lambda proposal: oracle(proposal.kept))


def test_run_gives_what_steps_give() -> None:
    stepped, ran = machine(2, 5), machine(2, 5)
    while stepped.proposal is not None:
        stepped.step()
    assert ran.run() == stepped.result
    assert ran.history == stepped.history
    assert ran.names(ran.outcome().kept) == ("c", "f")


def test_undo_leads_back_to_the_same_proposal() -> None:
    one = machine(2, 5)
    for _ in range(3):
        one.step()
    before, history = one.proposal, list(one.history)
    one.step()
    one.step()
    one.undo(2)
    assert (one.proposal, one.history) == (before, history)


def test_undo_reopens_a_finished_search() -> None:
    one = machine(4)
    found = one.run()
    one.undo()
    assert one.result is None
    assert one.run() == found


def test_an_answer_by_hand_overrules_the_oracle() -> None:
    one = machine(2, 5)
    one.step()
    assert one.proposal is not None
    one.mark("fails_same")
    assert one.smallest == one.history[-1].proposal.kept


def test_skip_leaves_a_doubt_only_where_it_matters() -> None:
    oracle = contains(2, 5)
    one = Bisection(_ITEMS)
    while (proposal := one.proposal) is not None:
        if len(proposal.kept) == 1:
            one.skip()
        else:
            one.mark(oracle(proposal.kept))
    assert one.outcome().kept == (2, 5)
    assert not one.outcome().minimal


def test_stop_keeps_the_smallest_failing_set() -> None:
    one = machine(2)
    one.step()
    one.step()
    stopped = one.stop()
    assert (stopped.verdict, stopped.kept, stopped.minimal) == ("undecided", one.smallest, False)
    assert one.proposal is None
    one.undo()
    assert one.proposal is not None


def test_nothing_seen_to_fail_leaves_the_whole() -> None:
    assert machine(2).outcome().kept == tuple(range(8))


def test_errors_say_what_to_do() -> None:
    with pytest.raises(StepError, match=r"no oracle; answer with mark\(...\) or skip\(\)"):
        Bisection(_ITEMS).step()
    done = machine(1)
    done.run()
    with pytest.raises(StepError, match=r"mark: the search is over \(found\); undo\(\) reopens it"):
        done.mark("passes")
    with pytest.raises(StepError, match="expected 1 to 0 answers to take back, got 1"):
        machine(1).undo()
