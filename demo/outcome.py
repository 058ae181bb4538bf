"""What the tour must have found, read from the files it left: each answer with whether it held. Nothing is run here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from workbench.errors import JournalError
from workbench.journal import Journal
from workbench.records import BisectionResult, CheckRow, Divergence, GraphSummary, StepFailure
from workbench.units import bytes_text, count_text
from workbench.views.memory import top_owners
from workbench.views.memory_runs import last_run
from workbench.views.steps import step_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One line of the summary.

    Attributes:
        name: of the part.
        held: whether it came out as it must.
        text: what came out, or what is missing.
    """

    name: str
    held: bool
    text: str


def judge(folder: Path) -> tuple[Answer, ...]:
    """Return one answer per part of the tour; a file that is missing or cut short is an answer that did not hold."""
    return tuple(_asked(name, ask, folder) for name, ask in _PARTS)


def _asked(name: str, ask: Callable[[Path], tuple[bool, str]], folder: Path) -> Answer:
    try:
        held, text = ask(folder)
    except (JournalError, OSError, ElementTree.ParseError, StopIteration) as error:
        held, text = False, str(error) or "nothing was recorded"
    return Answer(name=name, held=held, text=text)


def _steps(folder: Path) -> tuple[bool, str]:
    journal = _journal(folder, "tour")
    rows, failures = step_rows(journal.records), journal.of_kind(StepFailure)
    counts = Counter(row.verdict for row in rows)
    words = {"match": "match", "differ": "differ", "flipped": "flipped alone", "failed": "failed"}
    told = ", ".join(f"{counts[verdict]} {word}" for verdict, word in words.items() if counts[verdict])
    compared = sum(row.accumulated is not None for row in rows)
    decoded = any(row.phase == "decode" for row in rows)
    held = not failures and bool(rows) and compared == len(rows) and decoded
    return held, f"{count_text(len(rows), 'step')}, fp32 against bf16: {told or 'nothing compared'}"


def _divergence(folder: Path) -> tuple[bool, str]:
    found = next(iter(_journal(folder, "tour").of_kind(Divergence)))
    return found.first is not None, str(found)


def _golden_steps(folder: Path) -> tuple[bool, str]:
    rows = [row for row in step_rows(_journal(folder, "golden").records) if row.accumulated is not None]
    agree = sum(row.verdict == "match" for row in rows)
    worst = max((row.accumulated or 0.0 for row in rows), default=0.0)
    return bool(rows) and agree == len(rows), f"{agree} of {count_text(len(rows), 'step')} match, worst {worst:.1e}"


def _golden_checks(folder: Path) -> tuple[bool, str]:
    rows = _journal(folder, "verify").of_kind(CheckRow)
    passed = sum(row.passed for row in rows)
    prompts = len({row.subject for row in rows})
    return bool(rows) and passed == len(rows), f"{passed} of {count_text(len(rows), 'check')} on {prompts} prompts"


def _memory(folder: Path) -> tuple[bool, str]:
    journal = _journal(folder, "tour")
    peak, owners = last_run(journal).peak, top_owners(journal).totals
    if peak is None or not owners:
        return False, "no allocation was recorded"
    text = (
        f"peak {bytes_text(peak.peak_bytes_above_baseline)} above {bytes_text(peak.baseline_bytes)}; "
        f"top owner {owners[0].owner or '(root)'} with {bytes_text(owners[0].nbytes)}"
    )
    return peak.peak_bytes_above_baseline > 0, text


def _dry(folder: Path) -> tuple[bool, str]:
    peak = last_run(_journal(folder, "dry")).peak
    if peak is None:
        return False, "no allocation was computed"
    text = f"peak {bytes_text(peak.peak_bytes_above_baseline)} on {peak.device}, computed from shapes"
    return peak.device.startswith("neuron"), text


def _breaks(folder: Path) -> tuple[bool, str]:
    found = next(iter(_journal(folder, "graphs").of_kind(GraphSummary)))
    text = f"{count_text(found.break_sites, 'break')} in {count_text(found.graph_count, 'graph')} of the decode step"
    return found.complete and found.graph_count > 0, text


def _culprit(folder: Path) -> tuple[bool, str]:
    found = _journal(folder, "tour").of_kind(BisectionResult)[-1:]
    if not found:
        return False, "no bisection was recorded"
    result = found[0]
    held = result.verdict == "found" and result.minimal and result.simulated and result.leftover_processes == 0
    words = " + ".join(result.culprit) or "nothing"
    return held and len(result.culprit) == 2, f"{words} (SIMULATED: the fault is planted)"


def _replay(folder: Path) -> tuple[bool, str]:
    root = ElementTree.parse(folder / "junit.xml").getroot()
    tests, wrong = int(root.get("tests", "0")), int(root.get("failures", "0")) + int(root.get("errors", "0"))
    return tests > 0 and wrong == 0, f"{tests - wrong} of {count_text(tests, 'action')} found the same again"


def _script(folder: Path) -> tuple[bool, str]:
    text = (folder / "script.py").read_text(encoding="utf-8")
    calls = text.count("session.")
    return "wb.Session(plan)" in text, f"script.py asks the same {calls - 1} times"


_PARTS: tuple[tuple[str, Callable[[Path], tuple[bool, str]]], ...] = (
    ("steps", _steps),
    ("first divergence", _divergence),
    ("golden steps", _golden_steps),
    ("golden checks", _golden_checks),
    ("memory", _memory),
    ("memory, dry", _dry),
    ("graph breaks", _breaks),
    ("culprit", _culprit),
    ("replay", _replay),
    ("script", _script),
)


def summary_lines(answers: tuple[Answer, ...]) -> Iterator[str]:
    """Give one line per answer; one that did not hold says so in a word."""
    for answer in answers:
        yield f"  {'ok' if answer.held else 'FAILED':<7} {answer.name:<17} {answer.text}"


def _journal(folder: Path, name: str) -> Journal:
    return Journal.open(folder / f"{name}.wbj")
