"""A trial ends whatever it does, says how it ended, and leaves no process behind; nor does a killed driver."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from workbench.bisection.trial_client import CallRequest, ChildReport, CommandRequest, TrialServer
from workbench.errors import WorkbenchError

_LONG_S = 60.0
_SHORT_S = 0.6


@pytest.fixture(scope="module")
def server() -> Iterator[TrialServer]:
    with TrialServer() as started:
        yield started


def run(
    server: TrialServer, code: str, folder: Path, *, limit_s: float = _LONG_S, memory: int | None = None
) -> ChildReport:
    request = CommandRequest(argv=(sys.executable, "-c", code), cwd=str(folder))
    report = server.run(request, timeout_s=limit_s, memory_limit_bytes=memory)
    assert report.survivors == 0
    assert server.living() == 0
    return report


def test_exit_status_and_output_are_told(server: TrialServer, tmp_path: Path) -> None:
    report = run(server, "import sys; print('out'); print('err', file=sys.stderr); sys.exit(70)", tmp_path)
    assert (report.exit_status, report.ended_because) == (70, "")
    assert set(report.output.split()) == {"out", "err"}


def test_a_signal_is_a_negative_status(server: TrialServer, tmp_path: Path) -> None:
    report = run(server, "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", tmp_path)
    assert report.exit_status == -signal.SIGSEGV


def test_a_hang_is_ended_at_its_limit_with_everything_it_started(server: TrialServer, tmp_path: Path) -> None:
    code = "import subprocess, sys, time\nsubprocess.Popen([sys.executable, '-c', 'import time; time.sleep(99)'])\n"
    began = time.monotonic()
    report = run(server, code + "print('busy', flush=True)\ntime.sleep(99)", tmp_path, limit_s=_SHORT_S)
    assert (report.exit_status, report.ended_because) == (None, "timeout")
    assert "busy" in report.output
    assert time.monotonic() - began < 10


def test_a_grandchild_with_a_session_of_its_own_is_found_and_ended(server: TrialServer, tmp_path: Path) -> None:
    note = tmp_path / "pid"
    code = f"""
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        open({str(note)!r}, "w").write(str(os.getpid()))
        time.sleep(99)
    os._exit(0)
os.wait()
while not os.path.exists({str(note)!r}) or not open({str(note)!r}).read():
    time.sleep(0.01)
"""
    report = run(server, code, tmp_path)
    assert report.exit_status == 0
    assert not psutil.pid_exists(int(note.read_text()))


def test_a_grandchild_that_holds_the_pipe_does_not_hold_up_the_answer(server: TrialServer, tmp_path: Path) -> None:
    code = (
        "import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', 'import time; time.sleep(99)'])\nprint('done')"
    )
    began = time.monotonic()
    assert run(server, code, tmp_path).output.strip() == "done"
    assert time.monotonic() - began < 10


def test_a_flood_of_output_is_counted_and_its_ends_are_kept(server: TrialServer, tmp_path: Path) -> None:
    code = "import sys\nprint('first')\nfor _ in range(300): sys.stdout.write('x' * 9999 + '\\n')\nprint('last')"
    report = run(server, code, tmp_path)
    assert report.output_bytes == 300 * 10_000 + 11
    assert report.output.startswith("first")
    assert report.output.endswith("last\n")
    assert len(report.output) < 200_000
    assert "bytes left out" in report.output


def test_memory_beyond_the_limit_ends_the_trial(server: TrialServer, tmp_path: Path) -> None:
    code = "import time\nkept = []\nwhile True:\n    kept.append(b'x' * (8 << 20))\n    time.sleep(0.005)"
    report = run(server, code, tmp_path, memory=200 << 20)
    assert report.ended_because == "memory"
    assert report.peak_bytes > 200 << 20


def test_a_program_that_is_not_there_exits_with_127(server: TrialServer, tmp_path: Path) -> None:
    report = server.run(CommandRequest(argv=("no-such-compiler",), cwd=str(tmp_path)), timeout_s=_LONG_S)
    assert report.exit_status == 127
    assert "cannot start 'no-such-compiler': No such file or directory" in report.output


def test_variables_and_folder_reach_the_program(server: TrialServer, tmp_path: Path) -> None:
    code = "import os; print(os.environ['TRIAL_NOTE'], os.getcwd(), 'PATH' in os.environ)"
    request = CommandRequest(argv=(sys.executable, "-c", code), cwd=str(tmp_path), environment={"TRIAL_NOTE": "seven"})
    assert server.run(request, timeout_s=_LONG_S).output.split() == ["seven", str(tmp_path.resolve()), "True"]


def call(server: TrialServer, function: str, argument: dict, folder: Path) -> ChildReport:
    return server.run(CallRequest(function=function, argument=argument, cwd=str(folder)), timeout_s=_LONG_S)


def test_a_call_hands_its_answer_back(server: TrialServer, tmp_path: Path) -> None:
    report = call(server, "workbench.records.base:to_plain", {"kept": [1, 2]}, tmp_path)
    assert (report.exit_status, json.loads(report.answer)) == (0, {"kept": [1, 2]})


def test_a_call_that_raises_exits_with_1_and_its_traceback(server: TrialServer, tmp_path: Path) -> None:
    report = call(server, "workbench.settings:put_environment", {"NAME": 3}, tmp_path)
    assert (report.exit_status, report.answer) == (1, "")
    assert "TypeError: str expected, not int" in report.output


def test_only_functions_of_this_package_are_called(server: TrialServer, tmp_path: Path) -> None:
    report = call(server, "os:system", {}, tmp_path)
    assert report.exit_status == 1
    assert "expected a function of this package, got 'os:system'" in report.output


def test_a_killed_server_is_told_and_the_next_trial_starts_another(tmp_path: Path) -> None:
    with TrialServer() as server:
        code = "import os, signal; os.kill(os.getppid(), signal.SIGKILL); import time; time.sleep(99)"
        request = CommandRequest(argv=(sys.executable, "-c", code), cwd=str(tmp_path))
        assert server.run(request, timeout_s=_LONG_S).ended_because == "server died"
        assert run(server, "print(1)", tmp_path).output == "1\n"


def test_a_module_that_cannot_be_imported_is_named() -> None:
    with pytest.raises(WorkbenchError, match=r"could not start \(preloading workbench\.nothing\)") as caught:
        TrialServer(("workbench.nothing",))
    assert "ModuleNotFoundError" in str(caught.value)


def test_kill_9_of_the_driver_takes_the_running_trial_along(tmp_path: Path) -> None:
    note = tmp_path / "pids"
    trial = f"import os, time; open({str(note)!r}, 'w').write(f'{{os.getpid()}} {{os.getppid()}}'); time.sleep(99)"
    driver = (
        "import sys\nfrom workbench.bisection.trial_client import CommandRequest, TrialServer\n"
        f"request = CommandRequest(argv=(sys.executable, '-c', {trial!r}), cwd={str(tmp_path)!r})\n"
        "TrialServer().run(request, timeout_s=90)"
    )
    process = subprocess.Popen([sys.executable, "-c", driver])
    pids = _wait_for_pids(note)
    assert len(pids) == 2
    process.kill()
    process.wait()
    _, alive = psutil.wait_procs(pids, timeout=10)
    assert alive == []


def _wait_for_pids(note: Path) -> list[psutil.Process]:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        words = note.read_text().split() if note.exists() else []
        if len(words) == 2:
            return [psutil.Process(int(word)) for word in words]
        threading.Event().wait(0.02)
    return []
