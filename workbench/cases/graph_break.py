"""Answers cases of class "graph_break": the list of breaks of one call, compared with what a tool must report.

`tool_must_report` decides. What the case says of torch itself (`dynamo_explain`, `graph_breaks_log`,
`fullgraph_first_error`) is compared too where torch and Python are those it was made with; breaks we find behind others
are answered apart, since a plain run of Dynamo does not show them.
"""

from __future__ import annotations

import ast
import platform
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import cast

import torch

from workbench.cases.base import CaseResult, read_expected
from workbench.cases.reason_words import same_meaning
from workbench.errors import PlanError
from workbench.probes.dynamo_answers import Explained, explain, fullgraph_error
from workbench.probes.graphs import GraphFindings, find_graph_breaks
from workbench.probes.observed_call import ObservedCall, copy_call
from workbench.records.base import to_plain
from workbench.records.graphs import GraphBreak
from workbench.user_programs import as_arguments, load_file

Body = Mapping[str, object]

_TOLD = frozenset({"id", "class", "report", "files", "note", "entry", "verified_with", "must_not"})
_JUDGED = frozenset(
    {
        "tool_must_report",
        "dynamo_explain",
        "graph_breaks_log",
        "fullgraph_first_error",
        "explain_lists_every_site_with_a_valid_count",
        "count_disagreement",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answers:
    """Everything a case is compared with.

    Attributes:
        folder: of the case.
        findings: ours.
        explained, raised: torch's own tools.
        same_torch: torch and Python are those the case was made with.
    """

    folder: Path
    findings: GraphFindings
    explained: Explained
    raised: Exception | None
    same_torch: bool

    @property
    def plain(self) -> list[GraphBreak]:
        """Breaks of the plain run."""
        return [one for one in self.findings.breaks if one.pass_index == 0]

    def at(self, site: Body) -> list[GraphBreak]:
        """Return our breaks at the place a case names; of a place in a library, those that a user's line led there."""
        if self.in_library(site):
            word, text = _reason_of(site)
            return [one for one in self.findings.breaks if same_meaning(word, one.reason, torch_reason=text)]
        return [one for one in self.findings.breaks if self._place(one.file, one.line) == self.place(site)]

    def place(self, site: Body) -> tuple[Path, int]:
        """Return the place a case names."""
        return self._place(str(self.folder / str(site.get("file", "model.py"))), int(cast("int", site["line"])))

    def in_library(self, site: Body) -> bool:
        """Return whether a case names a place outside its own folder, where we name the user's line instead."""
        return not (self.folder / str(site.get("file", "model.py"))).is_file()

    def places(self, breaks: Sequence[GraphBreak]) -> set[tuple[Path, int]]:
        """Return the places of breaks of ours."""
        return {self._place(one.file, one.line) for one in breaks}

    @property
    def explained_places(self) -> set[tuple[Path, int]]:
        """Places that `explain` lists."""
        return {self._place(file, line) for file, line in self.explained.lines}

    def _place(self, file: str, line: int) -> tuple[Path, int]:
        return Path(file).resolve(), line


def run_case(folder: Path) -> CaseResult:
    """Return the comparison of one case folder; its program is run, several times, on copies of its model."""
    expected = read_expected(folder)
    differences = [
        f"{name}: a key this version does not know, so it is not answered"
        for name in expected
        if name not in _TOLD | _JUDGED
    ]
    calls = _calls(folder, cast("Body", expected.get("entry", {})))
    call = calls()
    findings = find_graph_breaks(call.target, call.args, call.kwargs, grad=True)
    answers = _Answers(
        folder=folder,
        findings=findings,
        explained=explain(calls()),
        raised=fullgraph_error(calls()),
        same_torch=_is_same_torch(cast("Body", expected.get("verified_with", {}))),
    )
    must = expected.get("tool_must_report")
    if not isinstance(must, Mapping):
        differences.append("tool_must_report: expected an object, found nothing to compare with")
    else:
        differences += _report_differences(cast("Body", must), answers)
    differences += _log_differences(cast("Sequence[Body]", expected.get("graph_breaks_log", ())), answers)
    if answers.same_torch:
        differences += _torch_differences(expected, answers)
    differences += _forbidden(expected.get("must_not", ()), answers)
    return CaseResult(
        case_id=str(expected["id"]),
        case_class=str(expected["class"]),
        status="failed" if differences else "passed",
        differences=tuple(differences),
        answers=_said(answers),
    )


def _reason_of(site: Body) -> tuple[str, str]:
    """Return a case's own word for a kind of break, and torch's words where it has them."""
    return str(site.get("reason_class") or ""), str(site.get("torch_reason") or site.get("reason") or "")


def _report_differences(must: Body, answers: _Answers) -> list[str]:
    known = {"break_sites", "distinct_sites", "no_break"}
    lines = [f"tool_must_report.{name}: a key this version does not know" for name in must if name not in known]
    sites = cast("Sequence[Body]", must.get("break_sites", ()))
    for site in sites:
        lines += _site_differences(site, answers)
    named = {answers.place(site) for site in sites}
    in_library = [site for site in sites if answers.in_library(site)]
    named |= {place for site in in_library for place in answers.places(answers.at(site))}
    for one in answers.plain:
        if "break_sites" in must and not answers.places([one]) <= named:
            lines.append(f"expected no break at {Path(one.file).name}:{one.line}, reported {one.reason!r}")
    count = len(answers.places(answers.plain))
    # Two places of a library may have been reached from one line, and one of them from two.
    if "distinct_sites" in must and must["distinct_sites"] != (len(sites) if in_library else count):
        lines.append(f"distinct_sites: expected {must['distinct_sites']}, reported {count}")
    if "no_break" in must and must["no_break"] != (not answers.findings.breaks):
        lines.append(f"no_break: expected {must['no_break']}, reported {len(answers.findings.breaks)} breaks")
    return lines


def _site_differences(site: Body, answers: _Answers) -> list[str]:
    where = f"{site.get('file', 'model.py')}:{site.get('line')}"
    here = answers.at(site)
    if not here:
        return [f"{where}: expected a break ({site.get('reason_class', 'of any kind')}), none reported"]
    word, text = _reason_of(site)
    found = next((one for one in here if same_meaning(word, one.reason, torch_reason=text)), None)
    if found is None:
        told = "; ".join(f"{one.reason_class} ({one.reason})" for one in here)
        return [f"{where}: expected {word or text}, reported {told}"]
    values: dict[str, object] = {
        "code": found.text,
        "frame_skipped_to_eager": found.frame_skipped,
        "log_records": found.log_records,
        "function": found.function,
        "in_loop": found.in_loop,
        "intentional": found.intentional,
        "calls": found.calls,
        "registry_id": found.registry_id,
        "modules": list(found.modules),
    }
    lines: list[str] = []
    for name, wanted in site.items():
        if name in ("file", "line", "reason_class", "torch_reason", "note"):
            continue
        if answers.in_library(site) and name in ("code", "function", "log_records", "frame_skipped_to_eager"):
            continue  # these describe the library's line
        if name not in values:
            lines.append(f"{where}: {name}: a key this version does not know")
        elif wanted != values[name]:
            lines.append(f"{where}: {name}: expected {wanted!r}, reported {values[name]!r}")
    return lines


def _log_differences(log: Sequence[Body], answers: _Answers) -> list[str]:
    lines: list[str] = []
    for entry in log:
        where = f"graph_breaks_log {entry.get('file')}:{entry.get('line')}"
        word, text = _reason_of(entry)
        here = [one for one in answers.at(entry) if same_meaning(word, one.reason, torch_reason=text)]
        if not here:
            lines.append(f"{where}: not reported as {word or text}")
        elif entry.get("frame_skipped_to_eager") and not here[0].frame_skipped:
            lines.append(f"{where}: expected the frame to be skipped, reported as resumed")
        elif "loop" in str(entry.get("secondary") or "") and not here[0].in_loop:
            lines.append(f"{where}: expected a break in a loop, reported as outside one")
    return lines


def _torch_differences(expected: Body, answers: _Answers) -> list[str]:
    lines: list[str] = []
    explained = answers.explained
    told = cast("Body", expected.get("dynamo_explain") or {})
    for name in ("graph_count", "graph_break_count", "op_count"):
        if name in told and told[name] != getattr(explained, name):
            lines.append(f"dynamo_explain.{name}: expected {told[name]}, torch says {getattr(explained, name)}")
    if "break_reasons" in told:
        reasons = [str(one["reason"]) for one in cast("Sequence[Body]", told["break_reasons"])]
        if reasons != [one.reason for one in explained.breaks]:
            lines.append(f"dynamo_explain.break_reasons: expected {reasons}, torch says {explained.breaks}")
    for warning in cast("Sequence[str]", told.get("warnings", ())):
        if warning.startswith("Dynamo") and not _is_told(warning, answers.findings):
            lines.append(f"dynamo_explain.warnings: not reported: {warning[:80]}")
    if "fullgraph_first_error" in expected:
        lines += _fullgraph_differences(cast("Body | None", expected["fullgraph_first_error"]), answers.raised)
    log = cast("Sequence[Body]", expected.get("graph_breaks_log", ()))
    if any(answers.in_library(entry) for entry in log):
        return lines  # torch counts lines of the library there, and we the user's
    sites = answers.places(answers.plain)
    if "count_disagreement" in expected and expected["count_disagreement"] != (
        explained.graph_break_count != len(sites)
    ):
        lines.append(
            f"count_disagreement: expected {expected['count_disagreement']}, explain says "
            f"{explained.graph_break_count} breaks and {len(sites)} sites are reported"
        )
    complete = sites <= answers.explained_places and explained.graph_break_count >= 0
    name = "explain_lists_every_site_with_a_valid_count"
    if name in expected and expected[name] != complete:
        lines.append(f"{name}: expected {expected[name]}, explain lists {len(explained.lines)} of {len(sites)} sites")
    return lines


def _is_told(warning: str, findings: GraphFindings) -> bool:
    told = [*findings.summary.warnings, *(one.explanation for one in findings.breaks)]
    start = " ".join(warning.split())[:100]
    return any(" ".join(one.split()).startswith(start) for one in told)


def _fullgraph_differences(wanted: Body | None, raised: Exception | None) -> list[str]:
    if (wanted is None) != (raised is None):
        came = "no error" if raised is None else f"{type(raised).__name__}"
        return [f"fullgraph_first_error: expected {wanted}, torch raises {came}"]
    if wanted is None or raised is None:
        return []
    lines: list[str] = []
    if wanted.get("exception") != type(raised).__name__:
        lines.append(f"fullgraph_first_error: expected {wanted.get('exception')}, torch raises {type(raised).__name__}")
    text = " ".join(str(raised).split())
    if not text.startswith(" ".join(str(wanted.get("reason", "")).split())):
        lines.append(f"fullgraph_first_error: expected {wanted.get('reason')!r}, torch says {text[:120]!r}")
    return lines


def _forbidden(must_not: object, answers: _Answers) -> list[str]:
    """Return what was said of that which must not be: a place, a number of breaks, or words of a report."""
    lines: list[str] = []
    texts = [must_not] if isinstance(must_not, str) else list(cast("Sequence[object]", must_not))
    said = "\n".join(f"{one.reason_class} {one.reason} {one.explanation}" for one in answers.findings.breaks).lower()
    numbers = {str(one.line) for one in answers.plain}
    for item in texts:
        text = str(item)
        places = re.findall(r"(?:\.py:|\bline )(\d+)", text)
        counts = re.findall(r"\b(\d+) (?:\w+ )?(?:breaks|sites)\b", text)
        if any(line in numbers for line in places):
            lines.append(f"must_not: {text!r}, and a break is reported there")
        if any(int(count) == len(answers.places(answers.plain)) for count in counts):
            lines.append(f"must_not: {text!r}, and that is how many are reported")
        if text.lower() in said:
            lines.append(f"must_not: {text!r} is said")
    return lines


def _calls(folder: Path, entry: Body) -> Callable[[], ObservedCall]:
    """Return a function that makes the case's call anew, from the entry's `build`, `inputs` and `call`."""
    file = folder / str(entry.get("file", "model.py"))
    body = load_file(file)
    build = _function(body, str(entry.get("build", "build_model()")), file)
    inputs = _function(body, str(entry.get("inputs", "example_inputs()")), file)
    method, more = _method(str(entry.get("call", "model(*example_inputs())")), file)
    return partial(_make_call, build, inputs, method, more)


def _make_call(
    build: Callable[[], object], inputs: Callable[[], object], method: str, more: Mapping[str, object]
) -> ObservedCall:
    model = build()
    args, kwargs = as_arguments(inputs())
    target = getattr(model, method) if method else model
    return copy_call(cast("Callable[..., object]", target), args, {**kwargs, **more})


def _function(body: ModuleType, text: str, file: Path) -> Callable[[], object]:
    found = re.fullmatch(r"\s*(\w+)\(\)\s*", text)
    function = getattr(body, found.group(1), None) if found else None
    if not callable(function):
        raise PlanError(f"{file}: entry: expected the call of a function in it without arguments, found {text!r}")
    return cast("Callable[[], object]", function)


def _method(text: str, file: Path) -> tuple[str, dict[str, object]]:
    """Return which method of the model the entry calls ("" for the model itself), and further keyword arguments."""
    try:
        node = ast.parse(text.strip(), mode="eval").body
        if isinstance(node, ast.Call) and all(isinstance(one, ast.Starred) for one in node.args):
            more = {one.arg: ast.literal_eval(one.value) for one in node.keywords if one.arg is not None}
            if isinstance(node.func, ast.Name):
                return "", more
            if isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name):
                return node.func.attr, more
    except (SyntaxError, ValueError):
        pass
    raise PlanError(f"{file}: entry: expected a call such as `model(*example_inputs())`, found {text!r}")


def _is_same_torch(verified: Body) -> bool:
    ours = torch.__version__.partition("+")[0], platform.python_version()
    theirs = str(verified.get("torch", "")).partition("+")[0], str(verified.get("python", ""))
    return all(one.split(".")[:2] == other.split(".")[:2] for one, other in zip(ours, theirs, strict=True))


def _said(answers: _Answers) -> dict[str, object]:
    findings = answers.findings
    return {
        "breaks": [to_plain(one) for one in answers.plain],
        "behind_others": [to_plain(one) for one in findings.breaks if one.pass_index],
        "summary": to_plain(findings.summary),
        "explain": {"graph_break_count": answers.explained.graph_break_count, "breaks": len(answers.explained.breaks)},
        "judged_torch": answers.same_torch,
    }
