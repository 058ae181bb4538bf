"""The record of a run, and the product of this package: a header, actions and records, appended and never changed.

On disk: JSON Lines (one header line, then one line per action or record, flushed as it is written) and one safetensors
side file `<name>.safetensors` for captured tensors. A last line cut by a kill is dropped and reported; everything
before it is read. Needs no torch. Not for drawing (see `views`) nor for running anything (see `session`, `replay`).
"""

from __future__ import annotations

import dataclasses
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TypeVar, cast

from workbench.actions import Action
from workbench.errors import JournalError
from workbench.findings import FindingsDiff, compare_findings
from workbench.records import Record, Stamp, record_from_json
from workbench.records.base import Json, from_plain, to_plain
from workbench.sidefile import SideFile, StoredTensor

SCHEMA_VERSION = 1
PATH_FIELDS = ("checkpoint", "golden", "source")
"""Fields of a plan that are paths."""

_R = TypeVar("_R", bound=Record)


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalHeader:
    """First line of a journal.

    Attributes:
        schema: version of the file format; a newer one than this package knows is refused.
        versions: package name to version, of the machine that wrote it.
        plan: the plan's JSON form, or None for a journal without one. Paths in it are relative to the journal's
            folder for a journal on disk, and to the working folder for one in memory.
        title: free text.
        fingerprint: of the checkpoint, "" where there is none; a replay on another checkpoint says so.
    """

    schema: int = SCHEMA_VERSION
    versions: Mapping[str, str] = field(default_factory=dict[str, str])
    plan: Mapping[str, object] | None = None
    title: str = ""
    fingerprint: str = ""


