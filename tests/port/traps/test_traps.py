"""Every trap of section 5 of the model specification: the fact holds, and its check fails once the fault is planted."""

from __future__ import annotations

import re

import pytest

from tests.port.traps.attention import ATTENTION_TRAPS
from tests.port.traps.entries import ENTRY_TRAPS
from tests.port.traps.golden_run import golden_error
from tests.port.traps.hand_over import HAND_OVER_TRAPS
from tests.port.traps.kernels import KERNEL_TRAPS
from tests.port.traps.mutation import Trap, is_seen
from tests.port.traps.tables import TABLE_TRAPS
from tests.shared import shared_path

TRAPS = (*KERNEL_TRAPS, *HAND_OVER_TRAPS, *ATTENTION_TRAPS, *ENTRY_TRAPS, *TABLE_TRAPS)
TRAP_COUNT = 26

every_trap = pytest.mark.parametrize("trap", TRAPS, ids=[trap.name for trap in TRAPS])
golden_traps = pytest.mark.parametrize(
    "trap", [trap for trap in TRAPS if trap.golden], ids=[trap.name for trap in TRAPS if trap.golden]
)


@every_trap
def test_trap_holds(trap: Trap):
    trap.check()


@every_trap
def test_trap_is_seen_when_planted(trap: Trap, monkeypatch: pytest.MonkeyPatch):
    trap.plant(monkeypatch)
    assert is_seen(trap.check), "the check passes although the port falls into the trap"


@golden_traps
def test_golden_data_sees_the_trap_too(trap: Trap, monkeypatch: pytest.MonkeyPatch):
    trap.plant(monkeypatch)
    assert golden_error() > 1e-4, "mark the trap golden=False: golden A cannot see it"


def test_golden_data_passes_without_a_fault():
    assert golden_error() <= 1e-4


def test_every_trap_of_the_specification_has_a_test():
    assert {trap.number for trap in TRAPS} == set(range(1, TRAP_COUNT + 1))
    assert len({trap.name for trap in TRAPS}) == len(TRAPS)


def test_the_specification_lists_as_many_traps():
    text = shared_path("spec", "v41_model_spec.md").read_text(encoding="utf-8")
    section = text.split("## 5. Traps")[1].split("\n## ")[0]
    assert [int(number) for number in re.findall(r"^(\d+)\. ", section, flags=re.MULTILINE)] == [
        *range(1, TRAP_COUNT + 1)
    ]


def test_a_fault_that_was_never_planted_is_not_seen():
    def crash():
        raise RuntimeError("shapes differ")

    assert not is_seen(lambda: None)
    with pytest.raises(RuntimeError, match="shapes differ"):
        is_seen(crash)
