"""The header of one safetensors file, checked strictly before any tensor is believed.

On disk: 8 bytes (little-endian length N), N bytes of JSON `{name: {dtype, shape, data_offsets}}`, then the tensor
data. Offsets count from the end of the header; together they must cover the data exactly, without hole or overlap.

| checked | why it matters |
|---|---|
| file size against the header's last offset | a truncated download has a perfect header, and a map reads past its end |
| shape x dtype against the offsets | a loader that trusts one of them reads a neighbour's bytes |
| repeated names | JSON keeps the last one silently |

Nothing here reads tensor data or raises for bad content: what is wrong becomes `Problem` values.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from math import prod
from pathlib import Path

from port.checkpoint.dtypes import STORED_DTYPES
from port.checkpoint.entries import TensorEntry
from port.checkpoint.json_text import Json, parse_json
from port.checkpoint.problems import Problem, ProblemKind, errors_in

LENGTH_BYTES = 8
MAX_HEADER_BYTES = 100_000_000
"""The longest header the safetensors library accepts."""

_FETCH_AGAIN = "Fetch this file again and compare its size or checksum with the source."
_WRITE_AGAIN = "The writer of this file is at fault; write it again with safetensors."
_FOREIGN_STARTS: tuple[tuple[bytes, str, str], ...] = (
    (b"PK\x03\x04", "a zip archive, as torch.save writes", "Convert it to safetensors first; archives are not loaded."),
    (b"\x80\x02", "a Python pickle", "Convert it to safetensors first; pickles are not loaded."),
    (b"GGUF", "a GGUF file", "Use the safetensors release of the model."),
    (b"<", "markup, probably a web page saved in place of the file", _FETCH_AGAIN),
    (b"{", "JSON without the 8 length bytes", _FETCH_AGAIN),
)
_BITS = {name: stored.bits for name, stored in STORED_DTYPES.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardHeader:
    """What one file says about itself.

    Attributes:
        file: file name relative to the checkpoint folder.
        file_bytes: size on disk.
        data_start: where tensor data begins; 0 when the header could not be read.
        header_bytes: length of the header as the first 8 bytes declare it, believed or not; 0 in a file without them.
        entries: tensors whose bytes are all there, by the name in the file.
        damaged: tensors that must not be read, with the reason.
        metadata: the `__metadata__` strings.
        declared_bytes: bytes of tensor data the header declares.
        present_bytes: bytes of tensor data in the file.
        digest: sha256 of the header text, "" when there is none.
        problems: everything wrong, worst first as met.
    """

    file: str
    file_bytes: int
    data_start: int = 0
    header_bytes: int = 0
    entries: Mapping[str, TensorEntry] = field(default_factory=dict[str, TensorEntry])
    damaged: Mapping[str, Problem] = field(default_factory=dict[str, Problem])
    metadata: Mapping[str, str] = field(default_factory=dict[str, str])
    declared_bytes: int = 0
    present_bytes: int = 0
    digest: str = ""
    problems: tuple[Problem, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether nothing in the file refuses it."""
        return not errors_in(self.problems)

    @property
    def missing_bytes(self) -> int:
        """Bytes of tensor data declared but not there."""
        return max(0, self.declared_bytes - self.present_bytes)


def inspect_header(path: Path, *, file: str) -> ShardHeader:
    """Return the header of one file with every problem found; raises for nothing the file contains.

    Args:
        path: where the file lies.
        file: the name to use in entries and problems.
    """
    try:
        if not path.is_file():  # opening a pipe or a device would wait, or read for ever
            raise OSError("not a regular file")
        with path.open("rb") as stream:
            file_bytes = path.stat().st_size
            start = stream.read(LENGTH_BYTES)
            if problem := _check_start(start, file_bytes, file, stream.read(512 - LENGTH_BYTES)):
                declared = int.from_bytes(start, "little") if len(start) == LENGTH_BYTES else 0
                return ShardHeader(file=file, file_bytes=file_bytes, header_bytes=declared, problems=(problem,))
            stream.seek(LENGTH_BYTES)
            text = stream.read(int.from_bytes(start, "little"))
    except OSError as error:
        problem = Problem(
            kind="unreadable",
            file=file,
            expected="a readable file",
            found=error.strerror or str(error),
            remedy="Check the path and its permissions.",
        )
        return ShardHeader(file=file, file_bytes=0, problems=(problem,))
    return parse_header(text, file=file, file_bytes=file_bytes)


