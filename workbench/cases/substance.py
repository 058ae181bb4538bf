"""Whether an answer says in substance what a case expects: names and numbers exactly, sentences by what they state.

| expected | agrees with |
|---|---|
| a number | the same number, or a sentence that states it |
| a name (no blanks) | the same name, or the same word for a kind of fault |
| a sentence | text with the same names, numbers and direction of claim, and most of its other words |
| a list of numbers | the same numbers in the same order |
| any other list | as many answers, each expected one met by an answer of its own, in any order |
| an object | an object with at least its keys, each in substance |

A list of one stands for its item. What stands in brackets in an expected sentence explains it and is not compared.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from itertools import permutations
from typing import cast

_STEM_LETTERS = 5
_WORDS_NEEDED = 0.5
_LARGEST_PERMUTED = 6

# Words of different authors for one thing; the first is what the others become.
_SAME_WORD: dict[str, str] = {
    word: words[0]
    for words in (
        ("truncated", "short", "shorter", "cut", "incomplete"),
        ("missing", "absent", "nowhere", "lacking", "lost"),
        ("duplicate", "duplicates", "duplicated", "repeated", "twice"),
        ("overlap", "overlaps", "overlapping"),
        ("shard", "shards", "file", "files"),
        ("empty", "zero-size", "zero-sized", "zero-length", "zero-byte"),
        ("pattern", "names", "name"),
        ("found", "discovered", "located"),
        ("refuse", "refuses", "refused", "reject", "rejected"),
        ("exact", "exactly", "lossless"),
    )
    for word in words
}
_STOP_WORDS = frozenset(
    word
    for line in (
        "a an and are as at be been but by can could do does every for from has have how in into is it its of on",
        "one or say so than that the their then there they this to was were what which with would here still only",
        "all each any",
    )
    for word in line.split()
)
_NEGATIONS = frozenset(("not", "no", "never", "cannot", "none", "without", "neither"))
_WORD = re.compile(r"[A-Za-z0-9_./*:\-]*[A-Za-z0-9_*]")
_NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?:e[+-]?\d+)?(?![\w])")
_ASIDE = re.compile(r"\([^()]*\)")


def agrees(expected: object, said: object) -> bool:
    """Return whether `said` answers `expected` in substance."""
    if isinstance(said, tuple):
        said = list(cast("tuple[object, ...]", said))
    if isinstance(expected, Mapping):
        return _mapping_agrees(cast("Mapping[str, object]", expected), said)
    if isinstance(expected, Sequence) and not isinstance(expected, str):
        return _list_agrees(list(expected), said)
    if isinstance(said, list):
        return len(said) == 1 and agrees(expected, said[0])
    if expected is None:
        return said is None
    if isinstance(expected, bool) or isinstance(said, bool):
        return expected is said
    if isinstance(expected, int | float):
        return _number_agrees(expected, said)
    return isinstance(expected, str) and _text_agrees(expected, said)


def same_words(text: str, statement: str) -> bool:
    """Return whether a statement holds every content word of a text; how a forbidden saying is looked for."""
    wanted = _stems(text)
    return bool(wanted) and wanted <= _stems(statement) and _negated(text) == _negated(statement)


def _mapping_agrees(expected: Mapping[str, object], said: object) -> bool:
    if isinstance(said, list):
        said = said[0] if len(said) == 1 else None
    if not isinstance(said, Mapping):
        return False
    answers = cast("Mapping[str, object]", said)
    return all(key in answers and agrees(value, answers[key]) for key, value in expected.items())


def _list_agrees(expected: list[object], said: object) -> bool:
    if isinstance(said, str):
        return _is_numeric(expected) and str(expected) in said
    if isinstance(said, Mapping):
        return False
    given = cast("list[object]", said) if isinstance(said, list) else [] if said is None else [said]
    given = [list(item) if isinstance(item, tuple) else item for item in given]
    if len(expected) != len(given):
        return False
    if _is_numeric(expected):
        return all(agrees(left, right) for left, right in zip(expected, given, strict=True))
    return _each_met(expected, given)


def _each_met(expected: list[object], given: list[object]) -> bool:
    """Return whether the two lists can be matched item by item."""
    if len(expected) <= _LARGEST_PERMUTED:
        return any(
            all(agrees(left, right) for left, right in zip(expected, order, strict=True))
            for order in permutations(given)
        )
    left_over = list(given)  # long lists hold names, where the first match is the only one
    for item in expected:
        met = next((answer for answer in left_over if agrees(item, answer)), None)
        if met is None:
            return False
        left_over.remove(met)
    return True


def _is_numeric(items: list[object]) -> bool:
    return bool(items) and all(
        _is_numeric(cast("list[object]", item)) if isinstance(item, list) else isinstance(item, int | float)
        for item in items
    )


def _number_agrees(expected: float, said: object) -> bool:
    if isinstance(said, str):
        return any(_close(expected, float(number)) for number in _NUMBER.findall(said))
    return isinstance(said, int | float) and _close(expected, said)


def _close(left: float, right: float) -> bool:
    if isinstance(left, int) and isinstance(right, int):
        return left == right
    return math.isclose(left, right, rel_tol=1e-6) or (math.isnan(left) and math.isnan(right))


def _text_agrees(expected: str, said: object) -> bool:
    text = str(said)
    if expected.strip().casefold() == text.strip().casefold():
        return True
    if not isinstance(said, str):
        return False
    bare = _ASIDE.sub(" ", expected).strip()
    if " " not in bare:
        return _canonical(bare) in {_canonical(word) for word in _words(text)} if bare else False
    if _negated(bare) != _negated(text) or not _anchors(bare) <= _anchors(text):
        return False
    wanted = _stems(bare)
    return len(wanted & _stems(text)) >= _WORDS_NEEDED * len(wanted)


def _words(text: str) -> list[str]:
    return [word.strip(".:-/") for word in _WORD.findall(text)]


def _anchors(text: str) -> set[str]:
    """Return what must be the same to the letter: numbers, and names with a dot, an underscore or a digit inside."""
    numbers = {f"{float(number):g}" for number in _NUMBER.findall(text)}
    names = {word.casefold() for word in _words(text) if re.search(r"[\w]\.[\w]|_|\d", word) and not _is_number(word)}
    return numbers | names


def _stems(text: str) -> set[str]:
    words = {_canonical(word) for word in _words(text)}
    return {word[:_STEM_LETTERS] for word in words if word and word not in _STOP_WORDS and word not in _NEGATIONS}


def _negated(text: str) -> bool:
    return any(word.casefold() in _NEGATIONS for word in _words(text))


def _canonical(word: str) -> str:
    lower = word.casefold()
    return _SAME_WORD.get(lower, lower)


def _is_number(word: str) -> bool:
    return bool(_NUMBER.fullmatch(word))
