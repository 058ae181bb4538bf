"""A recorded session asked again, action by action, and what it finds held against what was found then.

The session is imported only when one is run, so that results can be read and written without torch.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from workbench.actions import Action
from workbench.errors import JournalError, WorkbenchError
from workbench.findings import compare_findings
from workbench.journal import PATH_FIELDS, Journal
from workbench.plan import Plan
from workbench.records import Note, Record
from workbench.records.base import Json, to_plain
from workbench.units import count_text
from workbench.views.base import html_table

if TYPE_CHECKING:
    from workbench.session import Session

Progress = Callable[[str], None]
Outcome = Literal["same", "differ", "error"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedAction:
    """One action asked again.

    Attributes:
        action: what was asked, as a call.
        outcome: "same" findings, "differ", or "error" where the replay could not go on.
        differences: one line each; the error's text for "error".
        records: findings compared.
        elapsed_s: seconds it took now.
    """

    action: str
    outcome: Outcome
    differences: tuple[str, ...]
    records: int
    elapsed_s: float


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ReplayResult:
    """A whole journal asked again.

    Attributes:
        name: of the journal.
        steps: one per action, in order.
        notes: what a reader must know: another checkpoint, a recording cut short.
    """

    name: str
    steps: tuple[ReplayedAction, ...]
    notes: tuple[str, ...] = ()

    @property
    def same(self) -> bool:
        """Whether every action found the same."""
        return all(step.outcome == "same" for step in self.steps)

    def __bool__(self) -> bool:
        return self.same

    def __str__(self) -> str:
        lines = [f"{self.name}: {'same findings' if self.same else 'findings differ'} ({self._counts()})"]
        lines += [f"  note: {note}" for note in self.notes]
        for step in self.steps:
            if step.outcome != "same":
                lines += [f"  {step.action}: {step.outcome}", *(f"    {line}" for line in step.differences[:20])]
                if len(step.differences) > 20:
                    lines.append(f"    and {len(step.differences) - 20} more")
        return "\n".join(lines)

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        rows = [(step.action, step.outcome, "; ".join(step.differences[:3])) for step in self.steps]
        return html_table(str(self).splitlines()[0], ("action", "outcome", "differences"), rows)

    def to_dict(self) -> dict[str, Json]:
        """Return the result as data."""
        return {
            "journal": self.name,
            "same": self.same,
            "notes": list(self.notes),
            "actions": to_plain([dataclasses.asdict(step) for step in self.steps]),
        }

    def _counts(self) -> str:
        records = sum(step.records for step in self.steps)
        return f"{count_text(len(self.steps), 'action')}, {count_text(records, 'record')}"


def replay(
    path: str | Path,
    *,
    target: Callable[..., object] | None = None,
    candidate_target: Callable[..., object] | None = None,
    args: tuple[object, ...] = (),
    kwargs: Mapping[str, object] | None = None,
    rel: float = 1e-5,
    save: str | Path | None = None,
    progress: Progress | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> ReplayResult:
    """Run a recorded session again and return what differs.

    Args:
        path: journal file.
        target: for a session that was handed a module: the module again.
        candidate_target: its second module, where it had one.
        args: its positional arguments.
        kwargs: its keyword arguments.
        rel: relative tolerance of numbers in findings.
        save: where the new journal is written; kept in memory when None.
        progress: told in a line what is going on.
        clock: seconds, monotonic.

    Raises:
        JournalError: not a journal, or one without a plan.
        PlanError: its plan cannot be carried out here.
        DeviceError: its placements are not offered here.
    """
    recorded = Journal.open(path)
    if recorded.header.plan is None:
        raise JournalError(f"{path}: this journal has no plan, so there is nothing to run again.")
    plan = resolved_plan(recorded)
    from workbench.session import Session

    session = Session(
        plan,
        target=target,
        candidate_target=candidate_target,
        args=args,
        kwargs=kwargs,
        path=save,
        title=recorded.header.title,
        progress=progress,
    )
    notes = _notes(recorded, session.journal)
    steps: list[ReplayedAction] = []
    with session:
        for number, (action, found_then) in enumerate(_segments(recorded), start=1):
            if progress is not None:
                progress(f"{Path(path).name}: {number} of {len(recorded.actions)}: {action.call_text()}")
            steps.append(_again(session, action, found_then, recorded, rel, clock))
            if steps[-1].outcome == "error":
                break
    return ReplayResult(name=Path(path).name, steps=tuple(steps), notes=notes)


def resolved_plan(journal: Journal) -> Plan:
    """Return a journal's plan with its paths, which are relative to the journal, valid from the working folder."""
    assert journal.header.plan is not None, "asked for only where there is a plan"
    plan = Plan.from_json(journal.header.plan)
    base = Path.cwd() if journal.path is None else journal.path.parent
    changes: dict[str, str] = {}
    for name in PATH_FIELDS:
        value = getattr(plan, name)
        if isinstance(value, str) and not Path(value).is_absolute():
            changes[name] = str(base / value)
    return dataclasses.replace(plan, **changes)  # pyright: ignore[reportArgumentType]


def _again(
    session: Session,
    action: Action,
    found_then: Sequence[Record],
    recorded: Journal,
    rel: float,
    clock: Callable[[], float],
) -> ReplayedAction:
    from port.errors import PortError

    began, first = clock(), len(session.journal.entries)
    try:
        session.reissue(action, recorded)
        error, unknown = None, False
    except (WorkbenchError, PortError, OSError, ValueError, TypeError) as problem:
        # Golden data that is gone, a folder that cannot be written: the action's own error, no crash of ours.
        error = f"{type(problem).__name__}: {problem}"
        unknown = isinstance(problem, JournalError)
    found_now = [entry for entry in session.journal.entries[first:] if isinstance(entry, Record)]
    then, now = [record.finding() for record in found_then], [record.finding() for record in found_now]
    if any(isinstance(record, Note) and record.text.startswith("interrupted") for record in found_then):
        # The user ended this action early: what it had found by then is what must come again.
        then = then[:-1]
        now = now[: len(then)]
    answer = compare_findings(then, now, rel=rel)
    differences = answer.differences
    outcome: Outcome = "same" if not differences else "differ"
    # An action that raises now and found nothing then raised then too, unless it is none of ours at all.
    if error is not None and (differences or unknown):
        outcome, differences = "error", (error, *differences)
    return ReplayedAction(
        action=action.call_text(),
        outcome=outcome,
        differences=tuple(differences),
        records=answer.compared,
        elapsed_s=clock() - began,
    )


def _segments(journal: Journal) -> list[tuple[Action, list[Record]]]:
    """Return each action with the records it led to."""
    parts: list[tuple[Action, list[Record]]] = []
    for entry in journal.entries:
        if isinstance(entry, Action):
            parts.append((entry, []))
        elif parts:
            parts[-1][1].append(entry)
    return parts


def _notes(recorded: Journal, now: Journal) -> tuple[str, ...]:
    notes: list[str] = []
    if recorded.header.fingerprint and recorded.header.fingerprint != now.header.fingerprint:
        notes.append("the checkpoint or source file is not the one that was recorded: its fingerprint differs")
    if recorded.dropped_text:
        notes.append("the recording ends in a line cut short; what stands before it is compared")
    changed = [
        f"{name} {version} then, {now.header.versions.get(name, 'none')} now"
        for name, version in recorded.header.versions.items()
        if now.header.versions.get(name) != version
    ]
    return (*notes, *changed)