def parse_header(text: bytes, *, file: str, file_bytes: int) -> ShardHeader:
    """Return what the JSON text of a header says, checked against the size of its file.

    Args:
        text: the header without its 8 length bytes.
        file: the name to use in entries and problems.
        file_bytes: size of the whole file.
    """
    data_start = LENGTH_BYTES + len(text)
    records = _HeaderRecords(file, data_start, max(0, file_bytes - data_start))
    records.read(text)
    return ShardHeader(
        file=file,
        file_bytes=file_bytes,
        data_start=data_start,
        header_bytes=len(text),
        entries=records.entries,
        damaged=records.damaged,
        metadata=records.metadata,
        declared_bytes=records.declared_bytes,
        present_bytes=records.present_bytes,
        digest=hashlib.sha256(text).hexdigest(),
        problems=tuple(records.problems),
    )


def _check_start(start: bytes, file_bytes: int, file: str, more: bytes) -> Problem | None:
    """Return what is wrong with the first bytes of a file: its length field, or that it is another kind of file."""
    if file_bytes == 0:
        return Problem(
            kind="empty_file", file=file, expected="a safetensors file", found="an empty file", remedy=_FETCH_AGAIN
        )
    if (start + more).startswith(b"version https://git-lfs"):
        size = next((line[5:].decode("ascii", "replace") for line in more.split(b"\n") if line[:5] == b"size "), "?")
        return Problem(
            kind="lfs_pointer",
            file=file,
            expected="tensor data",
            found=f"a Git LFS pointer of {file_bytes} bytes that stands for {size} bytes",
            remedy="Run `git lfs pull` in the repository, or download the file itself.",
        )
    if file_bytes < LENGTH_BYTES:
        return Problem(
            kind="truncated_header",
            file=file,
            expected=f"{LENGTH_BYTES} bytes of header length",
            found=f"a file of {file_bytes} bytes",
            remedy=_FETCH_AGAIN,
        )
    length, room = int.from_bytes(start, "little"), file_bytes - LENGTH_BYTES
    for mark, what, remedy in _FOREIGN_STARTS:
        if start.startswith(mark) and (length > room or length > MAX_HEADER_BYTES):
            return Problem(kind="not_safetensors", file=file, expected="a safetensors file", found=what, remedy=remedy)
    if length > MAX_HEADER_BYTES:
        return Problem(
            kind="header_length",
            file=file,
            expected=f"a header of at most {MAX_HEADER_BYTES} bytes",
            found=f"header length {length} in a file of {file_bytes} bytes",
            remedy=f"The length field is damaged or this is no safetensors file. {_FETCH_AGAIN}",
        )
    if length > room:
        return Problem(
            kind="truncated_header",
            file=file,
            expected=f"a header of {length} bytes",
            found=f"{room} bytes after the length field: {length - room} are missing, and all tensor data",
            remedy=_FETCH_AGAIN,
        )
    if length < 2:
        return Problem(
            kind="header_length",
            file=file,
            expected="a header of at least 2 bytes, `{}`",
            found=f"header length {length}",
            remedy=_FETCH_AGAIN,
        )
    return None


