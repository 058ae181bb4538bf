"""Replays as JUnit XML: a suite per journal, a case per action, as CI systems read it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

from workbench.replay import ReplayResult

_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit_xml(results: Sequence[ReplayResult]) -> str:
    """Return the XML document of several replays.

    Source: the format as written by the `junit-xml` schema of Jenkins: `testsuites/testsuite/testcase`, `failure` for
    findings that differ, `error` for a replay that could not go on.
    """
    root = ElementTree.Element("testsuites", name="workbench replay")
    totals = {"tests": 0, "failures": 0, "errors": 0}
    for result in results:
        counts = {
            "tests": len(result.steps),
            "failures": sum(step.outcome == "differ" for step in result.steps),
            "errors": sum(step.outcome == "error" for step in result.steps),
        }
        totals = {name: totals[name] + count for name, count in counts.items()}
        seconds = sum(step.elapsed_s for step in result.steps)
        attributes = {"name": _clean(result.name), "time": f"{seconds:.3f}"}
        attributes |= {name: str(count) for name, count in counts.items()}
        suite = ElementTree.SubElement(root, "testsuite", attributes)
        for number, step in enumerate(result.steps):
            case = ElementTree.SubElement(
                suite,
                "testcase",
                classname=_clean(result.name),
                name=_clean(f"{number:03d} {step.action}"),
                time=f"{step.elapsed_s:.3f}",
            )
            if step.outcome != "same":
                tag = "failure" if step.outcome == "differ" else "error"
                problem = ElementTree.SubElement(case, tag, message=_clean(step.differences[0]))
                problem.text = _clean("\n".join(step.differences))
        if result.notes:
            ElementTree.SubElement(suite, "system-out").text = _clean("\n".join(result.notes))
    for name, count in totals.items():
        root.set(name, str(count))
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def write_junit(path: str | Path, results: Sequence[ReplayResult]) -> Path:
    """Write the document and return its path; a file half written never takes the place of a whole one."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(target.name + ".part")
    part.write_text(junit_xml(results), encoding="utf-8")
    part.replace(target)
    return target


def _clean(text: str) -> str:
    """Return text without the characters XML cannot hold."""
    return _NOT_XML.sub("\ufffd", text)
