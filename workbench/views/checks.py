"""A verification against golden data: prompts down, checks across."""

from __future__ import annotations

from workbench.journal import Journal
from workbench.records import CheckRow
from workbench.units import count_text, number_text
from workbench.views.base import TableView


def check_table(journal: Journal) -> TableView:
    """Return one row per prompt: how many checks passed, the worst logits row of prefill and decode, what failed."""
    by_prompt: dict[str, list[CheckRow]] = {}
    for row in journal.of_kind(CheckRow):
        by_prompt.setdefault(row.subject, []).append(row)
    cells: list[tuple[str, ...]] = []
    for prompt, rows in by_prompt.items():
        failed = [row for row in rows if not row.passed]
        worst = {phase: _figure(rows, phase) for phase in ("prefill", "decode")}
        cells.append(
            (
                prompt,
                f"{len(rows) - len(failed)}/{len(rows)}",
                "ok" if not failed else "FAILED",
                worst["prefill"],
                worst["decode"],
                "; ".join(f"{row.check}{f': {row.note}' if row.note else ''}" for row in failed),
            )
        )
    everything = [row for rows in by_prompt.values() for row in rows]
    wrong = sum(not row.passed for row in everything)
    return TableView(
        title="Checks against golden data",
        header=("prompt", "passed", "verdict", "prefill", "decode", "failed checks"),
        rows=tuple(cells),
        data=tuple(row.to_json() for row in everything),
        note=f"{count_text(len(everything), 'check')}, {wrong} failed; prefill and decode: the first figure of each",
        align="lrlrrl",
    )


def check_details(journal: Journal, *, failed: bool = False) -> TableView:
    """Return one row per check, with its figure and limit.

    Args:
        journal: with checks.
        failed: only those that did not pass.
    """
    rows = [row for row in journal.of_kind(CheckRow) if not (failed and row.passed)]
    cells = tuple(
        (
            row.subject,
            row.check,
            "ok" if row.passed else "FAILED",
            number_text(row.worst),
            number_text(row.limit),
            row.note,
        )
        for row in rows
    )
    return TableView(
        title="Checks",
        header=("prompt", "check", "verdict", "figure", "limit", "note"),
        rows=cells,
        data=tuple(row.to_json() for row in rows),
        align="lllrrl",
    )


def _figure(rows: list[CheckRow], phase: str) -> str:
    found = next((row for row in rows if row.check.startswith(phase) and row.worst is not None), None)
    return "-" if found is None else number_text(found.worst)
