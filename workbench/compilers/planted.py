"""A compiler that only pretends: it fails where a rule says so, for tutorials and tests. All of it says SIMULATED.

Rules are given as text, joined by `;`:

| text | what happens where every named operation is in the graph |
|---|---|
| `sort+gather` or `fails=sort+gather` | an internal error with the code NCC_ITIN902, exit status 70 |
| `fails=sort@NCC_EVRF029` | the same with another code |
| `hangs=scatter` | it never ends |
| `crashes=topk` | it dies of SIGSEGV |
| `exhausts=cat` | it ends as when memory ran out: `[F137]`, exit status 70 |
| `wavers=topk` | it fails in about half of the runs |

The texts and the exit status have the form neuronx-cc gives them (documented; nothing here was run on a device).
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import random
import re
import signal
import sys
from dataclasses import dataclass
from typing import cast

from workbench.bisection.subjects.base import SubjectKind, WrittenSubject
from workbench.bisection.trial_client import CallRequest, ChildReport
from workbench.compilers.base import CompileOutcome, Compiler, plain_outcome
from workbench.errors import PlanError
from workbench.records.base import Json

EXIT_STATUS = 70
"""What neuronx-cc ends with for most compile errors, as observed in public logs."""

KINDS: tuple[str, ...] = ("fails", "hangs", "crashes", "exhausts", "wavers")
_DEFAULT_CODE = "NCC_ITIN902"
_PASSES = {"NCC_ITIN902": "TensorInitialization", "NCC_ISMP902": "Simplifier", "NCC_ILSA902": "LegalizeSundaAccess"}
_CODE = re.compile(r"NCC_[A-Z]{3,5}\d{3}")


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultRule:
    """One planted fault.

    Attributes:
        kind: one of `KINDS`.
        operations: it strikes when all of them are in the graph.
        code: what it prints, where the kind prints a code.
    """

    kind: str
    operations: tuple[str, ...]
    code: str = _DEFAULT_CODE

    def strikes(self, operations: frozenset[str]) -> bool:
        """Say whether every operation of the rule is among these."""
        return {_plain(one) for one in self.operations} <= operations


class PlantedCompiler:
    """The pretended compiler.

    Args:
        rules: text as above.

    Raises:
        PlanError: text that is no rule.
    """

    simulated = True
    reads: frozenset[SubjectKind] = frozenset({"lines", "program"})
    preload: tuple[str, ...] = ("workbench.compilers.planted",)

    def __init__(self, rules: str) -> None:
        self.rules = tuple(_rule(text.strip()) for text in rules.split(";") if text.strip())
        if not self.rules:
            raise PlanError("planted: expected at least one rule such as planted:sort+gather, found none")
        self.name = f"planted:{rules} (SIMULATED)"

    @property
    def identity(self) -> str:
        """The rules."""
        return f"planted\n{self.rules}"

    def check(self) -> None:
        """It can always be used."""

    def request(self, subject: WrittenSubject, folder: object) -> CallRequest:
        """Return the call that looks at the operations."""
        rules = cast("list[Json]", [dataclasses.asdict(rule) for rule in self.rules])
        return CallRequest(
            function="workbench.compilers.planted:pretend",
            argument={"rules": rules, "operations": list(subject.operations)},
            cwd=str(folder),
        )

    def outcome(self, report: ChildReport) -> CompileOutcome:
        """Return what its status and output mean, as of a real one."""
        return plain_outcome(report)

    def rungs(self) -> tuple[Compiler, ...]:
        """Nothing stands below it."""
        return (self,)


def pretend(argument: dict[str, list]) -> None:
    """Be the compiler, in the child of a trial: end as the first rule that strikes says."""
    present = frozenset(_plain(str(name)) for name in argument["operations"])
    _say("SIMULATED compiler with planted faults; this is not neuronx-cc")
    for body in argument["rules"]:
        rule = FaultRule(kind=body["kind"], operations=tuple(body["operations"]), code=body["code"])
        if rule.strikes(present):
            _strike(rule)
    _say("Compiler status PASS")


def strike_text(rule: FaultRule) -> str:
    """Return what a failing rule prints."""
    named = " and ".join(repr(one) for one in rule.operations)
    if rule.kind == "exhausts":
        return "[F137] neuronx-cc was forcibly killed - SIMULATED, as when host memory runs out"
    stage = _PASSES.get(rule.code, "PlantedFault" if rule.code.endswith(("901", "902")) else "")
    head = "INTERNAL_ERROR" if rule.code.startswith("NCC_I") else "ERROR"
    return (
        f"[{head}] [{rule.code}] {f'{stage} error: ' if stage else ''}SIMULATED fault planted for {named} in one graph"
    )


def _strike(rule: FaultRule) -> None:
    if rule.kind == "hangs":
        _say("." * 40)
        signal.pause()
    if rule.kind == "crashes":
        os.kill(os.getpid(), signal.SIGSEGV)
    # The operating system's numbers: a forked child would repeat its parent's.
    if rule.kind == "wavers" and random.SystemRandom().random() < 0.5:
        return
    _say(strike_text(rule))
    sys.exit(EXIT_STATUS)


def _say(line: str) -> None:
    # A compiler's output is what this process is for; flushed, since what comes next may be a crash.
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _rule(text: str) -> FaultRule:
    kind, equals, rest = text.partition("=")
    if not equals:
        kind, rest = "fails", text
    names, at, code = rest.partition("@")
    operations = tuple(name.strip() for name in names.split("+"))
    if kind not in KINDS:
        near = difflib.get_close_matches(kind, KINDS, n=1)
        meant = f" Did you mean {near[0]}={rest}?" if near else ""
        raise PlanError(f"planted: expected one of {', '.join(KINDS)} before '=', found {kind!r} in {text!r}.{meant}")
    if not all(operations):
        raise PlanError(f"planted: expected operations joined by '+', found {rest!r} in {text!r}")
    if at and not _CODE.fullmatch(code):
        raise PlanError(f"planted: expected a code such as NCC_EVRF029 behind '@', found {code!r} in {text!r}")
    return FaultRule(kind=kind, operations=operations, code=code or _DEFAULT_CODE)


def _plain(name: str) -> str:
    """Return an operation's bare name: `aten.add.Tensor` and `Tensor.add` are both `add`; `-` and `_` are one."""
    parts = name.split(".")
    bare = parts[1] if parts[0] == "aten" and len(parts) > 1 else parts[-1]
    return bare.lower().replace("-", "_")
