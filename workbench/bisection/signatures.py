"""What makes two failures the same bug: read from how a child ended and from what it printed.

Knows the text forms of neuronx-cc (codes, pass names, envelopes such as `[F137]`) and of a Python traceback. Text
only; needs no torch. Not a full reading of compiler logs.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence

from workbench.bisection.trial_client import ChildReport
from workbench.records.compiling import FailureSignature, Outcome

MEMORY_LIMIT = "memory limit"
"""Detail of a failure by the limit of the trial, not by the system."""

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_CODE = re.compile(r"\[(?P<bracket>(?:NCC_)?[A-Z]{2,6}\d{3})\]|\b(?P<bare>NCC_[A-Z]{2,6}\d{3})\b")
_INNER_CODE = re.compile(r"error code (?:NCC_)?(?P<code>[A-Z]{2,6}\d{3}) does not exist")
_ENVELOPE = re.compile(r"\[(?P<code>F1(?:34|37|39))\]")
_ENVELOPE_SIGNAL = {"F134": "SIGABRT", "F137": "SIGKILL", "F139": "SIGSEGV"}
_PASS = re.compile(r"\]\s*(?P<name>[A-Za-z]\w+)(?: assertion)? error\b")
_ENTER = re.compile(r"\[(?:[^\]\s]*/)?(?P<name>\w+)\]: (?P<event>Enter|Exit) time region")
_OPERATIONS = (
    re.compile(r"\bOperation (?P<name>[\w.:-]+) is not supported", re.IGNORECASE),
    re.compile(r"\boperation=(?P<name>[\w.:]+)"),
    re.compile(r"\b[Uu]nsupported operator:? '?(?P<name>[\w.:-]+)'?"),
    re.compile(r"^\s*target: (?P<name>[\w.]+)", re.MULTILINE),
    re.compile(r"\baten__(?P<name>\w+)_\w+\.\d+"),
    re.compile(r"^\s*%[\w.-]+ = [^=]*?\s(?P<name>[a-z][a-z-]*)\(", re.MULTILINE),
)
_EXCEPTION = re.compile(r"^(?P<name>(?:\w+\.)*\w*(?:Error|Exception|Failed|Interrupt|Exit|Warning))\b:?(?P<text>.*)$")
_STAMP = re.compile(r"^\s*(?:\d{4}-\d\d-\d\d[T ][\d:.,]+Z?|\d\d/\d\d/\d{4} [\d:]+(?: [AP]M)?)\s*")
_USAGE = re.compile(
    r"^usage: |unrecognized arguments|the following arguments are required|error: argument |invalid choice: ",
    re.MULTILINE,
)
_STATUS_PASS = re.compile(r"^Compiler status PASS", re.MULTILINE)
_CODED_ERROR = re.compile(r"\[(?:INTERNAL_)?ERROR\].*\[(?:NCC_)?[A-Z]{2,6}\d{3}\]")
_STATUS_ERROR = re.compile(r"^Compiler status (?:ERROR|FAIL)", re.MULTILINE)
_NOISE = (
    (re.compile(r"\[(?:INTERNAL_)?ERROR\]|\[(?:NCC_)?[A-Z]+\d{3}\]"), ""),
    (re.compile(r"(?:[A-Za-z]:)?/[^\s'\",:;]+"), "<path>"),
    (re.compile(r"\{[^{}]*\}|<[^<>]*>(?!\w)"), "<>"),
    (re.compile(r"0x[0-9a-fA-F]+|\d+(?:\.\d+)?"), "#"),
    (re.compile(r"\s+"), " "),
)
_DETAIL_LENGTH = 160
_CRASH_SIGNALS = ("SIGILL", "SIGABRT", "SIGBUS", "SIGFPE", "SIGSEGV", "SIGKILL", "SIGTERM", "SIGTRAP", "SIGSYS")


def read_failure(report: ChildReport) -> tuple[Outcome, FailureSignature | None]:
    """Return how a trial ended, and the signature of its failure; None where it passed or could not be judged."""
    text = clean_text(report.output)
    if report.ended_because == "timeout":
        return _failure("timeout", text, code=error_code(text), stage=_pass_running(text))
    if report.ended_because == "memory":
        return "killed", FailureSignature(outcome="killed", signal="SIGKILL", detail=MEMORY_LIMIT)
    if report.ended_because == "server died" or report.exit_status is None:
        return "skipped", None
    if report.exit_status == 0:
        # A wrapper may lose the status; a code on an error line then still tells, unless the compiler says it passed.
        if _STATUS_ERROR.search(text) or (_CODED_ERROR.search(text) and not _STATUS_PASS.search(text)):
            return _failure("compile_error", text, code=error_code(text), stage=_pass_failed(text))
        return "ok", None
    ended_by = signal_name(report.exit_status) or _envelope_signal(text)
    if ended_by is not None:
        outcome: Outcome = "killed" if ended_by in ("SIGKILL", "SIGTERM") else "crash"
        return _failure(outcome, text, code=error_code(text), stage=_pass_failed(text), ended_by=ended_by)
    if report.exit_status in (126, 127) or (report.exit_status == 2 and _USAGE.search(text)):
        return _failure("usage_error", text, code=_usage_code(text))
    return _failure("compile_error", text, code=error_code(text), stage=_pass_failed(text))


def is_same_failure(followed: FailureSignature, found: FailureSignature) -> bool:
    """Say whether two failures are one bug.

    Kind, signal and code must agree; pass and operation where both are known. The message decides where there is no
    code, or only one that covers many bugs: an exception's type, or a caught exception of the compiler.
    """
    if (followed.outcome, followed.code, followed.signal) != (found.outcome, found.code, found.signal):
        return False
    for one, two in ((followed.stage, found.stage), (followed.operation, found.operation)):
        if one is not None and two is not None and one != two:
            return False
    covers_many = followed.code is None or not followed.code[-3:].isdigit() or "nhandled exception" in followed.detail
    if covers_many and followed.outcome not in ("timeout", "killed", "crash"):
        return followed.detail == found.detail
    return True


def signature_text(signature: FailureSignature | None) -> str:
    """Return a signature in words, short."""
    if signature is None:
        return "-"
    words = [signature.code or (signature.detail[:60] if signature.outcome != "timeout" else "")]
    words += [
        f"in {signature.stage}" if signature.stage else "",
        f"on {signature.operation}" if signature.operation else "",
    ]
    named = " ".join(word for word in words if word)
    ended = f" ({signature.signal})" if signature.signal else ""
    return f"{signature.outcome.replace('_', ' ')}{ended}{': ' + named if named else ''}"


def clean_text(text: str) -> str:
    """Return text without terminal escapes, with a carriage return as the end of a line."""
    return _ESCAPES.sub("", text).replace("\r\n", "\n").replace("\r", "\n")


def last_lines(text: str, count: int = 12) -> str:
    """Return the last lines that say something."""
    lines = [line.rstrip() for line in clean_text(text).splitlines() if line.strip()]
    return "\n".join(lines[-count:])


def first_lines(text: str, count: int = 12) -> str:
    """Return the first lines that say something."""
    lines = [line.rstrip() for line in clean_text(text).splitlines() if line.strip()]
    return "\n".join(lines[:count])


def error_code(text: str) -> str | None:
    """Return the first compiler code that is a cause, else an envelope, else the type of the last exception."""
    inner = _INNER_CODE.search(text)
    if inner:
        return f"NCC_{inner['code']}"
    found = _CODE.search(text) or _ENVELOPE.search(text)
    if found:
        return next(group for group in found.groups() if group)
    exception = _last_exception(text)
    return None if exception is None else exception[0]


def _usage_code(text: str) -> str | None:
    found = _CODE.search(text)
    return None if found is None else next(group for group in found.groups() if group)


def signal_name(exit_status: int) -> str | None:
    """Return the signal an exit status stands for, as -11 or, by way of a shell, 139; None for an ordinary status."""
    number = -exit_status if exit_status < 0 else exit_status - 128
    try:
        name = signal.Signals(number).name
    except ValueError:
        return f"signal {number}" if exit_status < 0 else None
    return name if exit_status < 0 or name in _CRASH_SIGNALS else None


def normalised(message: str) -> str:
    """Return a message without codes, paths, names in braces and numbers, so that two runs of one bug agree."""
    for pattern, replacement in _NOISE:
        message = pattern.sub(replacement, message)
    return message.strip(" :-")[:_DETAIL_LENGTH]


def exception_signature(outcome: Outcome, types: Sequence[str], message: str) -> FailureSignature:
    """Return the signature of an exception of torch: a compiler's code in its message, else the type of its root.

    Args:
        outcome: kind of failure.
        types: names of the exception and of its causes, the root last.
        message: of the root.
    """
    text = clean_text(message)
    found = _CODE.search(text) or _ENVELOPE.search(text)
    code = next((group for group in found.groups() if group), None) if found else types[-1]
    first = next((line for line in text.splitlines() if line.strip()), "")
    if found:
        first = next((line for line in text.splitlines() if code is not None and code in line), first)
    return FailureSignature(
        outcome=outcome,
        code=code,
        stage=_pass_failed(text) or (types[0] if len(types) > 1 else None),
        operation=_operation(text),
        detail=normalised(first),
    )


def _failure(
    outcome: Outcome, text: str, *, code: str | None = None, stage: str | None = None, ended_by: str | None = None
) -> tuple[Outcome, FailureSignature]:
    return outcome, FailureSignature(
        outcome=outcome, code=code, stage=stage, signal=ended_by, operation=_operation(text), detail=_detail(text, code)
    )


def _detail(text: str, code: str | None) -> str:
    lines = [_STAMP.sub("", line) for line in text.splitlines() if line.strip(" .")]
    if code is not None:
        exception = _last_exception(text)
        if exception is not None and exception[0] == code:
            return normalised(exception[1])
        lines = [line for line in lines if code in line][:1] or lines
    return normalised(lines[-1]) if lines else ""


def _last_exception(text: str) -> tuple[str, str] | None:
    if "Traceback (most recent call last)" not in text:
        return None
    for line in reversed(text.splitlines()):
        found = _EXCEPTION.match(line)
        if found:
            return found["name"].rpartition(".")[2], found["text"]
    return None


def _operation(text: str) -> str | None:
    return next((found["name"] for pattern in _OPERATIONS if (found := pattern.search(text))), None)


def _pass_failed(text: str) -> str | None:
    # A code ending in 901 or 902 stands for a whole pass, which the text behind it names.
    for line in text.splitlines():
        code = _CODE.search(line)
        named = _PASS.search(line, code.end() - 1) if code else None
        if named:
            return named["name"]
    return _pass_running(text)


def _pass_running(text: str) -> str | None:
    entered: list[str] = []
    for found in _ENTER.finditer(text):
        if found["event"] == "Enter":
            entered.append(found["name"])
        elif found["name"] in entered:
            entered.remove(found["name"])
    return entered[-1] if entered else None


def _envelope_signal(text: str) -> str | None:
    found = _ENVELOPE.search(text)
    return _ENVELOPE_SIGNAL[found["code"]] if found else None
