"""What a bisection came to: every trial, the result of every level, and where the answer stands."""

from __future__ import annotations

from dataclasses import dataclass

from workbench.bisection.machine import Bisection
from workbench.records.base import Json
from workbench.records.compiling import BisectionResult, CompileTrial
from workbench.views.bisection import BisectionReport


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class BisectionFindings:
    """The answer of a bisection, with its proof.

    Attributes:
        trials: every trial in order, cached ones included.
        results: one for each level searched, coarse to fine.
        machine: the search of the last level, which can be stepped, undone and gone on with.
    """

    trials: tuple[CompileTrial, ...]
    results: tuple[BisectionResult, ...]
    machine: Bisection

    @property
    def result(self) -> BisectionResult:
        """The result of the finest level reached."""
        return self.results[-1]

    @property
    def records(self) -> tuple[CompileTrial | BisectionResult, ...]:
        """Every record: the trials, then the results."""
        return (*self.trials, *self.results)

    @property
    def report(self) -> BisectionReport:
        """The results in words."""
        return BisectionReport(results=self.results)

    def __str__(self) -> str:
        return str(self.report)

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return self.report._repr_html_()

    def to_dict(self) -> dict[str, Json]:
        """Return results and trials as data."""
        return {
            "results": [result.to_json() for result in self.results],
            "trials": [trial.to_json() for trial in self.trials],
        }
