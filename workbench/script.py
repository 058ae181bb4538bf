"""A journal as a Python program that asks everything again: what a notebook or a widget did, ready for CI.

Text only: nothing is run here. Paths are kept relative to the script's own folder where the plan gives relative ones.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path

from workbench.actions import Action
from workbench.errors import JournalError
from workbench.journal import PATH_FIELDS, Journal
from workbench.plan import Inputs, Placement, Plan, Tolerance

_HANDED_OVER = """def target():
    raise NotImplementedError(
        "The recorded session was handed a module that stands in no file: build it here, and its inputs below."
    )


arguments = ()
"""


def to_script(journal: Journal, *, folder: str | Path | None = None) -> str:
    """Return a program that opens a session with the journal's plan and issues its actions in order.

    Args:
        journal: in memory or from a file.
        folder: where the script will lie; the journal's own folder (or the working folder) when None.

    Raises:
        JournalError: the journal has no plan.
    """
    if journal.header.plan is None:
        raise JournalError("this journal has no plan, so there is nothing to run again.")
    base = Path.cwd() if journal.path is None else journal.path.parent
    here = base if folder is None else Path(folder)
    plan = Plan.from_json(journal.header.plan)
    handed_over = plan.model == "module" and plan.source is None
    edits = any(action.verb == "edit" for action in journal.actions)
    lines = [
        '"""The recorded session, run again: `python THIS_FILE`."""',
        "",
        "from pathlib import Path",
        "",
        "import workbench as wb",
        "",
        "HERE = Path(__file__).resolve().parent",
        "",
    ]
    if edits:
        recorded = _recorded_journal(journal, here)
        lines += [f"RECORDED = wb.Journal.open({recorded})", ""]
    if handed_over:
        lines += ["", *_HANDED_OVER.splitlines()]
    lines += [f"plan = {_call_text(plan, base, here)}", ""]
    given = ", target=target(), args=arguments" if handed_over else ""
    lines += [f"with wb.Session(plan{given}) as session:"]
    body = [f"    {_action_text(action)}" for action in journal.actions]
    lines += body or ["    pass"]
    lines += ["", "print(wb.step_table(session.journal))", ""]
    return "\n".join(lines)


def _action_text(action: Action) -> str:
    if action.verb != "edit":
        return action.call_text()
    arguments = dict(action.arguments)
    name, key = arguments.pop("name"), arguments.pop("capture")
    rest = "".join(f", {word}={value!r}" for word, value in arguments.items())
    return f"session.edit({name!r}, wb.captured_tensor(RECORDED, {key!r}){rest})"


def _recorded_journal(journal: Journal, here: Path) -> str:
    if journal.path is None:
        raise JournalError(
            "this session edited tensors, which a script reads from the journal; save the journal first."
        )
    return f"HERE / {os.path.relpath(journal.path, here)!r}"


def _call_text(plan: Plan, base: Path, here: Path) -> str:
    """Return `wb.Plan(...)` with the fields that are not the default, one a line."""
    default = Plan()
    parts: list[str] = []
    for field in dataclasses.fields(plan):
        value = getattr(plan, field.name)
        if value == getattr(default, field.name) and field.name != "model":
            continue
        text = _value_text(value)
        if field.name in PATH_FIELDS and isinstance(value, str) and not Path(value).is_absolute():
            text = f"str(HERE / {os.path.relpath(base / value, here)!r})"
        parts.append(f"    {field.name}={text},")
    return "\n".join(["wb.Plan(", *parts, ")"])


def _value_text(value: object) -> str:
    if isinstance(value, (Placement, Inputs, Tolerance)):
        shown: Mapping[str, object] = {
            field.name: getattr(value, field.name)
            for field in dataclasses.fields(value)
            if field.default is dataclasses.MISSING or getattr(value, field.name) != field.default
        }
        return f"wb.{type(value).__name__}({', '.join(f'{name}={_value_text(one)}' for name, one in shown.items())})"
    if isinstance(value, tuple):
        items = [_value_text(item) for item in value]
        return f"({', '.join(items)}{',' if len(items) == 1 else ''})"
    return repr(value)
