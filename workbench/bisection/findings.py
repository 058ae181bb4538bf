"""What a bisection came to: every trial, the result of every level, and where the answer stands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from workbench.bisection.machine import Bisection
from workbench.bisection.signatures import signature_text
from workbench.records.base import Json
from workbench.records.compiling import BisectionResult, CompileTrial
from workbench.units import count_text
from workbench.views.base import html_table

_VERDICT = {
    "found": "found",
    "not_reproduced": "the failure does not show: the whole compiles",
    "usage_error": "nothing to narrow: the compiler cannot be used like this",
    "interrupted": "interrupted; the smallest failing set so far",
    "undecided": "not decided; the smallest failing set so far",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class BisectionFindings:
    """The answer of a bisection, with its proof.

    Attributes:
        trials: every trial in order, cached ones included.
        results: one for each level searched, coarse to fine.
        machine: the search of the last level, which can be stepped, undone and gone on with.
        repro: text of the self-contained script, None where nothing failed.
    """

    trials: tuple[CompileTrial, ...]
    results: tuple[BisectionResult, ...]
    machine: Bisection
    repro: str | None = None

    @property
    def result(self) -> BisectionResult:
        """The result of the finest level reached."""
        return self.results[-1]

    @property
    def records(self) -> tuple[CompileTrial | BisectionResult, ...]:
        """Every record: the trials, then the results."""
        return (*self.trials, *self.results)

    def __str__(self) -> str:
        return "\n".join(result_lines(self.results))

    def _repr_html_(self) -> str:
        lines = result_lines(self.results)
        return html_table(lines[0], ("",), [(line,) for line in lines[1:]])

    def to_dict(self) -> dict[str, Json]:
        """Return results and trials as data."""
        return {
            "results": [result.to_json() for result in self.results],
            "trials": [trial.to_json() for trial in self.trials],
        }


def result_lines(results: Sequence[BisectionResult]) -> list[str]:
    """Return a bisection's results in words, the question first."""
    last = results[-1]
    lines = [last.question + (" [SIMULATED compiler: a planted fault, no real one]" if last.simulated else "")]
    for result in results:
        runs = f"{count_text(result.trials, 'trial')}, {result.cached_trials} from before"
        lines.append(f"{result.level}: {_VERDICT[result.verdict]} ({runs})")
        lines += [f"    {name}" for name in result.culprit[:12]]
        if len(result.culprit) > 12:
            lines.append(f"    ... {len(result.culprit)} in all")
    if last.signature is not None:
        lines.append(f"failure: {signature_text(last.signature)}")
    if last.verdict == "found":
        sure = "removing any one of them makes it go away" if last.minimal else "not shown to be minimal"
        lines.append(f"proof: {sure}" + (f"; not judged: {', '.join(last.doubts)}" if last.doubts else ""))
    if last.flaky:
        lines.append(f"flaky: the whole failed in {last.failing_runs} of {last.whole_runs} runs; sets ran repeatedly")
    if last.leftover_processes:
        lines.append(
            f"left over: {count_text(last.leftover_processes, 'process', 'processes')} that could not be ended"
        )
    if last.note:
        lines.append(f"note: {last.note}")
    return lines