class Journal:
    """Append-only list of actions and records."""

    def __init__(
        self,
        header: JournalHeader | None = None,
        *,
        path: str | Path | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin a journal, in memory, or on disk when `path` is given (refuses to overwrite).

        Raises:
            JournalError: `path` or its side file exists already.
        """
        self.header = header or JournalHeader()
        self.path = None if path is None else Path(path)
        self.entries: list[Action | Record] = []
        self.dropped_text = ""
        self._clock = clock
        self._began = clock()
        self._file: IO[str] | None = None
        if self.path is not None:
            if self.path.exists():
                raise JournalError(f"{self.path} exists already; choose another name or open it with Journal.open")
            if side_path(self.path).exists():
                raise JournalError(
                    f"{side_path(self.path)} exists already, of a journal that is gone; move it away or choose another "
                    "name, or its tensors would be taken for this journal's"
                )
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open(self.path, "w", encoding="utf-8")  # noqa: SIM115 - open as long as the journal is
            self._write_line(_header_json(self.header))
        self._side = SideFile(None if self.path is None else side_path(self.path))

    @classmethod
    def open(cls, path: str | Path) -> Journal:
        """Return the journal stored at `path`, read-only.

        Raises:
            JournalError: not a journal, a newer schema, or a damaged line that is not the last.
        """
        journal = cls()
        journal.path = Path(path)
        journal._read(journal.path)
        journal._side = SideFile(side_path(journal.path))
        return journal

    @property
    def actions(self) -> list[Action]:
        """The actions, in order."""
        return [entry for entry in self.entries if isinstance(entry, Action)]

    @property
    def records(self) -> list[Record]:
        """The records, in order."""
        return [entry for entry in self.entries if isinstance(entry, Record)]

    def of_kind(self, record_type: type[_R]) -> list[_R]:
        """Return the records of one type, in order."""
        return [entry for entry in self.entries if isinstance(entry, record_type)]

    def append(self, record: _R) -> _R:
        """Append a record and return it with its `seq` and `elapsed_s` set; flushed before this returns."""
        stamp = dataclasses.replace(record.stamp, seq=len(self.entries), elapsed_s=self._clock() - self._began)
        stamped = dataclasses.replace(record, stamp=stamp)
        self.entries.append(stamped)
        self._write_line(stamped.to_json())
        return stamped

    def act(self, verb: str, arguments: Mapping[str, object]) -> Action:
        """Append an action; arguments must be JSON-able.

        Raises:
            JournalError: an argument is not.
        """
        plain = cast("dict[str, Json]", to_plain(arguments))
        action = Action(seq=len(self.entries), verb=verb, arguments=plain)
        self.entries.append(action)
        self._write_line(action.to_json())
        return action

    def keep(self, key: str, dtype: str, shape: tuple[int, ...], data: bytes) -> str:
        """Store a tensor's bytes in the side file and return its key (made unique with `#2`, `#3`, ...)."""
        unique, count = key, 1
        while unique in self._side:
            count += 1
            unique = f"{key}#{count}"
        self._side.append(unique, dtype, shape, data)
        return unique

    def captures(self) -> list[str]:
        """Return the keys of the side file."""
        return self._side.keys()

    def capture(self, key: str) -> StoredTensor:
        """Return a captured tensor as dtype, shape and bytes.

        Raises:
            JournalError: no such key.
        """
        return self._side.read(key)

    def save(self, path: str | Path) -> Path:
        """Write the whole journal to a new place and return the path.

        Raises:
            JournalError: `path` exists already.
        """
        base = Path.cwd() if self.path is None else self.path.parent
        target = Journal(rebase_paths(self.header, base, Path(path).parent), path=path)
        for entry in self.entries:
            target.entries.append(entry)
            target._write_line(entry.to_json())
        for key in self.captures():
            stored = self._side.read(key)
            target._side.append(key, stored.dtype, stored.shape, stored.data)
        target.close()
        return Path(path)

    def same_findings(self, other: Journal, *, rel: float = 1e-5) -> FindingsDiff:
        """Say whether `other` found the same, ignoring times, addresses, paths and last bits.

        Args:
            other: journal of another run.
            rel: relative tolerance of floats; 0 demands equality.
        """
        return compare_findings(
            [record.finding() for record in self.records], [record.finding() for record in other.records], rel=rel
        )

    def close(self) -> None:
        """Close the file; the journal stays readable in memory."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def __iter__(self) -> Iterator[Action | Record]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write_line(self, body: Mapping[str, Json]) -> None:
        if self._file is not None:
            self._file.write(json.dumps(body, ensure_ascii=False, allow_nan=False) + "\n")
            self._file.flush()

    def _read(self, path: Path) -> None:
        try:
            text = path.read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            raise JournalError(f"cannot read the journal {path}: {error.strerror}") from error
        lines = text.split("\n")
        self.dropped_text = lines.pop()
        for number, line in enumerate(lines, start=1):
            where = f"{path}:{number}: "
            try:
                body = json.loads(line)
            except (ValueError, RecursionError) as error:
                if number == len(lines) and number > 1:
                    self.dropped_text = line
                    break
                raise JournalError(f"{where}expected a JSON object, found {line[:60]!r} ({error})") from error
            if not isinstance(body, dict):
                raise JournalError(f"{where}expected a JSON object, found {line[:60]!r}")
            self._take(cast("dict[str, object]", body), number, where)
        if not lines:
            raise JournalError(f"{path}: expected a journal header in the first line, found {self.dropped_text[:60]!r}")

    def _take(self, body: dict[str, object], number: int, where: str) -> None:
        if number == 1:
            if "journal" not in body:
                raise JournalError(f"{where}expected a journal header, found keys {sorted(body)[:5]}")
            self.header = from_plain(JournalHeader, cast("Mapping[str, object]", body["journal"]), where=where)
            if self.header.schema > SCHEMA_VERSION:
                raise JournalError(
                    f"{where}journal schema {self.header.schema} is newer than {SCHEMA_VERSION}; "
                    "read it with a newer workbench"
                )
        elif "action" in body:
            arguments = body.get("arguments", {})
            if not isinstance(arguments, dict):
                raise JournalError(f"{where}expected an object as the action's arguments, found {arguments!r}")
            arguments = cast("Mapping[str, Json]", arguments)
            self.entries.append(Action(seq=len(self.entries), verb=str(body["action"]), arguments=arguments))
        else:
            self.entries.append(record_from_json(body, where=where))


def side_path(path: Path) -> Path:
    """Return where a journal's captured tensors lie."""
    return path.with_name(path.name + ".safetensors")


def rebase_paths(header: JournalHeader, old: Path, new: Path) -> JournalHeader:
    """Return the header with the plan's paths, which were relative to the folder `old`, made relative to `new`.

    Absolute paths, and paths that lead nowhere from `old`, stay as they are.
    """
    if header.plan is None:
        return header
    plan = dict(header.plan)
    for name in PATH_FIELDS:
        value = plan.get(name)
        if isinstance(value, str) and not Path(value).is_absolute() and (old / value).exists():
            plan[name] = os.path.relpath(old / value, new)
    return dataclasses.replace(header, plan=plan)


def _header_json(header: JournalHeader) -> dict[str, Json]:
    return {"journal": to_plain(header)}


__all__ = ["PATH_FIELDS", "SCHEMA_VERSION", "Journal", "JournalHeader", "Stamp", "rebase_paths", "side_path"]
