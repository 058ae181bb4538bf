"""Answers a checkpoint case: builds its folder, opens it through the port, and compares what comes out in substance.

`make.py OUT_DIR` of the case builds the folder, in a process of its own; a case without one is itself the folder. Every
key of `expected` is answered from `workbench.cases.checkpoint_keys`; a key without an answer fails the case. What a
case forbids is looked for twice: by deed (is a damaged tensor refused, does each error name its file, does a scale byte
become a power of two) and in everything that was said.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from workbench.cases.base import CaseResult, read_expected
from workbench.cases.checkpoint_deeds import deed_faults
from workbench.cases.checkpoint_facts import CheckpointFacts
from workbench.cases.checkpoint_keys import answer, stated
from workbench.cases.substance import agrees, same_words
from workbench.errors import WorkbenchError
from workbench.records.base import to_plain

_MAKE = "make.py"
_MAKE_LIMIT_S = 240.0
_LAST_LINES = 5


def run_case(folder: Path) -> CaseResult:
    """Return the result of one checkpoint case."""
    body = read_expected(folder)
    with tempfile.TemporaryDirectory(prefix="workbench-checkpoint-") as scratch:
        facts = CheckpointFacts.of(_build(folder, Path(scratch, "case", "checkpoint")))
        differences, answers = _compare(facts, cast("Mapping[str, object]", body.get("expected", {})))
        differences += deed_faults(facts)
        forbidden = cast("list[object]", body.get("must_not", []))
        differences += _forbidden_said(facts, [str(saying) for saying in forbidden])
        statements = [str(problem) for problem in facts.problems]
    return CaseResult(
        case_id=str(body["id"]),
        case_class=str(body["class"]),
        status="failed" if differences else "passed",
        differences=tuple(differences),
        answers={**answers, "statements": statements},
    )


def _build(folder: Path, out: Path) -> Path:
    """Run the case's program and return the folder it wrote."""
    if not (folder / _MAKE).is_file():
        return folder
    out.parent.mkdir(parents=True)
    command = [sys.executable, str((folder / _MAKE).resolve()), str(out)]
    made = subprocess.run(command, capture_output=True, text=True, timeout=_MAKE_LIMIT_S, cwd=out.parent, check=False)
    if made.returncode != 0 or not out.is_dir():
        last = " / ".join(made.stderr.strip().splitlines()[-_LAST_LINES:])
        raise WorkbenchError(f"{folder.name}/{_MAKE}: expected status 0 and a folder; found {made.returncode}: {last}")
    return out


def _compare(facts: CheckpointFacts, expected: Mapping[str, object]) -> tuple[list[str], dict[str, object]]:
    differences: list[str] = []
    answers: dict[str, object] = {}
    for key, wanted in expected.items():
        if key == "outcome":
            answers[key] = facts.outcome
            if facts.outcome not in outcomes_meant(str(wanted)):
                differences.append(f"outcome: expected {wanted!r}; found {facts.outcome!r}")
            continue
        ways = answer(facts, key) or stated(facts, key)
        if not ways:
            differences.append(f"{key}: expected {wanted!r}; found no fact of that name, so it is not answered")
            continue
        met = next((way for way in ways if agrees(wanted, way)), None)
        shown = met if met is not None else next(iter(ways), None)
        answers[key] = to_plain(shown)
        if not any(agrees(wanted, way) for way in ways):
            differences.append(f"{key}: expected {wanted!r}; found {shown!r}")
    return differences, answers


def outcomes_meant(text: str) -> frozenset[str]:
    """Return the outcomes a sentence such as "refuse or warn per tensor" allows; empty when it names none."""
    meant: set[str] = set()
    for part in text.casefold().replace(",", " ").split(" or "):
        about_tensors = "tensor" in part or "dequant" in part or "tensor" in text.casefold().split(" or ")[-1]
        if "refus" in part or "reject" in part or "error" in part or "fail" in part:
            meant |= {"refuse_tensors"} if "tensor" in part or "dequant" in part else {"refuse"}
            meant |= {"refuse_tensors"} if about_tensors else set()
        elif "warn" in part:
            meant |= {"warn", "refuse_tensors"} if about_tensors else {"warn"}
        elif "load" in part or "ok" in part.split() or "accept" in part or "open" in part:
            meant |= {"load"}
    return frozenset(meant)


def _forbidden_said(facts: CheckpointFacts, forbidden: list[str]) -> list[str]:
    statements = [*map(str, facts.problems), facts.message()]
    return [
        f"must_not: expected that nobody says {saying!r}; found {statement!r}"
        for saying in forbidden
        for statement in statements
        if same_words(saying.removeprefix("say ").removeprefix("report "), statement)
    ] + [
        f"must_not: expected no word about {name}; found {statement!r}"
        for saying in forbidden
        if saying.startswith("complain about ")
        for name in [saying.split()[2]]
        for statement in statements
        if f"{name}:" in statement or f".{name} " in statement
    ]
