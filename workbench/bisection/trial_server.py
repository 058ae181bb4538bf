"""The warm process that trials are forked from; run by `trial_client`, one per bisection.

Why a process of its own: forking the user's process would copy its threads' locks and its device context, and starting
Python and torch afresh costs seconds a trial. This one imports what trials need, starts no thread and touches no
device, then forks one child per trial. It also outlives the user's process by no more than an instant: when its input
closes (the driver was killed), it kills whatever runs and ends.

Protocol, one JSON object a line. In: `{"kind": "command", "argv": [...]}` or `{"kind": "call", "function":
"module:name", "argument": {...}}`, each with `cwd`, `environment`, `timeout_s` and `memory_limit_bytes`. Out: one
`ChildReport` per trial. The end of the input ends a running trial, with all it started, and the server.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import resource
import select
import signal
import sys
import time
import traceback
from dataclasses import dataclass, field

from workbench.bisection import processes
from workbench.settings import child_environment, put_environment

_KEPT_BYTES = 32 * 1024
_MEMORY_POLL_S = 0.1
# A trial that waits for a processor is not charged for it, up to this many times its limit.
_STARVED_LIMIT = 8.0


@dataclass(slots=True)
class _Output:
    """The first and last bytes of what a trial printed; the middle of a flood is counted, not kept."""

    head: bytearray = field(default_factory=bytearray)
    tail: bytearray = field(default_factory=bytearray)
    total: int = 0

    def add(self, data: bytes) -> None:
        self.total += len(data)
        room = _KEPT_BYTES - len(self.head)
        self.head += data[:room]
        self.tail += data[room:] if room < len(data) else b""
        if len(self.tail) > 2 * _KEPT_BYTES:
            del self.tail[:-_KEPT_BYTES]

    def text(self) -> str:
        tail = bytes(self.tail[-_KEPT_BYTES:])
        left_out = self.total - len(self.head) - len(tail)
        middle = f"\n... {left_out} bytes left out ...\n".encode() if left_out else b""
        return (bytes(self.head) + middle + tail).decode("utf-8", errors="replace")


def main(preload: list[str]) -> None:
    """Serve trials until the input closes."""
    source, sink = os.dup(0), os.dup(1)
    quiet = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(quiet, standard)
    processes.adopt_orphans()
    try:
        _warm(preload)
    except BaseException:
        _reply(sink, {"fatal": traceback.format_exc()})
        return
    wake_read, wake_write = os.pipe()
    for end in (wake_read, wake_write):
        os.set_blocking(end, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    _reply(sink, {"ready": True, "threads": processes.thread_count()})
    _Server(source, sink, wake_read).serve()


def _warm(preload: list[str]) -> None:
    for name in preload:
        module = importlib.import_module(name)
        warm_up = getattr(module, "warm_up", None)
        if warm_up is not None:
            warm_up()
    if processes.thread_count() != 1:
        raise RuntimeError(
            f"trial server: expected one thread before forking, found {processes.thread_count()} after importing "
            f"{preload}; a child forked now could wait for ever on a lock nobody holds"
        )
    gc.collect()
    gc.freeze()


class _Server:
    def __init__(self, source: int, sink: int, wake: int) -> None:
        self._source, self._sink, self._wake = source, sink, wake
        self._buffer = bytearray()

    def serve(self) -> None:
        while (line := self._next_line()) is not None:
            request = json.loads(line)
            _reply(self._sink, self._run(request))
        processes.end_descendants()

    def _next_line(self) -> str | None:
        while b"\n" not in self._buffer:
            data = os.read(self._source, 1 << 16)
            if not data:
                return None
            self._buffer += data
        line, _, rest = bytes(self._buffer).partition(b"\n")
        self._buffer = bytearray(rest)
        return line.decode()

    def _run(self, request: dict) -> dict[str, object]:
        output_read, output_write = os.pipe()
        answer_read, answer_write = os.pipe()
        began = time.monotonic()
        pid = os.fork()
        if pid == 0:
            _be_child(request, output_write, answer_write, (self._source, self._sink, self._wake))
        os.close(output_write)
        os.close(answer_write)
        watch = _Watch(pid, request, began, output_read, answer_read)
        try:
            self._watch_until_end(watch)
        finally:
            survivors = processes.end_descendants(pid)
            watch.drain()
            os.close(output_read)
            os.close(answer_read)
        return {**watch.report(), "survivors": survivors}

    def _watch_until_end(self, watch: _Watch) -> None:
        while not watch.over():
            ready, _, _ = select.select([self._source, self._wake, *watch.open_ends()], [], [], watch.pause_s())
            if self._wake in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wake, 4096)
            if self._source in ready:
                data = os.read(self._source, 1 << 16)
                if not data:
                    processes.end_descendants(watch.pid)
                    os._exit(0)
                self._buffer += data
            watch.read(ready)


class _Watch:
    """One running trial: its output, its limits, its end."""

    def __init__(self, pid: int, request: dict, began: float, output_fd: int, answer_fd: int) -> None:
        self.pid = pid
        self.ended_because = ""
        self._began = began
        self._limit_s = float(request["timeout_s"])
        self._deadline = began + self._limit_s
        self._memory_limit = request.get("memory_limit_bytes")
        self._memory_at = began + 0.05
        self._status: int | None = None
        self._ended = 0.0
        self._peak_bytes = 0
        self._output = _Output()
        self._answer = bytearray()
        self._ends = {output_fd: self._output.add, answer_fd: self._answer.extend}
        for end in self._ends:
            os.set_blocking(end, False)

    def open_ends(self) -> list[int]:
        return list(self._ends)

    def pause_s(self) -> float:
        until = self._deadline if self._memory_limit is None else min(self._deadline, self._memory_at)
        return max(0.0, until - time.monotonic())

    def over(self) -> bool:
        """Say whether the trial ended, by itself or by a limit; the caller then ends its processes."""
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        now = time.monotonic()
        if pid:
            self._status, self._ended = status, now
            return True
        if not self.ended_because and self._memory_limit is not None and now >= self._memory_at:
            self._memory_at = now + _MEMORY_POLL_S
            self._peak_bytes = max(self._peak_bytes, processes.resident_bytes())
            if self._peak_bytes > self._memory_limit:
                self.ended_because = "memory"
        if not self.ended_because and now >= self._deadline:
            owed = min(processes.starved_s(self.pid), (_STARVED_LIMIT - 1) * self._limit_s)
            self._deadline = self._began + self._limit_s + owed
            if now >= self._deadline:
                self.ended_because = "timeout"
        if self.ended_because:
            self._ended = now
        return bool(self.ended_because)

    def read(self, ready: list[int]) -> None:
        for end in [end for end in self._ends if end in ready]:
            try:
                data = os.read(end, 1 << 16)
            except BlockingIOError:
                continue
            if data:
                self._ends[end](data)
            else:
                del self._ends[end]

    def drain(self) -> None:
        """Take what lies in the pipes; whoever held their other ends is gone, so this ends."""
        while self._ends:
            ready, _, _ = select.select(list(self._ends), [], [], 0)
            if not ready:
                return
            self.read(ready)

    def report(self) -> dict[str, object]:
        exit_status = None if self._status is None else os.waitstatus_to_exitcode(self._status)
        return {
            "exit_status": exit_status,
            "ended_because": self.ended_because,
            "elapsed_s": self._ended - self._began,
            "output": self._output.text(),
            "output_bytes": self._output.total,
            "peak_bytes": self._peak_bytes,
            "answer": self._answer.decode("utf-8", errors="replace"),
        }


def _be_child(request: dict, output_fd: int, answer_fd: int, foreign: tuple[int, ...]) -> None:
    """Become the trial; never returns."""
    status = 127
    try:
        os.setsid()
        processes.die_with_parent()
        processes.prefer_for_oom_kill()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        os.dup2(output_fd, 1)
        os.dup2(output_fd, 2)
        for end in (output_fd, *foreign):
            os.close(end)
        os.chdir(request["cwd"])
        if request["kind"] == "command":
            os.set_inheritable(answer_fd, False)
            _exec(request["argv"], request["environment"])
        put_environment(request["environment"])
        status = _call(request, answer_fd)
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else 0 if error.code is None else 1
        if isinstance(error.code, str):
            sys.stderr.write(error.code + "\n")
    except BaseException:
        traceback.print_exc()
        status = 1
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def _exec(argv: list[str], environment: dict[str, str]) -> None:
    try:
        os.execvpe(argv[0], argv, child_environment(environment))
    except OSError as error:
        sys.stderr.write(f"cannot start {argv[0]!r}: {error.strerror}\n")
        sys.stderr.flush()
        os._exit(127)


def _call(request: dict, answer_fd: int) -> int:
    # The pipes replace what the server sent to nowhere; line buffering keeps the last words of a crash.
    sys.stdout = open(1, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
    module, _, name = request["function"].partition(":")
    if not module.startswith("workbench."):
        raise ValueError(f"trial server: expected a function of this package, got {request['function']!r}")
    answer = getattr(importlib.import_module(module), name)(request["argument"])
    with os.fdopen(answer_fd, "w", encoding="utf-8") as file:
        json.dump(answer, file)
    # A function that caught a failure tells of it in its answer and still ends as the failure would have.
    return int(answer.get("exit_status", 0)) if isinstance(answer, dict) else 0


def _reply(sink: int, body: dict[str, object]) -> None:
    data = json.dumps(body).encode() + b"\n"
    while data:
        data = data[os.write(sink, data) :]
