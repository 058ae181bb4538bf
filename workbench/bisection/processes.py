"""The processes of one trial: found wherever they went, measured, and ended whole.

On Linux the trial server makes itself the reaper of orphans (`prctl(PR_SET_CHILD_SUBREAPER)`), so that a grandchild
which left its group, its session and its parent is still found below it. Elsewhere only what is still linked to its
parent is found.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time

import psutil

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> bool:
    """Make this process the parent of its descendants' orphans; False where the system has no such thing."""
    return _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent() -> None:
    """Have this process killed when its parent ends, where the system can."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def prefer_for_oom_kill() -> None:
    """Tell the kernel to end this process first when memory runs out, rather than the one that watches it."""
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write("1000")


def descendants() -> list[psutil.Process]:
    """Return every living process below this one; zombies do not count."""
    return [child for child in psutil.Process().children(recursive=True) if _is_alive(child)]


def end_descendants(group: int | None = None, *, patience_s: float = 5.0) -> int:
    """Kill everything below this process and reap it; return how many were still there after `patience_s`.

    Args:
        group: process group that is killed first, in one call, so that it cannot outrun the search for its members.
        patience_s: how long to go on; a process stuck in the kernel cannot be ended by anyone.
    """
    if group is not None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)
    deadline = time.monotonic() + patience_s
    while reap() and time.monotonic() < deadline:
        for child in descendants():
            with contextlib.suppress(psutil.Error):
                child.kill()
        time.sleep(0.002)
    return len(descendants()) if reap() else 0


def reap() -> bool:
    """Collect every child that ended; return whether any child is left."""
    try:
        while True:
            pid, _ = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return True
    except ChildProcessError:
        return False


def resident_bytes() -> int:
    """Return the resident memory of everything below this process, in bytes; shared pages count once per process."""
    total = 0
    for child in descendants():
        with contextlib.suppress(psutil.Error):
            total += child.memory_info().rss
    return total


def starved_s(pid: int) -> float:
    """Return how long `pid` stood ready without getting a processor, in seconds; 0 where the system does not tell.

    Linux: second field of `/proc/PID/schedstat`, nanoseconds.
    """
    try:
        with open(f"/proc/{pid}/schedstat", encoding="ascii") as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def thread_count() -> int:
    """Return the threads of this process; 1 where the system does not tell."""
    try:
        return len(os.listdir("/proc/self/task"))
    except OSError:
        return 1


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.Error:
        return False


def _prctl(option: int, value: int) -> bool:
    if not sys.platform.startswith("linux"):
        return False
    return ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) == 0
