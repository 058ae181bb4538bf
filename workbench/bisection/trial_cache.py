"""Trials that were run before, by content: a file of one record a line, flushed as each trial ends.

A killed bisection loses at most the trial that was running. The file holds `CompileTrial` records as a journal does,
and a journal can be read in its place.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import IO, cast

from workbench.errors import JournalError
from workbench.records import record_from_json
from workbench.records.compiling import CompileTrial


class TrialCache:
    """Answers by content digest, in the order they came; several of one digest are repeated runs of the same input.

    Args:
        path: file to read, when it exists, and to append to; in memory when None.

    Attributes:
        path: the file.
        dropped_text: end of the file that a kill cut, "" for none; it was removed from the file.

    Raises:
        JournalError: the file holds something else than trials.
    """

    def __init__(self, path: str | Path | None = None) -> None:
        self.path = None if path is None else Path(path)
        self.dropped_text = ""
        self._trials: list[CompileTrial] = []
        self._file: IO[str] | None = None
        is_journal = False
        if self.path is not None:
            if self.path.exists():
                is_journal = self._read(self.path)
            if not is_journal:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self._file = open(self.path, "a", encoding="utf-8")  # noqa: SIM115 - open as long as the cache is

    @property
    def trials(self) -> tuple[CompileTrial, ...]:
        """Every trial, in order."""
        return tuple(self._trials)

    def runs(self, digest: str) -> list[CompileTrial]:
        """Return the trials of one content, in the order they were run."""
        return [trial for trial in self._trials if trial.subject_digest == digest]

    def add(self, trial: CompileTrial) -> None:
        """Keep a trial; on disk before this returns."""
        self._trials.append(trial)
        if self._file is not None:
            self._file.write(json.dumps(trial.to_json(), ensure_ascii=False, allow_nan=False) + "\n")
            self._file.flush()

    def drop_last(self, count: int) -> tuple[CompileTrial, ...]:
        """Forget the last trials, in the file too, and return them.

        Raises:
            JournalError: there are fewer, or the file is a journal, which is never changed.
        """
        if not 1 <= count <= len(self._trials):
            raise JournalError(f"{self.path}: expected 1 to {len(self._trials)} trials to take back, found {count}")
        if self.path is not None and self._file is None:
            raise JournalError(f"{self.path}: a journal is never changed; take trials back from a file of trials")
        self._trials, dropped = self._trials[:-count], tuple(self._trials[-count:])
        if self.path is not None and self._file is not None:
            self._file.close()
            part = self.path.with_name(self.path.name + ".part")
            part.write_text("".join(json.dumps(trial.to_json(), ensure_ascii=False) + "\n" for trial in self._trials))
            os.replace(part, self.path)
            self._file = open(self.path, "a", encoding="utf-8")  # noqa: SIM115
        return dropped

    def close(self) -> None:
        """Close the file; what it holds stays readable here."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _read(self, path: Path) -> bool:
        """Take the trials of a file and say whether it is a journal; cut an unfinished last line off."""
        data = path.read_bytes()
        end = data.rfind(b"\n") + 1
        is_journal = data.startswith(b'{"journal"')
        for number, line in enumerate(data[:end].decode("utf-8", errors="replace").splitlines(), start=1):
            body = _parsed(line, f"{path}:{number}")
            if body.get("kind") == CompileTrial.kind:
                trial = record_from_json(body, where=f"{path}:{number}: ")
                self._trials.append(cast("CompileTrial", trial))
            elif not is_journal:
                raise JournalError(f"{path}:{number}: expected a trial of a bisection, found {line[:60]!r}")
        if end < len(data):
            self.dropped_text = data[end:].decode("utf-8", errors="replace")
            if not is_journal:
                if not self._trials and not data.startswith(b'{"kind": "compile_trial"'[: len(data)]):
                    raise JournalError(f"{path}: expected a file of trials, found {self.dropped_text[:60]!r}")
                os.truncate(path, end)
        return is_journal


def _parsed(line: str, where: str) -> Mapping[str, object]:
    try:
        body = json.loads(line)
    except ValueError as error:
        raise JournalError(f"{where}: expected a JSON object, found {line[:60]!r}") from error
    if not isinstance(body, dict):
        raise JournalError(f"{where}: expected a JSON object, found {line[:60]!r}")
    return cast("Mapping[str, object]", body)
