"""What a bisection found and what it tried: the result in words, and a table of trials."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from workbench.journal import Journal
from workbench.records import Record
from workbench.records.base import Json, to_plain
from workbench.records.compiling import BisectionResult, CompileTrial
from workbench.units import count_text, seconds_text
from workbench.views.base import TableView, html_table

SIMULATED = "SIMULATED compiler: the fault is planted, no real one failed"
_VERDICTS = {
    "found": "found",
    "not_reproduced": "the failure does not show: the whole compiles",
    "usage_error": "nothing to narrow: this is no failure of the compiler on this graph",
    "interrupted": "interrupted; below is the smallest part known to fail",
    "undecided": "not decided; below is the smallest part known to fail",
}


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class BisectionReport:
    """The results of every level in words: what fails, how sure that is, and what it took.

    Attributes:
        results: coarse to fine.
    """

    results: tuple[BisectionResult, ...]

    def __str__(self) -> str:
        if not self.results:
            return "Bisection\n(nothing was narrowed)"
        last = self.results[-1]
        lines = [last.question, *([SIMULATED] if last.simulated else [])]
        for result in self.results:
            took = f"{count_text(result.trials, 'trial')}, {result.cached_trials} more from before"
            lines.append(f"{result.level}: {_VERDICTS[result.verdict]} ({took})")
            lines += [cut_text(f"    {name}") for name in result.culprit[:12]]
            if len(result.culprit) > 12:
                lines.append(f"    ... {len(result.culprit)} in all")
        return "\n".join([*lines, *(cut_text(line) for line in _proof(last))])

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        rows = [
            (result.level, _VERDICTS[result.verdict], "\n".join(result.culprit), str(result.trials))
            for result in self.results
        ]
        note = "; ".join(_proof(self.results[-1])) if self.results else ""
        title = self.results[-1].question if self.results else "Bisection"
        if self.results and self.results[-1].simulated:
            title += f" [{SIMULATED}]"
        return html_table(title, ("level", "verdict", "smallest failing part", "trials"), rows, note)

    def to_dict(self) -> dict[str, Json]:
        """Return the results as data."""
        return {"title": "Bisection", "results": [to_plain(result) for result in self.results]}


def bisection_report(source: Journal | Iterable[Record]) -> BisectionReport:
    """Return the results of the last bisection in a journal, or among records."""
    results = [record for record in records_of(source) if isinstance(record, BisectionResult)]
    # A bisection of several levels ends with one result for each, one behind the other, with one question.
    begin = len(results)
    while begin and results[begin - 1].question == results[-1].question:
        begin -= 1
        if any(result.level == results[begin].level for result in results[begin + 1 :]):
            begin += 1
            break
    return BisectionReport(results=tuple(results[begin:]))


def trial_table(source: Journal | Iterable[Record]) -> TableView:
    """Return one row per trial: what asked for it, how much was kept, how it ended, how long it took."""
    trials = [record for record in records_of(source) if isinstance(record, CompileTrial)]
    rows: list[tuple[str, ...]] = []
    data: list[dict[str, Json]] = []
    for number, trial in enumerate(trials, start=1):
        took = (
            "from before"
            if trial.cached
            else "by hand"
            if trial.phase_of_search == "user"
            else seconds_text(trial.trial_s)
        )
        status = "-" if trial.exit_status is None else str(trial.exit_status)
        rows.append((str(number), trial.phase_of_search, str(len(trial.subject)), ended_text(trial), status, took))
        data.append(
            {
                "trial": number,
                "phase": trial.phase_of_search,
                "kept": list(trial.subject),
                "outcome": trial.outcome,
                "signature": to_plain(trial.signature),
                "exit_status": trial.exit_status,
                "trial_s": trial.trial_s,
                "cached": trial.cached,
                "backend": trial.backend,
                "simulated": trial.simulated,
                "error": trial.error,
            }
        )
    ran = sum(not trial.cached for trial in trials)
    notes = [f"{count_text(ran, 'trial')} run, {len(trials) - ran} taken from before"] if trials else []
    notes += [SIMULATED] if any(trial.simulated for trial in trials) else []
    return TableView(
        title="Trials",
        header=("trial", "phase", "kept", "ended", "status", "took"),
        rows=tuple(rows),
        data=tuple(data),
        note="; ".join(notes),
        align="rlrlrr",
    )


def ended_text(trial: CompileTrial) -> str:
    """Return how a trial ended, in words."""
    if trial.outcome == "ok":
        return "compiles"
    words = [trial.outcome.replace("_", " ")]
    signature = trial.signature
    if signature is not None:
        named = [signature.code, signature.signal, f"in {signature.stage}" if signature.stage else None]
        named.append(f"on {signature.operation}" if signature.operation else None)
        words += [word for word in named if word]
    return " ".join(words)


def records_of(source: Journal | Iterable[Record]) -> list[Record]:
    """Return the records of a journal, or the records themselves."""
    return source.records if isinstance(source, Journal) else list(source)


def _proof(result: BisectionResult) -> list[str]:
    lines: list[str] = []
    signature = result.signature
    if signature is not None:
        named = [signature.outcome.replace("_", " "), signature.code, signature.signal]
        named += [f"in {signature.stage}" if signature.stage else None]
        named += [f"on {signature.operation}" if signature.operation else None]
        lines.append(f"failure: {' '.join(word for word in named if word)}")
    if result.verdict == "found":
        sure = "without any single one of them the failure is gone" if result.minimal else "not shown to be minimal"
        lines.append(f"proof: {sure}" + (f"; not judged: {', '.join(result.doubts)}" if result.doubts else ""))
    if result.flaky:
        lines.append(
            f"flaky: the whole failed in {result.failing_runs} of {result.whole_runs} runs; sets ran repeatedly"
        )
    if result.leftover_processes:
        lines.append(f"left over: {count_text(result.leftover_processes, 'process', 'processes')}")
    if result.note:
        lines.append(f"note: {result.note}")
    if result.repro:
        lines.append(f"script that shows it: {result.repro}")
    return lines


def cut_text(text: str, width: int = 100) -> str:
    """Return text no wider than `width`, an ellipsis in the place of the rest."""
    return text if len(text) <= width else text[: width - 1] + "…"
