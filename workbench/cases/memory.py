"""Answers cases of class "memory": what one call allocates, in which order, and what its peak was.

Bytes are compared exactly; names of operations up to the spelling torch uses inside (`aten::_softmax` for
`aten::softmax`, `aten::_to_copy` for `aten::to`). What stands in brackets behind an operation is compared where it
names a module or a dtype, and explains otherwise. A key this version does not know fails the case.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import cast

import torch
from torch import nn

from workbench.cases.base import CaseResult, read_expected
from workbench.cases.memory_names import dtype_named, operations_in, same_operation
from workbench.cases.substance import same_words
from workbench.devices.names import open_device
from workbench.errors import PlanError
from workbench.plan import Placement
from workbench.probes.allocator_run import run_with_allocator
from workbench.probes.memory import MemoryFindings, record_memory
from workbench.records.memory import Allocation
from workbench.user_programs import as_arguments, load_file
from workbench.views.memory_runs import alive_at, owner_totals

Body = Mapping[str, object]
Differences = list[str]

_TOLD = frozenset({"id", "class", "report", "files", "note", "entry", "expected", "tolerance_bytes", "must_not"})
_CALL = re.compile(r"model\((\*{0,2})(\w+)\(\)\)((?:\.\w+\(\))*)")
_FUNCTION = re.compile(r"(\w+)\(\)")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """How a case is called.

    Attributes:
        body: its program.
        build, inputs: functions of the program.
        spread: stars before the inputs in the call.
        after: methods called on the result, in order.
        grad: with gradients.
    """

    body: ModuleType
    build: str
    inputs: str
    spread: str
    after: tuple[str, ...]
    grad: bool

    def made(self) -> tuple[nn.Module | None, Callable[..., object], tuple[object, ...], Mapping[str, object]]:
        """Return root module, target and arguments, made anew."""
        model = getattr(self.body, self.build)()
        value = getattr(self.body, self.inputs)()
        args, kwargs = as_arguments(value) if self.spread else ((value,), {})
        target = partial(_followed, model, self.after) if self.after else model
        return (model if isinstance(model, nn.Module) else None), target, args, kwargs


def run_case(folder: Path) -> CaseResult:
    """Return the comparison of one case folder; its program is run several times, each time made anew."""
    case = read_expected(folder)
    differences: Differences = [
        f"{name}: a key this version does not know" for name in case if name not in _TOLD | {"baseline", "verified"}
    ]
    entry = _entry(folder, cast("Body", case.get("entry", {})))
    host = _observed(entry)
    expected = case.get("expected")
    if not isinstance(expected, Mapping) or not expected:
        differences.append("expected: an object with what must be answered; found nothing to compare with")
    else:
        differences += _compared(cast("Body", expected), host, entry)
    differences += _baseline(cast("Body", case.get("baseline", {})), host)
    differences += _verified(cast("Body", case.get("verified", {})), host, entry)
    differences += _forbidden(case.get("must_not", ()), host)
    return CaseResult(
        case_id=str(case["id"]),
        case_class=str(case["class"]),
        status="failed" if differences else "passed",
        differences=tuple(differences),
        answers=_said(host),
    )


def _entry(folder: Path, told: Body) -> _Entry:
    build = _FUNCTION.fullmatch(str(told.get("build", "build_model()")))
    inputs = _FUNCTION.fullmatch(str(told.get("inputs", "example_inputs()")))
    call = _CALL.fullmatch(str(told.get("call", "model(*example_inputs())")).replace(" ", ""))
    if build is None or inputs is None or call is None or call[2] != inputs[1]:
        raise PlanError(
            f"{folder.name}: entry: expected `build_model()`, `example_inputs()` and a call such as "
            f"`model(*example_inputs()).sum().backward()`; found {dict(told)}"
        )
    return _Entry(
        body=load_file(folder / "model.py"),
        build=build[1],
        inputs=inputs[1],
        spread=call[1],
        after=tuple(part.removesuffix("()") for part in call[3].split(".") if part),
        grad=bool(told.get("grad", False)),
    )


def _followed(model: Callable[..., object], after: Sequence[str], *args: object, **kwargs: object) -> object:
    result = model(*args, **kwargs)
    for method in after:
        result = getattr(result, method)()
    return result


def _observed(entry: _Entry, placement: Placement | None = None) -> MemoryFindings:
    device = open_device(placement or Placement())
    root, target, args, kwargs = device.place(entry.made())
    with torch.set_grad_enabled(entry.grad):
        return record_memory(target, args, kwargs, module=root, device=device)


def _compared(expected: Body, findings: MemoryFindings, entry: _Entry, where: str = "") -> Differences:
    lines: Differences = []
    for name, wanted in expected.items():
        if name == "dry" and isinstance(wanted, Mapping):
            dry = _observed(entry, Placement(device="dry"))
            lines += _compared(cast("Body", wanted), dry, entry, where="dry.")
        elif name in _COMPARISONS:
            lines += [f"{where}{name}: {line}" for line in _COMPARISONS[name](wanted, findings)]
        else:
            lines.append(f"{where}{name}: a key this version does not know, so it is not answered")
    return lines


def _exactly(answer: Callable[[MemoryFindings], object], wanted: object, findings: MemoryFindings) -> Differences:
    said = answer(findings)
    return [] if said == wanted else [f"expected {wanted}, reported {said}"]


def _own(findings: MemoryFindings) -> list[Allocation]:
    return [one for one in findings.allocations if one.born and one.counts == "tensors"]


def _extras(findings: MemoryFindings) -> list[Allocation]:
    return [one for one in findings.allocations if one.counts == "allocator"]


def _allocations(wanted: object, findings: MemoryFindings) -> Differences:
    entries, own = cast("Sequence[Body]", wanted), _own(findings)
    owners = {one.owner for one in findings.allocations}
    lines: Differences = []
    for index, (entry, one) in enumerate(zip(entries, own, strict=False)):
        lines += [f"[{index}] {line}" for line in _allocation(entry, one, owners)]
    if len(entries) != len(own):
        rest = ", ".join(f"{one.op} {one.nbytes}" for one in own[len(entries) :])
        lines.append(f"expected {len(entries)} allocations, reported {len(own)}{': also ' + rest if rest else ''}")
    return lines


def _allocation(entry: Body, one: Allocation, owners: set[str]) -> Differences:
    lines: Differences = []
    facts: dict[str, object] = {
        "bytes": one.nbytes,
        "nbytes": one.nbytes,
        "shape": list(one.shape),
        "dtype": one.dtype,
        "owner": one.owner,
        "module": one.owner,
        "role": one.role,
        "device": one.device,
        "alive_at_end": one.died is None,
        "freed": one.died is not None,
    }
    for name, wanted in entry.items():
        if name == "op":
            lines += _operation(str(wanted), one, owners)
        elif name == "dtype":
            if dtype_named(str(wanted)) != one.dtype:
                lines.append(f"dtype: expected {wanted}, reported {one.dtype}")
        elif name == "line":
            if f":{wanted} " not in f"{one.source} ":
                lines.append(f"line: expected {wanted}, reported {one.source}")
        elif name not in facts:
            lines.append(f"{name}: a key this version does not know")
        elif facts[name] != wanted:
            lines.append(f"{name}: expected {wanted}, reported {facts[name]} ({one.op})")
    return lines


def _operation(wanted: str, one: Allocation, owners: set[str]) -> Differences:
    names, asides = operations_in(wanted)
    if not names or not same_operation(names[0], one.op):
        return [f"op: expected {wanted}, reported {one.op} ({one.nbytes} bytes)"]
    lines: Differences = []
    for aside in asides:
        dtype = dtype_named(aside.split("->")[-1].strip())
        if aside in owners and aside != one.owner:
            lines.append(f"op: expected {wanted}, reported it in {one.owner or 'the root'}")
        elif dtype is not None and dtype != one.dtype:
            lines.append(f"op: expected {wanted}, reported it as {one.dtype}")
    return lines


def _peak_at(wanted: object, findings: MemoryFindings) -> Differences:
    peak = findings.peak
    at = next((one for one in _own(findings) if one.born == peak.peak_event), None)
    if at is None:
        return [f"expected {wanted}, reported no allocation"]
    return _operation(str(wanted), at, {one.owner for one in findings.allocations})


def _allocator_extras(wanted: object, findings: MemoryFindings) -> Differences:
    sizes = [cast("int", one["bytes"]) for one in cast("Sequence[Body]", wanted)]
    said = [one.nbytes for one in _extras(findings)]
    if sizes == said:
        return []
    # Not every small request has to be named; every named one has to be there, in its order.
    rest = iter(said)
    if sizes and all(size in rest for size in sizes):
        return []
    return [f"expected {sizes} bytes, reported {said}"]


def _top_owners(wanted: object, findings: MemoryFindings) -> Differences:
    entries = cast("Sequence[Body | str]", wanted if isinstance(wanted, list) else [wanted])
    totals = owner_totals(alive_at(_own(findings), findings.peak.peak_event))
    lines: Differences = []
    for index, entry in enumerate(entries):
        owner, nbytes = (totals[index].owner, totals[index].nbytes) if index < len(totals) else ("nothing", 0)
        name = entry if isinstance(entry, str) else entry.get("owner", entry.get("module"))
        if name is not None and str(name) != owner:
            lines.append(f"[{index}] expected {name}, reported {owner or 'the root'}")
        if isinstance(entry, Mapping) and entry.get("bytes", nbytes) != nbytes:
            lines.append(f"[{index}] expected {entry['bytes']} bytes, reported {nbytes}")
    return lines


def _allocator(findings: MemoryFindings, name: str) -> object:
    return None if findings.allocator_peak is None else getattr(findings.allocator_peak, name)


def _explains(_: object, __: MemoryFindings) -> Differences:
    return []


_PEAK = partial(_exactly, lambda findings: findings.peak.peak_bytes_above_baseline)
_BASELINE = partial(_exactly, lambda findings: findings.peak.baseline_bytes)
_COMPARISONS: dict[str, Callable[[object, MemoryFindings], Differences]] = {
    "allocations_in_order": _allocations,
    "allocation_count": partial(_exactly, lambda findings: findings.peak.allocation_count),
    "peak_bytes_above_baseline": _PEAK,
    "peak_bytes": _PEAK,
    "peak_at": _peak_at,
    "peak_op": _peak_at,
    "live_bytes_at_end": partial(_exactly, lambda findings: findings.peak.live_bytes_at_end),
    "peak_bytes_allocator_level": partial(_exactly, lambda findings: _allocator(findings, "peak_bytes_above_baseline")),
    "live_bytes_at_end_allocator_level": partial(_exactly, lambda findings: _allocator(findings, "live_bytes_at_end")),
    "allocator_extras": _allocator_extras,
    "baseline_bytes": _BASELINE,
    "top_owner": _top_owners,
    "top_owners": _top_owners,
    "hand_count": _explains,
}


def _baseline(told: Body, findings: MemoryFindings) -> Differences:
    inputs = sum(one.nbytes for one in findings.allocations if not one.born and one.role == "input")
    values = {"parameter_and_buffer_bytes": findings.peak.baseline_bytes - inputs, "input_bytes": inputs}
    return [
        f"baseline.{name}: expected {wanted}, reported {values.get(name, 'nothing: a key this version does not know')}"
        for name, wanted in told.items()
        if values.get(name) != wanted
    ]


def _verified(told: Body, findings: MemoryFindings, entry: _Entry) -> Differences:
    """Hold what the case's author saw of the allocator against the same events seen here, where torch is the same."""
    if str(told.get("torch", "")).split("+")[0] != torch.__version__.split("+")[0]:
        return []
    lines: Differences = []
    for name, key in (("peak_bytes", "peak_bytes_above_baseline"), ("live_at_end", "live_bytes_at_end")):
        if name in told and told[name] != _allocator(findings, key):
            lines.append(f"verified.{name}: expected {told[name]}, reported {_allocator(findings, key)}")
    if "events" in told:
        _, target, args, kwargs = entry.made()
        with torch.set_grad_enabled(entry.grad):
            run = run_with_allocator(lambda: target(*args, **kwargs))
        events = [event.nbytes for event in run.events]
        if events != told["events"]:
            lines.append(f"verified.events: expected {told['events']}, reported {events}")
    return lines


def _forbidden(told: object, findings: MemoryFindings) -> Differences:
    statements = [f"peak {findings.peak.peak_bytes_above_baseline} bytes at {findings.peak.peak_op}"]
    statements += [f"{one.op.removeprefix('aten::')} allocates {one.nbytes} bytes" for one in _own(findings)]
    items = [told] if isinstance(told, str) else cast("Sequence[object]", told)
    lines: Differences = []
    for item in items:
        if isinstance(item, (int, float)) and item == findings.peak.peak_bytes_above_baseline:
            lines.append(f"must_not: {item} was reported as the peak")
        elif isinstance(item, str):
            lines += [f"must_not: {item!r} was said: {one}" for one in statements if same_words(item, one)]
    return lines


def _said(findings: MemoryFindings) -> dict[str, object]:
    return {
        "allocations_in_order": [{"op": one.op, "bytes": one.nbytes, "owner": one.owner} for one in _own(findings)],
        "allocator_extras": [{"op": one.op, "bytes": one.nbytes} for one in _extras(findings)],
        "peaks": list(findings.peaks),
        "notes": list(findings.notes),
    }
