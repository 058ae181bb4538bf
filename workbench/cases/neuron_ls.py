"""Answers a case of neuron-ls or neuron-monitor output: reads it as `workbench show` does, and compares in substance.

Every key of `expected` is answered from `workbench.cases.neuron_keys`; a key without an answer fails the case. Numbers
are compared exactly, lists of ids in any order and also where a list is written as ranges ("0-63"). What a case forbids
is looked for by deed (counts held against the text itself, read in the plainest way) and in everything that is said.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import cast

from port.deep_cluster.machine import Machine
from port.deep_cluster.number_lists import parse_numbers
from workbench.cases.base import CaseResult, read_expected
from workbench.cases.neuron_deeds import deed_faults
from workbench.cases.neuron_keys import Subject, answer, plain
from workbench.cases.substance import agrees, same_words
from workbench.errors import WorkbenchError
from workbench.neuron_output import NeuronOutput, read_saved
from workbench.neuron_tables import core_table, device_table, machine_lines, runtime_table, stream_lines
from workbench.records.base import to_plain

_QUOTED = re.compile(r"(?<!\w)'([^']+)'(?!\w)|\"([^\"]+)\"")
_REASONS = re.compile(r"\([^)]*\)|:.*$| because .*$")


def run_case(folder: Path) -> CaseResult:
    """Return the result of one case folder."""
    body = read_expected(folder)
    outputs = _outputs(folder, body)
    expected = cast("Mapping[str, object]", body.get("expected") or {})
    answers: dict[str, object] = {}
    differences = [] if expected else ["expected: an object with what must be answered; found nothing to compare with"]
    for key, wanted in expected.items():
        if key == "files" and isinstance(wanted, Mapping):
            differences += _by_file(cast("Mapping[str, object]", wanted), outputs, answers)
        else:
            differences += _compared(key, wanted, outputs, answers)
    statements = [line for output in outputs for line in said(output)]
    differences += [fault for output in outputs for fault in deed_faults(folder / output.name, output.found)]
    differences += _forbidden(cast("Sequence[object]", body.get("must_not") or []), statements)
    return CaseResult(
        case_id=str(body["id"]),
        case_class=str(body["class"]),
        status="failed" if differences else "passed",
        differences=tuple(differences),
        answers={**answers, "statements": statements},
    )


def said(output: NeuronOutput) -> list[str]:
    """Return everything `workbench show` says of an output, a line each."""
    found = output.found
    if isinstance(found, Machine):
        return [*machine_lines(found), *str(device_table(found)).splitlines()]
    tables = (runtime_table(found), core_table(found))
    return [*stream_lines(found), *(line for table in tables for line in str(table).splitlines())]


def _outputs(folder: Path, body: Mapping[str, object]) -> tuple[NeuronOutput, ...]:
    files = cast("Sequence[object]", body.get("files") or [])
    names = [str(name) for name in files if (folder / str(name)).is_file()]
    if not names:
        names = [path.name for path in sorted(folder.iterdir()) if path.name != "expected.json"]
    outputs = read_saved(folder, names, is_certain=True)
    if not outputs:
        raise WorkbenchError(f"{folder.name}: expected output of neuron-ls or neuron-monitor; found {', '.join(names)}")
    return outputs


def _by_file(
    wanted: Mapping[str, object], outputs: tuple[NeuronOutput, ...], answers: dict[str, object]
) -> Iterator[str]:
    by_name = {output.name: output for output in outputs}
    for name, keys in wanted.items():
        if name not in by_name or not isinstance(keys, Mapping):
            yield f"files: expected an output in {name}; found {', '.join(by_name)}"
            continue
        told: dict[str, object] = {}
        for key, value in cast("Mapping[str, object]", keys).items():
            yield from (f"{name}: {line}" for line in _compared(key, value, (by_name[name],), told))
        answers[name] = told


def _compared(key: str, wanted: object, outputs: tuple[NeuronOutput, ...], answers: dict[str, object]) -> Iterator[str]:
    if key in ("exit_code", "exit_status"):
        ways: Sequence[object] | None = [output.exit_code for output in outputs]
    else:
        # Of several outputs the first that can answer does: neuron-ls and neuron-monitor speak of different things.
        asked = (answer(output.found, key) for output in outputs)
        ways = next((found for found in asked if found is not None), None)
    if ways is None:
        yield f"{key}: expected {wanted!r}; found no fact of that name, so it is not answered"
        return
    met = next((way for way in ways if meets(wanted, way)), None)
    answers[key] = _shown(wanted, met if met is not None or not ways else ways[0])
    if not any(meets(wanted, way) for way in ways):
        yield f"{key}: expected {wanted!r}; found {answers[key]!r}"


def meets(wanted: object, way: object) -> bool:
    """Return whether one way to put a fact says what is wanted; a number never meets a list of one."""
    if isinstance(way, Subject):
        if not isinstance(wanted, Mapping):
            return meets(wanted, plain(way))
        keys = cast("Mapping[str, object]", wanted)
        return bool(keys) and all(
            any(meets(value, one) for one in answer(way, key) or ()) for key, value in keys.items()
        )
    if isinstance(wanted, Mapping):
        return isinstance(way, Mapping) and _mapping_met(cast("Mapping[str, object]", wanted), way)
    if isinstance(way, list | tuple):
        items = list(cast("Sequence[object]", way))
        if isinstance(wanted, str):
            return _expanded(wanted) == sorted(items, key=str) if _are_whole(items) else False
        return isinstance(wanted, list) and _list_met(cast("list[object]", wanted), items)
    if isinstance(wanted, list) or isinstance(way, Mapping):
        return False
    return agrees(wanted, way)


def _mapping_met(wanted: Mapping[str, object], way: Mapping[str, object]) -> bool:
    if not wanted or not way:
        return not wanted and not way
    return all(str(key) in way and meets(value, way[str(key)]) for key, value in wanted.items())


def _list_met(wanted: list[object], items: list[object]) -> bool:
    if len(wanted) != len(items):
        return False
    left = list(items)
    for want in wanted:
        met = next((at for at, item in enumerate(left) if meets(want, item)), None)
        if met is None:
            return False
        del left[met]
    return True


def _expanded(text: str) -> list[int] | None:
    """Return the numbers of "0-63" sorted as text, None where it is no list of numbers."""
    if not text.strip():
        return []
    try:
        return sorted(parse_numbers(text, where="expected"), key=str)
    except ValueError:
        return None


def _are_whole(items: list[object]) -> bool:
    return all(isinstance(item, int) and not isinstance(item, bool) for item in items)


def _shown(wanted: object, way: object) -> object:
    if isinstance(way, Subject):
        if not isinstance(wanted, Mapping):
            return to_plain(plain(way))
        keys = cast("Mapping[str, object]", wanted)
        return {key: _shown(value, next(iter(answer(way, key) or ()), None)) for key, value in keys.items()}
    if isinstance(way, list | tuple):
        items = list(cast("Sequence[object]", way))
        wishes = cast("list[object]", wanted) if isinstance(wanted, list) else []
        return [_shown(wishes[at] if at < len(wishes) else None, item) for at, item in enumerate(items)]
    if isinstance(way, Mapping):
        named = cast("Mapping[str, object]", way)
        wishes = cast("Mapping[str, object]", wanted) if isinstance(wanted, Mapping) else {}
        return {key: _shown(wishes.get(key), value) for key, value in named.items()}
    return to_plain(way)


def _forbidden(sayings: Sequence[object], statements: list[str]) -> Iterator[str]:
    everything = " ".join(" ".join(statements).split())
    for saying in map(str, sayings):
        quoted = next((first or second for first, second in _QUOTED.findall(saying)), None)
        if quoted is not None:
            if quoted.casefold() in everything.casefold():
                yield f"must_not: expected that nobody says {quoted!r}; found it"
            continue
        bare = re.sub(
            r"\([^)]*\)|:.*$| because .*$",
            "",
            saying.removeprefix("say ").removeprefix("report ").removeprefix("show "),
        )
        for statement in statements:
            if same_words(bare, statement):
                yield f"must_not: expected that nobody says {saying!r}; found {statement!r}"
