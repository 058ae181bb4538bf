"""What neuron-ls says, as JSON, as the table it prints by default, or as a failure; and running it.

Every key but `neuron_device`, `nc_count` and `memory_size` may be missing (older tools), `numa_node` is text, and
`connected_to` may be null or name devices of which a container shows nothing. A failure is one logfmt line on stderr
with an empty stdout: that is a machine without a device, not a broken document.
"""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from port.deep_cluster.listing import NO_DEVICE, counted_ids, known_version, machine_of, numa_node
from port.deep_cluster.machine import Machine, NeuronDevice, NeuronProcess
from port.deep_cluster.neuron_ls_table import is_table, parse_table
from port.deep_cluster.number_lists import parse_numbers

TOOLS_FOLDER = "/opt/aws/neuron/bin"
"""Where the driver's tools are installed (documented)."""

_LOGFMT = re.compile(r'(\w+)=(?:"((?:[^"\\]|\\.)*)"|(\S*))')
_NOT_FOUND = re.compile(r"command not found|no such file or directory: .?neuron-ls|neuron-ls: not found", re.IGNORECASE)
_PERMISSION = re.compile(r"permission denied|operation not permitted|EACCES|EPERM", re.IGNORECASE)


def find_tool(path: str | None, *, root: Path = Path("/")) -> str | None:
    """Return the path of neuron-ls: on PATH, else in the folder of the driver's tools; None where it is in neither.

    Args:
        path: folders to look in first, as PATH writes them; None looks in none.
        root: the file system that holds the folder of the tools.
    """
    folders = [*([path] if path else []), str(root / TOOLS_FOLDER.lstrip("/"))]
    return next((found for folder in folders if (found := shutil.which("neuron-ls", path=folder))), None)


def run_tool(tool: str, *, limit_s: float = 20.0) -> Machine:
    """Run neuron-ls and return what it says; it lists and changes nothing.

    Args:
        tool: its path.
        limit_s: seconds until it is ended and counted as failed.
    """
    try:
        done = subprocess.run(
            [tool, "--json-output"],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=limit_s, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        reason = f"{tool} gave no answer within {limit_s:g} s and was ended; a hanging driver does that (inferred)"
        return Machine(source="none", reason=reason, cause="timeout")
    except OSError as error:
        return Machine(source="none", reason=f"{tool} could not be started: {error}", cause="failed")
    return read_output(done.stdout, done.stderr, done.returncode)


def read_output(stdout: str, stderr: str = "", exit_code: int | None = None) -> Machine:
    """Return what a run of neuron-ls said; never raises for what it said, since a failure is an answer too.

    Args:
        stdout: JSON or the table; empty where it failed.
        stderr: log lines.
        exit_code: None where it is not known.
    """
    try:
        machine = parse_output(stdout) if stdout.strip() else None
    except ValueError as error:
        if exit_code in (None, 0):
            return Machine(source="none", reason=str(error), cause="unreadable")
        machine = None
    if machine is None or (not machine.devices and exit_code not in (None, 0)):
        return _failed(stdout, stderr, exit_code)
    if exit_code not in (None, 0):
        note = f"neuron-ls ended with exit {exit_code} although it listed devices{_said(stderr)}"
        return _with_notes(machine, note)
    return machine


def parse_output(text: str) -> Machine:
    """Return the machine that JSON or the printed table describes.

    Raises:
        ValueError: it is neither; says what was expected and what came.
    """
    return parse_table(text) if is_table(text) else parse_json(text)


def parse_json(text: str) -> Machine:
    """Return the machine of `neuron-ls --json-output`.

    Raises:
        ValueError: no JSON array of devices, or a device without an index or a core count; the message has its place.
    """
    start = re.search(r"^\s*(?=\[|null\b|\{)", text, re.MULTILINE)
    try:
        body = json.loads(text[start.end() :] if start else text)
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"neuron-ls: expected a JSON array of devices; found text that is no whole JSON ({error}). "
            "Save the output of `neuron-ls --json-output` again."
        ) from None
    # A list without members is written as null by the tool's language.
    entries = cast("list[object]", [] if body is None else body)
    if not isinstance(entries, list):
        raise ValueError(f"neuron-ls: expected a JSON array of devices; found {type(body).__name__}")
    devices = tuple(_device(entry, position) for position, entry in enumerate(entries))
    return machine_of(devices, _first(entries, "instance_type"), _first(entries, "instance_id"))


def log_fields(stderr: str) -> dict[str, str]:
    """Return the fields of the gravest logfmt line of a log: the last fatal one, else the last error, else the last."""
    lines = [fields for line in stderr.splitlines() if "msg" in (fields := _logfmt(line)) or "error" in fields]
    for levels in (("fatal", "panic"), ("error",)):
        if found := [fields for fields in lines if fields.get("level", "") in levels]:
            return found[-1]
    return lines[-1] if lines else {}


