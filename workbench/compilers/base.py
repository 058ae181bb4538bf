"""The seam between a bisection and a compiler: what a trial's child is asked to do, and what its end means.

A driver never runs anything in this process; it says what the child of a trial does and reads how the child ended.
"""

from __future__ import annotations

import contextlib
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from workbench.bisection.signatures import last_lines, read_failure
from workbench.bisection.subjects.base import SubjectKind, WrittenSubject
from workbench.bisection.trial_client import CallRequest, ChildReport, CommandRequest, TrialServer
from workbench.records.compiling import FailureSignature, Outcome

Request = CommandRequest | CallRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileOutcome:
    """What one attempt to compile came to.

    Attributes:
        outcome: how it ended; "skipped" when that could not be seen.
        signature: of the failure, None when it passed or was skipped.
        exit_status: of the child, negative for a signal, None when it was ended from outside.
        elapsed_s: seconds.
        error: last lines of what it printed, "" when it passed.
        survivors: processes that could not be ended.
    """

    outcome: Outcome
    signature: FailureSignature | None
    exit_status: int | None
    elapsed_s: float
    error: str
    survivors: int


class Compiler(Protocol):
    """One way to compile."""

    @property
    def name(self) -> str:
        """Driver and flags in words."""
        ...

    @property
    def simulated(self) -> bool:
        """A planted fault and no compiler; said in every output, record and report."""
        ...

    @property
    def identity(self) -> str:
        """What decides its answers, for the trial cache: name, flags, versions, content of the user's files."""
        ...

    @property
    def reads(self) -> frozenset[SubjectKind]:
        """Subjects it can be given."""
        ...

    @property
    def preload(self) -> tuple[str, ...]:
        """Modules the child needs; imported once."""
        ...

    def check(self) -> None:
        """Say that it can be used here.

        Raises:
            DeviceError: this machine lacks what it needs.
            PlanError: it is not there, or not usable as asked.
        """
        ...

    def request(self, subject: WrittenSubject, folder: Path) -> Request:
        """Return what the child does; it may write into `folder`."""
        ...

    def outcome(self, report: ChildReport) -> CompileOutcome:
        """Return what the child's end means."""
        ...

    def rungs(self) -> tuple[Compiler, ...]:
        """Return the ladder up to this compiler, itself last: what fails on a lower rung is not its fault."""
        ...


def plain_outcome(report: ChildReport) -> CompileOutcome:
    """Return the outcome of a child that tells everything by its status and its output."""
    outcome, signature = read_failure(report)
    return CompileOutcome(
        outcome=outcome,
        signature=signature,
        exit_status=report.exit_status,
        elapsed_s=report.elapsed_s,
        error="" if outcome == "ok" else last_lines(report.output),
        survivors=report.survivors,
    )


def compile_once(
    compiler: Compiler,
    subject: WrittenSubject,
    *,
    time_limit_s: float,
    memory_limit_bytes: int | None = None,
    server: TrialServer | None = None,
) -> CompileOutcome:
    """Compile one subject in a child process of its own and return what it came to.

    Args:
        compiler: which.
        subject: as a subject wrote it.
        time_limit_s: seconds it may take.
        memory_limit_bytes: resident bytes it may take, None for no limit.
        server: that was started with the compiler's `preload`; one for this call when None.

    Raises:
        DeviceError: this machine lacks what the compiler needs.
    """
    compiler.check()
    with tempfile.TemporaryDirectory(prefix="workbench-compile-") as folder, contextlib.ExitStack() as stack:
        request = compiler.request(subject, Path(folder))
        running = server if server is not None else stack.enter_context(TrialServer(compiler.preload))
        report = running.run(request, timeout_s=time_limit_s, memory_limit_bytes=memory_limit_bytes)
        return compiler.outcome(report)
