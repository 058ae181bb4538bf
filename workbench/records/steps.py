"""Records about the run itself: steps taken, failures, notes."""

from dataclasses import dataclass
from typing import ClassVar

from workbench.records.base import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTiming(Record):
    """A step that ran.

    Attributes:
        side: reference or candidate.
        name: module of the step.
        step_kind: embed, engram, attention, ffn, head, or module for a generic module.
        step_s: seconds; never compared.
        weight_bytes: read from the checkpoint for this step, 0 when resident.
    """

    kind: ClassVar[str] = "step_timing"
    volatile: ClassVar[frozenset[str]] = frozenset({"step_s", "weight_bytes"})
    side: str
    name: str
    step_kind: str
    step_s: float
    weight_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFailure(Record):
    """A step that raised; the journal goes on.

    Attributes:
        side: reference or candidate.
        name: module of the step.
        error: type and message.
        traceback_text: formatted traceback, user frames included; never compared.
    """

    kind: ClassVar[str] = "step_failure"
    volatile: ClassVar[frozenset[str]] = frozenset({"traceback_text"})
    side: str
    name: str
    error: str
    traceback_text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Fallback(Record):
    """Something ran otherwise than asked; never silent.

    Attributes:
        what: what was replaced.
        used: what ran instead.
        why: the reason.
    """

    kind: ClassVar[str] = "fallback"
    what: str
    used: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Generated(Record):
    """Tokens a greedy generation produced.

    Attributes:
        side: reference or candidate.
        prompt_token_ids, token_ids: ids.
        text: decoded continuation, None without a tokenizer.
    """

    kind: ClassVar[str] = "generated"
    side: str
    prompt_token_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    text: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckRow(Record):
    """One row of a verification against golden data.

    Attributes:
        subject: what was checked, as in a prompt's name.
        check: which check.
        passed: the answer.
        worst: worst figure seen, None where there is none; rounding, so never compared.
        limit: what it was held against, None where exact.
        note: in words.
    """

    kind: ClassVar[str] = "check_row"
    volatile: ClassVar[frozenset[str]] = frozenset({"worst", "note"})
    subject: str
    check: str
    passed: bool
    worst: float | None
    limit: float | None
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Note(Record):
    """Free text, as in a user's remark or an interruption.

    Attributes:
        text: the words.
    """

    kind: ClassVar[str] = "note"
    text: str