class _HeaderRecords:
    """Collects the records of one header; single use."""

    def __init__(self, file: str, data_start: int, present_bytes: int) -> None:
        self.file, self.data_start, self.present_bytes = file, data_start, present_bytes
        self.entries: dict[str, TensorEntry] = {}
        self.damaged: dict[str, Problem] = {}
        self.metadata: dict[str, str] = {}
        self.problems: list[Problem] = []
        self.declared_bytes = 0
        self._malformed = False

    def read(self, text: bytes) -> None:
        """Check the whole header text; results are in the attributes."""
        if not text.startswith(b"{"):
            self._add("header_json", None, "a header that begins with `{`", repr(text[:12]), _FETCH_AGAIN)
            return
        try:
            value, repeated = parse_json(text)
        except ValueError as error:
            self._add("header_json", None, "a header of JSON text in UTF-8", str(error), _FETCH_AGAIN)
            return
        assert isinstance(value, dict), "JSON text that begins with `{` is an object"
        for name in repeated:
            self._damage("duplicate_key", name, "each name once in the header", "the same key twice", _WRITE_AGAIN)
        for name, record in value.items():
            if name == "__metadata__":
                self._read_metadata(record)
            elif (entry := self._sound_entry(name, record)) is not None:
                self.entries[name] = entry
            else:
                self._read_record(name, record)
        self._check_cover()
        for name in self.damaged:
            self.entries.pop(name, None)

    def _read_metadata(self, value: Json) -> None:
        if isinstance(value, dict) and all(isinstance(text, str) for text in value.values()):
            self.metadata = {name: str(text) for name, text in value.items()}
            return
        self._add("metadata", None, "`__metadata__` as an object of strings", repr(value)[:80], _WRITE_AGAIN)

    def _sound_entry(self, name: str, record: Json) -> TensorEntry | None:
        """Return a record without fault as an entry, None for any other; a release has 100,000 of the first kind."""
        if not isinstance(record, dict):
            return None
        dtype, shape, offsets = record.get("dtype"), record.get("shape"), record.get("data_offsets")
        if not (isinstance(dtype, str) and isinstance(shape, list) and isinstance(offsets, list) and len(offsets) == 2):
            return None
        begin, end = offsets
        needed_bits = _BITS.get(dtype)
        if needed_bits is None or type(begin) is not int or type(end) is not int or begin < 0:
            return None
        sizes: list[int] = []
        for size in shape:
            if type(size) is not int or size < 0:
                return None
            needed_bits *= size
            sizes.append(size)
        if needed_bits != (end - begin) * 8:
            return None
        return TensorEntry(
            name=name,
            shape=tuple(sizes),
            dtype=dtype,
            file=self.file,
            offset=self.data_start + begin,
            nbytes=end - begin,
        )

    def _read_record(self, name: str, record: Json) -> None:
        """Take a record with a fault: say what is wrong with it, and keep what can be known of its place."""
        if not isinstance(record, dict) or not {"dtype", "shape", "data_offsets"} <= record.keys():
            self._malformed = True
            expected = "an object with dtype, shape and data_offsets"
            self._damage("tensor_record", name, expected, repr(record)[:80], _WRITE_AGAIN)
            return
        dtype, shape, offsets = record["dtype"], record["shape"], record["data_offsets"]
        stored = STORED_DTYPES.get(dtype) if isinstance(dtype, str) else None
        begin, end = _offset_pair(offsets)
        if begin < 0:
            self._malformed = True
            expected = "data_offsets [begin, end] with 0 <= begin <= end"
            self._damage("offsets", name, expected, repr(offsets)[:80], _WRITE_AGAIN)
            return
        if stored is None:
            close = get_close_matches(str(dtype), STORED_DTYPES, n=1)
            hint = f"Did you mean {close[0]}? " if close else ""
            expected = f"one of the dtypes {', '.join(STORED_DTYPES)}"
            self._damage("unknown_dtype", name, expected, repr(dtype), f"{hint}{_WRITE_AGAIN}")
        shape_ok = isinstance(shape, list) and all(type(size) is int and size >= 0 for size in shape)
        if not shape_ok:
            self._damage("shape", name, "a shape of sizes of at least 0", repr(shape)[:80], _WRITE_AGAIN)
        sizes = tuple(size for size in shape if isinstance(size, int)) if isinstance(shape, list) and shape_ok else ()
        if stored is not None and shape_ok and prod(sizes) * stored.bits != (end - begin) * 8:
            needed = prod(sizes) * stored.bits / 8
            expected = f"{needed:g} bytes for {dtype}{list(sizes)}"
            found = f"{end - begin} bytes between data_offsets [{begin}, {end}]"
            self._damage("size_mismatch", name, expected, found, _WRITE_AGAIN)
        self.entries[name] = TensorEntry(
            name=name,
            shape=sizes,
            dtype=str(dtype),
            file=self.file,
            offset=self.data_start + begin,
            nbytes=end - begin,
        )

    def _check_cover(self) -> None:
        """Check that the tensors cover the data exactly: no overlap, no hole, no byte too few or too many."""
        ordered = sorted(self.entries.values(), key=lambda entry: (entry.offset, entry.nbytes))
        data_end = self.data_start + self.present_bytes
        reached, previous, has_hole = self.data_start, None, self._malformed
        for entry in ordered:
            if entry.offset < reached and previous is not None:
                found = f"bytes {self._span(entry)}, of which {reached - entry.offset} belong to {previous.name} too"
                expected = "bytes of its own"
                self._damage("overlap", entry.name, expected, found, _WRITE_AGAIN)
                self.damaged.setdefault(previous.name, self.damaged[entry.name])
            elif entry.offset > reached and not self._malformed:
                has_hole = True
                if entry.offset + entry.nbytes <= data_end:  # beyond it, the offsets are at fault and reported below
                    found = f"{entry.offset - reached} bytes before it that belong to no tensor"
                    expected = f"data at offset {reached - self.data_start}"
                    self._add("hole", entry.name, expected, found, _WRITE_AGAIN)
            if entry.offset + entry.nbytes >= reached:
                reached, previous = entry.offset + entry.nbytes, entry
        self.declared_bytes = reached - self.data_start
        cut = [entry for entry in ordered if entry.offset + entry.nbytes > data_end]
        if cut and has_hole:
            for entry in cut:
                expected = f"data_offsets within the {self.present_bytes} bytes of data"
                self._damage("offsets", entry.name, expected, f"bytes {self._span(entry)}", _WRITE_AGAIN)
        elif cut:
            self._report_truncation(cut)
        elif self.declared_bytes < self.present_bytes and not self._malformed:
            spare = self.present_bytes - self.declared_bytes
            found = f"{self.present_bytes}: {spare} bytes at the end belong to no tensor"
            remedy = f"The file has grown, or its header was replaced. {_FETCH_AGAIN}"
            self._add("trailing_bytes", None, f"{self.declared_bytes} bytes of data", found, remedy)

    def _report_truncation(self, cut: list[TensorEntry]) -> None:
        first = cut[0]
        missing = self.declared_bytes - self.present_bytes
        has = max(0, self.data_start + self.present_bytes - first.offset)
        others = f" and {len(cut) - 1} more" if len(cut) > 1 else ""
        problem = Problem(
            kind="truncated",
            file=self.file,
            tensor=first.name,
            expected=f"{self.declared_bytes} bytes of tensor data",
            found=f"{self.present_bytes}: {missing} bytes are missing; {first.name} has {has} of its {first.nbytes}"
            f" bytes{others}",
            remedy=f"The file was cut short. {_FETCH_AGAIN}",
        )
        self.problems.append(problem)
        for entry in cut:
            self.damaged.setdefault(entry.name, problem)

    def _span(self, entry: TensorEntry) -> str:
        begin = entry.offset - self.data_start
        return f"[{begin}, {begin + entry.nbytes}]"

    def _add(self, kind: ProblemKind, tensor: str | None, expected: str, found: str, remedy: str) -> Problem:
        problem = Problem(kind=kind, file=self.file, tensor=tensor, expected=expected, found=found, remedy=remedy)
        self.problems.append(problem)
        return problem

    def _damage(self, kind: ProblemKind, tensor: str, expected: str, found: str, remedy: str) -> None:
        problem = self._add(kind, tensor, expected, found, remedy)
        self.damaged.setdefault(tensor, problem)


def _offset_pair(value: Json) -> tuple[int, int]:
    """Return `[begin, end]` as a pair, or (-1, -1) where the value is none."""
    if isinstance(value, list) and len(value) == 2:
        begin, end = value
        if type(begin) is int and type(end) is int and 0 <= begin <= end:
            return begin, end
    return -1, -1
