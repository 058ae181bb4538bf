"""Answers cases of class "numerics": two sides of one computation, compared through `workbench.compare`.

`pair.py` of the case holds `inputs()` and either `host(*inputs)` and `device(*inputs)`, or `host_layer(i, x)` and
`device_layer(i, x)` for a stack. Every key of `expected` is answered from the facts of `numeric_facts`; a key without a
fact fails the case. The verdict, a sentence, is held against what the comparison decided; what a case forbids is
looked for by deed where its words name one, and in what was said otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import cast

from workbench.cases.base import CaseResult, read_expected
from workbench.cases.numeric_facts import NumericFacts, facts_of
from workbench.cases.substance import same_words
from workbench.records.base import to_plain
from workbench.user_programs import load_file

_RELATIVE_SLACK = 1e-4
"""Sums are ordered otherwise on another machine; more than this is another result."""


def run_case(folder: Path) -> CaseResult:
    """Return the result of one numerics case."""
    body = read_expected(folder)
    names = [str(name) for name in cast("list[object]", body.get("files", []))]
    program = next((name for name in names if name.endswith(".py")), "pair.py")
    facts = facts_of(load_file(folder / program))
    expected = cast("Mapping[str, object]", body.get("expected", {}))
    differences: list[str] = []
    answers: dict[str, object] = {"said": facts.said()}
    for key, wanted in expected.items():
        if key == "verdict":
            differences += [f"verdict: {line}" for line in _verdict_faults(str(wanted), facts)]
            continue
        ways = facts.answers(key)
        if not ways:
            differences.append(f"{key}: expected {wanted!r}; found no fact of that name, so it is not answered")
            continue
        met = next((way for way in ways if _agrees(wanted, way)), None)
        answers[key] = to_plain(ways[0] if met is None else met)
        # JSON has no NaN: a figure that is not a number is null there.
        undefined = wanted is None and any(way is None or way != way for way in ways)
        if met is None and not undefined:
            differences.append(f"{key}: expected {wanted!r}; found {ways[0]!r}")
    differences += _forbidden(facts, [str(saying) for saying in cast("list[object]", body.get("must_not", []))])
    return CaseResult(
        case_id=str(body["id"]),
        case_class=str(body["class"]),
        status="failed" if differences else "passed",
        differences=tuple(differences),
        answers=answers,
    )


def _agrees(wanted: object, found: object) -> bool:
    """Compare numbers to the digits the case gives, lists item by item, sentences by whether they claim the same."""
    if isinstance(wanted, bool) or isinstance(found, bool):
        if isinstance(wanted, str) and isinstance(found, bool):
            return found != _denies(wanted)
        return wanted is found
    if isinstance(wanted, (int, float)) and isinstance(found, (int, float)):
        return _number_agrees(wanted, found)
    if isinstance(wanted, list) and isinstance(found, (list, tuple)):
        items, others = cast("list[object]", wanted), list(cast("list[object]", found))
        return len(items) == len(others) and all(_agrees(a, b) for a, b in zip(items, others, strict=True))
    return wanted == found


def _number_agrees(wanted: float, found: float) -> bool:
    if wanted != wanted or found != found:
        return wanted != wanted and found != found
    if abs(wanted) == float("inf"):
        return wanted == found
    text = repr(wanted)
    if isinstance(wanted, int) and isinstance(found, int):
        return wanted == found
    if "e" in text:
        digits = len(text.partition("e")[0].replace(".", "").strip("-"))
        return abs(wanted - found) <= abs(wanted) * (0.5 * 10 ** (1 - digits) + _RELATIVE_SLACK)
    # A whole number given for a count of steps is a ceiling: steps are not whole.
    decimals = len(text.partition(".")[2]) if isinstance(wanted, float) else 0
    return abs(wanted - found) <= 0.5 * 10**-decimals + _RELATIVE_SLACK * abs(wanted)


_CLAIMS: tuple[tuple[str, Callable[[NumericFacts], bool]], ...] = (
    (r"\bwithin\b|\bonly rounding\b|\brounding alone\b|\bharmless\b|\bcorrect\b", lambda facts: facts.agrees),
    (
        r"\bwrong\b|\bincorrect\b|\bnot? equal\b|\bdiverge|\bmismatch|\breal (?:fault|difference|bug)\b",
        lambda facts: not facts.agrees,
    ),
    (r"\bflip|\btie\b|\bdifferent experts\b", lambda facts: facts.flipped_rows > 0),
    (
        r"\b(?:scale error|wrong scale|scaled by|factor (?:of )?\d)",
        lambda facts: not facts.agrees and facts.ratio() not in ([], [None], [1.0]),
    ),
    (r"\bpermut|\banother order\b|\breorder|\bshuffled\b", lambda facts: not facts.agrees and facts.is_reordered()),
    (r"\bnan\b|\binf\b|\binfinit", lambda facts: facts.nonfinite),
)
"""What a verdict claims when these words stand in it, and whether we found the same."""


def _verdict_faults(wanted: str, facts: NumericFacts) -> list[str]:
    text = wanted.casefold()
    faults: list[str] = []
    claimed = 0
    for pattern, holds in _CLAIMS:
        if re.search(pattern, text) and not re.search(rf"\b(?:not|no|never)\b[^.;,]{{0,12}}(?:{pattern})", text):
            claimed += 1
            if not holds(facts):
                faults.append(f"expected {wanted!r}; found {facts.said()!r}")
    only = re.search(r"only layers? (\d+)|layers? (\d+) (?:alone|stands out|is wrong)", text)
    if only is not None:
        claimed += 1
        layer = int(only.group(1) or only.group(2))
        if facts.culprit != layer:
            faults.append(f"expected layer {layer} to stand out; found {facts.culprit}")
    if not claimed and not same_words(wanted, facts.said()):
        faults.append(f"expected {wanted!r}; found {facts.said()!r}, which does not say so")
    return list(dict.fromkeys(faults))


def _forbidden(facts: NumericFacts, sayings: list[str]) -> list[str]:
    faults: list[str] = []
    for saying in sayings:
        text = saying.casefold()
        if re.search(r"\bfail\b.*\batol|absolute", text):
            done = not facts.agrees and facts.failed_by_absolute_limit_alone
        elif "cosine" in text:
            done = facts.agrees and not facts.judged_beyond_cosine
        elif "share" in text and "input" in text:
            done = facts.inputs_shared
        elif "shapes" in text:
            done = not facts.values_compared
        elif "largest accumulated" in text:
            done = facts.culprit is not None and facts.culprit == facts.largest_accumulated != facts.largest_isolated
        else:
            done = same_words(saying, facts.said())
        if done:
            faults.append(f"must not: {saying}")
    return faults


def _denies(text: str) -> bool:
    return bool(re.match(r"\s*(?:no|not|none|never)\b", text.casefold()))
