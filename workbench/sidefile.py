"""The journal's side file: captured tensors in one growing safetensors file, readable by any safetensors reader.

Layout: 8 bytes header length, a header padded with spaces to a fixed size, then the data. A new tensor's bytes are
appended first; then its entry is written over the closing brace of the header, in one small write, so that a capture
costs the same however many there are, and a process that is killed loses at most the tensor it was writing. A header
whose last entry was cut is read up to that entry. Standard library only; dtypes are safetensors names ("F32",
"F8_E4M3", ...), values are bytes.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.errors import JournalError

_FIRST_HEADER_BYTES = 1 << 16
_EMPTY_HEADER = b'{"__metadata__":{"format":"pt"}}'

_Entry = tuple[str, tuple[int, ...], int, int]
"""dtype, shape, first byte and one past the last byte, counted from the end of the header."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTensor:
    """One tensor of the side file.

    Attributes:
        dtype: safetensors name.
        shape: logical shape.
        data: the bytes, row-major.
    """

    dtype: str
    shape: tuple[int, ...]
    data: bytes


class SideFile:
    """Append-only store of captured tensors; keeps everything in memory when it has no path."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._index: dict[str, _Entry] = {}
        self._memory: dict[str, bytes] = {}
        self._header_bytes = _FIRST_HEADER_BYTES
        self._header_used = 0
        self._end = 0
        if path is not None and path.exists():
            self._load(path)

    def keys(self) -> list[str]:
        """Return the names stored, in order of capture."""
        return list(self._index)

    def append(self, key: str, dtype: str, shape: Sequence[int], data: bytes) -> None:
        """Store one tensor; a key is written once.

        Raises:
            JournalError: the key exists already.
        """
        if key in self._index:
            raise JournalError(f"capture {key!r} exists already in {self.path}; captures are never overwritten")
        entry = (dtype, tuple(shape), self._end, self._end + len(data))
        if self.path is None:
            self._memory[key] = data
        else:
            self._write(self.path, key, entry, data)
        self._index[key] = entry
        self._end += len(data)

    def __contains__(self, key: str) -> bool:
        return key in self._index

    def read(self, key: str) -> StoredTensor:
        """Return the stored tensor.

        Raises:
            JournalError: no such key, or the file is shorter than its header says.
        """
        if key not in self._index:
            raise JournalError(
                f"no capture {key!r}; the side file holds {len(self._index)} captures: {self.keys()[:8]}"
            )
        dtype, shape, begin, end = self._index[key]
        if self.path is None:
            return StoredTensor(dtype=dtype, shape=shape, data=self._memory[key])
        with open(self.path, "rb") as file:
            file.seek(8 + self._header_bytes + begin)
            data = file.read(end - begin)
        if len(data) != end - begin:
            raise JournalError(
                f"{self.path}: capture {key!r} needs {end - begin} bytes, found {len(data)}; the file was cut"
            )
        return StoredTensor(dtype=dtype, shape=shape, data=data)

    def _write(self, path: Path, key: str, entry: _Entry, data: bytes) -> None:
        text = _entry_text(key, entry)
        if not path.exists():
            self._begin(path, len(text))
        elif self._header_used + len(text) + 2 > self._header_bytes:
            self._grow(path, self._header_used + len(text) + 2)
        descriptor = os.open(path, os.O_WRONLY)
        try:
            _write_all(descriptor, data, 8 + self._header_bytes + entry[2])
            # The entry replaces the closing brace and brings its own; what follows are the padding spaces.
            _write_all(descriptor, b"," + text + b"}", 8 + self._header_used - 1)
        finally:
            os.close(descriptor)
        self._header_used += len(text) + 1

    def _begin(self, path: Path, first_entry: int) -> None:
        while len(_EMPTY_HEADER) + first_entry + 2 > self._header_bytes:
            self._header_bytes *= 4
        path.write_bytes(struct.pack("<Q", self._header_bytes) + _EMPTY_HEADER.ljust(self._header_bytes))
        self._header_used = len(_EMPTY_HEADER)

    def _grow(self, path: Path, needed: int) -> None:
        old = self._header_bytes
        while self._header_bytes < needed:
            self._header_bytes *= 4
        replacement = path.with_name(path.name + ".growing")
        with open(path, "rb") as source, open(replacement, "wb") as target:
            source.seek(8)
            header = source.read(self._header_used)
            target.write(struct.pack("<Q", self._header_bytes) + header.ljust(self._header_bytes))
            source.seek(8 + old)
            while block := source.read(1 << 22):
                target.write(block)
        os.replace(replacement, path)

    def _load(self, path: Path) -> None:
        with open(path, "rb") as file:
            head = file.read(8)
            if len(head) < 8:
                raise JournalError(f"{path}: expected a safetensors side file, found {len(head)} bytes")
            (self._header_bytes,) = struct.unpack("<Q", head)
            if self._header_bytes > os.path.getsize(path):
                raise JournalError(
                    f"{path}: header says {self._header_bytes} bytes, the file has {os.path.getsize(path)}"
                )
            text = file.read(self._header_bytes).rstrip(b" ")
        for key, entry in _parse_header(text, path).items():
            begin, end = entry["data_offsets"]
            self._index[key] = (entry["dtype"], tuple(entry["shape"]), begin, end)
            self._end = max(self._end, end)
        self._header_used = len(text)


def _entry_text(key: str, entry: _Entry) -> bytes:
    dtype, shape, begin, end = entry
    body = {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}
    return f"{json.dumps(key)}:{json.dumps(body, separators=(',', ':'))}".encode()


def _parse_header(text: bytes, path: Path) -> dict[str, dict[str, Any]]:
    try:
        header = json.loads(text)
    except ValueError as error:
        # A kill inside the one write that adds an entry leaves everything before that entry whole.
        cut = text.rfind(b"},")
        if cut < 0:
            raise JournalError(f"{path}: the header is not JSON ({error})") from error
        try:
            header = json.loads(text[: cut + 1] + b"}")
        except ValueError:
            raise JournalError(f"{path}: the header is not JSON ({error})") from error
    return {key: entry for key, entry in header.items() if key != "__metadata__"}


def _write_all(descriptor: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, offset)
        view, offset = view[written:], offset + written
