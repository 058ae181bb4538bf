"""Recognises what neuron-ls and neuron-monitor printed: a text, a file, or a folder with stdout, stderr, exit code."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from port.deep_cluster.machine import Machine
from port.deep_cluster.monitor_records import MonitorStream
from port.deep_cluster.neuron_ls import log_fields, read_output
from port.deep_cluster.neuron_ls_table import is_table
from port.deep_cluster.neuron_monitor import is_stream, parse_stream

_HEAD_BYTES = 65536
_STREAMS: dict[str, tuple[str, ...]] = {
    "stdout": ("stdout", "out"),
    "stderr": ("stderr", "err"),
    "exit_code": ("exit_code", "exit_status", "exitcode", "returncode", "return_code", "rc", "status", "exit"),
}
_NAMES_DEVICE = re.compile(r"neuron-ls|/dev/neuron\d|neuron devices?\b|neuron driver", re.IGNORECASE)
_DEVICE_LIST = re.compile(r"^\s*\[\s*(\]|\{)", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class NeuronOutput:
    """One output that was recognised.

    Attributes:
        name: file it was in, or the folder of stdout and stderr.
        found: the machine neuron-ls describes, or the stream of neuron-monitor.
        exit_code: where it was saved, else None.
    """

    name: str
    found: Machine | MonitorStream
    exit_code: int | None = None


def recognise(
    text: str, stderr: str = "", exit_code: int | None = None, *, is_certain: bool = False
) -> Machine | MonitorStream | None:
    """Return what a text says, None where it is neither tool's; a log line of a failure is neuron-ls's.

    Args:
        text: what went to stdout.
        stderr: what went to the error stream.
        exit_code: None where it is not known.
        is_certain: it is known to be the output of one of the two tools, so a failure need not look like one.
    """
    if is_stream(text):
        return parse_stream(text)
    if _is_listing(text) or (is_certain and (text + stderr).strip()) or (is_certain and exit_code is not None):
        return read_output(text, stderr, exit_code)
    if text.strip() and stderr.strip():
        return None
    words = stderr or text
    if words.lstrip()[:1] in ("{", "["):
        return None
    is_log = {"level", "msg"} <= set(log_fields(words)) or _NAMES_DEVICE.search(words)
    return read_output("", words, exit_code) if is_log else None


def read_saved(path: Path, names: Iterable[str] | None = None, *, is_certain: bool = False) -> tuple[NeuronOutput, ...]:
    """Return every output in a file or directly in a folder; () where there is none.

    Args:
        path: a file, or a folder. In a folder `stdout`, `stderr` and `exit_code`, with or without an ending, are one
            output; every other file is looked at by itself.
        names: files of the folder to look at; None looks at all.
        is_certain: as for `recognise`.
    """
    if path.is_file():
        found = _of_file(path, is_certain=is_certain)
        return () if found is None else (NeuronOutput(name=path.name, found=found),)
    if not path.is_dir():
        return ()
    files = [path / name for name in names] if names is not None else sorted(path.iterdir())
    files = [file for file in files if file.is_file()]
    parts = {part: file for file in reversed(files) for part, stems in _STREAMS.items() if _stem(file) in stems}
    outputs: list[NeuronOutput] = []
    if "stdout" in parts or "stderr" in parts:
        code = _whole(_text(parts.get("exit_code")))
        texts = _text(parts.get("stdout")), _text(parts.get("stderr"))
        found = recognise(*texts, code, is_certain=is_certain)
        if found is not None:
            outputs.append(NeuronOutput(name=path.name, found=found, exit_code=code))
    for file in files:
        if file not in parts.values() and (found := _of_file(file, is_certain=is_certain)) is not None:
            outputs.append(NeuronOutput(name=file.name, found=found))
    return tuple(outputs)


def _is_listing(text: str) -> bool:
    if is_table(text) or text.strip() in ("null", "[]"):
        return True
    return bool(_DEVICE_LIST.search(text)) and ('"neuron_device"' in text or '"nc_count"' in text)


def _of_file(file: Path, *, is_certain: bool) -> Machine | MonitorStream | None:
    with file.open("rb") as stream:
        head = stream.read(_HEAD_BYTES)
    if b"\0" in head:
        return None
    looks_like_it = re.match(rb"\s*(\[|\{|null\b|\+-|instance-|\w+=)", head)
    found = recognise(file.read_text(encoding="utf-8", errors="replace")) if looks_like_it else None
    if found is None and is_certain:
        # Cut so short, or so empty, that only the name of the file tells which tool wrote it.
        if "monitor" in _stem(file):
            return parse_stream(_text(file))
        if re.fullmatch(r"neuron[-_]?ls", _stem(file)):
            return read_output(_text(file))
    return found


def _stem(file: Path) -> str:
    return file.name.split(".")[0].casefold()


def _text(file: Path | None) -> str:
    return "" if file is None else file.read_text(encoding="utf-8", errors="replace")


def _whole(text: str) -> int | None:
    found = re.search(r"-?\d+", text)
    return None if found is None else int(found[0])
