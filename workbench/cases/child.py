"""One case in one child process: started in its own process group, given a time limit, and ended with all it started.

The child (`python -m workbench.cases.child`) writes its result as JSON to a file. A child that leaves no result has
failed, and its last words are kept as its answer. Not for choosing who answers a case (see `runner`).
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import traceback
from importlib import import_module
from pathlib import Path
from typing import cast

from workbench.cases.base import CaseResult, read_expected
from workbench.records.base import from_plain, to_plain

_LAST_LINES = 20


def run_in_child(folder: Path, *, case_id: str, case_class: str, module: str, limit_s: float) -> CaseResult:
    """Return the result of the case in `folder`, answered by `module.run_case` in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="workbench-case-") as scratch:
        result_path, words_path = Path(scratch, "result.json"), Path(scratch, "words.txt")
        command = [sys.executable, "-m", "workbench.cases.child", str(folder), module, str(result_path)]
        # A file and not a pipe: a grandchild that keeps a pipe open would hold us up after the child's end.
        with open(words_path, "wb") as words:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=words, stderr=subprocess.STDOUT, start_new_session=True
            )
            try:
                status = process.wait(timeout=limit_s)
                ended = "" if result_path.exists() else f"the case process ended with status {status} and no result"
            except subprocess.TimeoutExpired:
                ended = f"no result within {limit_s:g} s; its processes were ended"
            finally:
                _end_group(process)
        if ended:
            text = words_path.read_text(encoding="utf-8", errors="replace")
            return _failed(case_id, case_class, ended, text)
        return _read_result(result_path)


def _end_group(process: subprocess.Popen[bytes]) -> None:
    # The group outlives its leader where the case left children behind, so it is signalled in any event.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _read_result(path: Path) -> CaseResult:
    body = cast("dict[str, object]", json.loads(path.read_text(encoding="utf-8")))
    return from_plain(CaseResult, body, where=f"{path.name}: ")


def _failed(case_id: str, case_class: str, reason: str, words: str) -> CaseResult:
    last_words: dict[str, object] = {"last_words": words.splitlines()[-_LAST_LINES:]}
    return CaseResult(
        case_id=case_id, case_class=case_class, status="failed", differences=(reason,), answers=last_words
    )


def main(folder: str, module: str, result_path: str) -> int:
    """Answer one case and write the result; an exception of the answering module is a failed case."""
    expected = read_expected(Path(folder))
    try:
        body = to_plain(import_module(module).run_case(Path(folder)))
    except Exception as error:
        at = traceback.extract_tb(error.__traceback__)[-1]
        reason = f"{type(error).__name__} at {Path(at.filename).name}:{at.lineno}: {error}"
        body = to_plain(_failed(str(expected["id"]), str(expected["class"]), reason, traceback.format_exc()))
    part = Path(result_path + ".part")
    part.write_text(json.dumps(body), encoding="utf-8")
    part.rename(result_path)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
