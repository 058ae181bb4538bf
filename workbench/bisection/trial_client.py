"""The driver's end of the trial server: starts it, hands it trials, ends it."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Literal

import psutil

from workbench.errors import WorkbenchError
from workbench.records.base import Json
from workbench.settings import child_environment

_BOOT = (
    "import sys; sys.path.insert(0, sys.argv[1]); from workbench.bisection.trial_server import main; main(sys.argv[2:])"
)
# A forked child inherits no thread but the one that forks it.
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
_ROOT = Path(__file__).resolve().parent.parent.parent


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandRequest:
    """Run a program.

    Attributes:
        argv: program and arguments; no shell is involved.
        cwd: folder it runs in.
        environment: variables set beside those of this process.
    """

    argv: tuple[str, ...]
    cwd: str
    environment: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRequest:
    """Call one of this package's functions in a forked child.

    Attributes:
        function: `module:name` inside `workbench`.
        argument: its only argument.
        cwd: folder it runs in.
        environment: variables set beside those of this process.
    """

    function: str
    argument: Mapping[str, Json]
    cwd: str
    environment: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildReport:
    """How a trial's processes ended, before anybody judged it.

    Attributes:
        exit_status: of the child, negative for a signal, None when it was ended from outside.
        ended_because: "" (by itself), "timeout", "memory" or "server died".
        elapsed_s: wall seconds.
        output: what it printed, head and tail when it printed very much.
        output_bytes: how much it printed.
        peak_bytes: largest resident memory seen, 0 where nobody looked.
        answer: JSON text a call returned, "" when it returned nothing.
        survivors: processes that could not be ended.
    """

    exit_status: int | None
    ended_because: Literal["", "timeout", "memory", "server died"]
    elapsed_s: float
    output: str
    output_bytes: int
    peak_bytes: int
    answer: str
    survivors: int


class TrialServer:
    """A warm process that forks one child per trial; a context manager."""

    def __init__(self, preload: Sequence[str] = (), environment: Mapping[str, str] | None = None) -> None:
        """Start the process and import `preload` in it.

        Args:
            preload: modules every trial needs; imported once.
            environment: variables set before anything is imported, which is when libraries read them.

        Raises:
            WorkbenchError: it could not start.
        """
        self.preload = tuple(preload)
        self._environment = {**_ONE_THREAD, **(environment or {})}
        self._process: subprocess.Popen[bytes] | None = None
        self._start()

    def run(
        self, request: CommandRequest | CallRequest, *, timeout_s: float, memory_limit_bytes: int | None = None
    ) -> ChildReport:
        """Run one trial to its end, or to its limit, and return how it ended.

        A KeyboardInterrupt while it runs ends the trial's processes before it goes on.
        """
        body: dict[str, Json] = {
            "cwd": request.cwd,
            "environment": dict(request.environment),
            "timeout_s": timeout_s,
            "memory_limit_bytes": memory_limit_bytes,
        }
        if isinstance(request, CommandRequest):
            body |= {"kind": "command", "argv": list(request.argv)}
        else:
            body |= {"kind": "call", "function": request.function, "argument": dict(request.argument)}
        if self._process is None:
            self._start()
        try:
            self._write(body)
            reply = self._read()
        except KeyboardInterrupt:
            self.close()
            raise
        if reply is None:
            self.close()
            return _server_died()
        return ChildReport(**reply)  # type: ignore[arg-type]

    def living(self) -> int:
        """Return how many processes of trials are alive right now; 0 after every trial."""
        if self._process is None:
            return 0
        try:
            children = psutil.Process(self._process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return 0
        return sum(1 for child in children if _is_alive(child))

    def close(self) -> None:
        """End the server and everything below it; safe to call twice."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()

    def __enter__(self) -> TrialServer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None):
        self.close()

    def _start(self) -> None:
        # A session of its own, so that Ctrl-C reaches the driver alone; the driver then ends the trial in order.
        self._process = subprocess.Popen(
            [sys.executable, "-c", _BOOT, str(_ROOT), *self.preload],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env=child_environment(self._environment),
        )
        try:
            reply = self._read()
        except KeyboardInterrupt:
            self.close()
            raise
        if reply is None or "fatal" in reply:
            self.close()
            raise WorkbenchError(
                f"the trial server could not start (preloading {', '.join(self.preload) or 'nothing'}):\n"
                + str("it ended without a word" if reply is None else reply["fatal"])
            )

    def _write(self, body: Mapping[str, Json]) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(body).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # the read that follows finds the end of the stream and says so

    def _read(self) -> dict[str, object] | None:
        assert self._process is not None
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        return json.loads(line) if line.endswith(b"\n") else None


def _server_died() -> ChildReport:
    return ChildReport(
        exit_status=None,
        ended_because="server died",
        elapsed_s=0.0,
        output="the trial server was killed while the trial ran",
        output_bytes=0,
        peak_bytes=0,
        answer="",
        survivors=0,
    )


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.Error:
        return False