def _logfmt(line: str) -> dict[str, str]:
    return {name: quoted.replace('\\"', '"') or bare for name, quoted, bare in _LOGFMT.findall(line)}


def _failed(stdout: str, stderr: str, exit_code: int | None) -> Machine:
    ended = "" if exit_code is None else f"exit {exit_code}, "
    where = "message on stderr" if stderr.strip() else "no message"
    words = stderr if stderr.strip() else stdout
    if exit_code == 127 or (exit_code != 0 and _NOT_FOUND.search(stderr)):
        return Machine(source="none", reason=f"neuron-ls is not installed ({ended}{where}){_said(stderr)}",
                       cause="not_installed")  # fmt: skip
    if _PERMISSION.search(words):
        return Machine(source="none", reason=f"no permission to open the Neuron device ({ended}{where}){_said(words)}",
                       cause="no_permission")  # fmt: skip
    return Machine(source="none", reason=f"{NO_DEVICE} ({ended}{where}){_said(words)}", cause="no_device")


def _said(words: str) -> str:
    fields = log_fields(words)
    parts = [fields[name] for name in ("error", "msg") if fields.get(name)]
    last = next((line.strip() for line in reversed(words.splitlines()) if line.strip()), "")
    said = "; ".join(parts) or last[:300]
    return f": {said}" if said else ""


def _with_notes(machine: Machine, *notes: str) -> Machine:
    return dataclasses.replace(machine, notes=(*machine.notes, *notes))


def _device(entry: object, position: int) -> NeuronDevice:
    where = f"neuron-ls: device {position} of the list"
    if not isinstance(entry, Mapping):
        raise ValueError(f"{where}: expected an object; found {type(entry).__name__}")
    body = cast("Mapping[str, object]", entry)
    index, count = _whole(body, "neuron_device", where), _whole(body, "nc_count", where)
    if index is None or count is None:
        missing = "neuron_device" if index is None else "nc_count"
        raise ValueError(f"{where}: expected a whole number as {missing}; the key is missing or null")
    told = body.get("neuroncore_ids")
    ids = _ids(told, f"{where}: neuroncore_ids") if told else ()
    if ids and len(ids) != count:
        raise ValueError(f"{where}: expected nc_count ids, {count}; found {len(ids)} in neuroncore_ids")
    return NeuronDevice(
        index=index,
        core_count=count,
        core_ids=ids or counted_ids(index, count),
        core_ids_told=bool(ids) or count == 0,
        memory_bytes=_whole(body, "memory_size", where),
        lnc=_whole(body, "logical_neuroncore_config", where) or None,
        instance_type=_text(body, "instance_type"),
        bdf=_text(body, "bdf"),
        cpu_affinity=_text(body, "cpu_affinity"),
        numa_node=numa_node(body.get("numa_node")),
        links=_ids(body.get("connected_to") or [], f"{where}: connected_to"),
        processes=_processes(body.get("neuron_processes"), where),
    )


def _processes(value: object, where: str) -> tuple[NeuronProcess, ...]:
    if value is None:
        return ()
    if not isinstance(value, list):
        raise ValueError(f"{where}: neuron_processes: expected a list; found {type(value).__name__}")
    found: list[NeuronProcess] = []
    for entry in cast("list[object]", value):
        if not isinstance(entry, Mapping):
            raise ValueError(f"{where}: neuron_processes: expected objects; found {type(entry).__name__}")
        body = cast("Mapping[str, object]", entry)
        pid = _whole(body, "pid", f"{where}: neuron_processes")
        if pid is None:
            raise ValueError(f"{where}: neuron_processes: expected a pid; the key is missing or null")
        version = known_version(_text(body, "neuron_runtime_version"))
        found.append(NeuronProcess(pid=pid, command=str(body.get("command") or ""), runtime_version=version))
    return tuple(found)


def _whole(body: Mapping[str, object], key: str, where: str) -> int | None:
    value = body.get(key)
    if value is None or (isinstance(value, str) and not value.strip()):
        return None
    text = str(value).strip() if not isinstance(value, bool | float) else ""
    if not text.isdigit():
        raise ValueError(f"{where}: expected a whole number as {key}; found {value!r}")
    return int(text)


def _ids(value: object, where: str) -> tuple[int, ...]:
    if isinstance(value, str):
        return parse_numbers(value, where=where)
    items = cast("list[object]", value) if isinstance(value, list) else [value]
    if any(isinstance(item, bool) or not str(item).strip().isdigit() for item in items):
        raise ValueError(f"{where}: expected a list of whole numbers; found {value!r}")
    return tuple(int(str(item)) for item in items)


def _text(body: Mapping[str, object], key: str) -> str | None:
    value = body.get(key)
    return None if value is None or not str(value).strip() else str(value)


def _first(entries: list[object], key: str) -> str | None:
    bodies = [cast("Mapping[str, object]", entry) for entry in entries if isinstance(entry, Mapping)]
    return next((text for body in bodies if (text := _text(body, key))), None)
