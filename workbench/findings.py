"""Equality of findings: what two runs of one plan must agree on, and in words where they do not."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from workbench.records.base import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingsDiff:
    """The answer of a comparison; true when the findings are the same.

    Attributes:
        differences: one line each: which record, which field, expected, found.
        compared: records compared.
    """

    differences: tuple[str, ...]
    compared: int

    def __bool__(self) -> bool:
        return not self.differences

    def __str__(self) -> str:
        if not self.differences:
            return f"same findings ({self.compared} records)"
        return f"{len(self.differences)} differences in {self.compared} records\n" + "\n".join(self.differences)


def compare_findings(
    expected: Sequence[Mapping[str, Json]], found: Sequence[Mapping[str, Json]], *, rel: float
) -> FindingsDiff:
    """Compare two lists of findings in order; floats within relative `rel` (and absolute 1e-12) count as equal."""
    differences: list[str] = []
    for number, (one, two) in enumerate(zip(expected, found, strict=False)):
        label = f"record {number} ({one.get('kind')} {one.get('name', one.get('module', ''))})".replace(" )", ")")
        differences.extend(f"{label}: {line}" for line in _walk("", one, two, rel))
    if len(expected) != len(found):
        shorter = min(len(expected), len(found))
        extra = (expected if len(expected) > len(found) else found)[shorter]
        differences.append(
            f"expected {len(expected)} records, found {len(found)}; first without partner: {extra.get('kind')}"
        )
    return FindingsDiff(differences=tuple(differences), compared=max(len(expected), len(found)))


def _walk(path: str, one: object, two: object, rel: float) -> list[str]:
    if isinstance(one, Mapping) and isinstance(two, Mapping):
        lines: list[str] = []
        for name in dict.fromkeys([*one, *two]):
            lines.extend(_walk(f"{path}.{name}" if path else str(name), one.get(name), two.get(name), rel))
        return lines
    if isinstance(one, list) and isinstance(two, list) and len(one) == len(two):
        return [
            line
            for index, (a, b) in enumerate(zip(one, two, strict=True))
            for line in _walk(f"{path}[{index}]", a, b, rel)
        ]
    if isinstance(one, float) and isinstance(two, (int, float)) and math.isclose(one, two, rel_tol=rel, abs_tol=1e-12):
        return []
    return [] if one == two and type(one) is type(two) else [f"{path}: expected {_short(one)}, found {_short(two)}"]


def _short(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else text[:77] + "..."
