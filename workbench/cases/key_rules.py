"""Finds the rule that answers a key of a case: the key taken apart into words, the rule with the most of them.

A rule is written as words with blanks between groups and `|` between words of one group: `device memory|bytes per`.
Every group must meet a word of the key, and every word of the key must be in a group or a filler.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

_Fact = TypeVar("_Fact")


def key_words(key: str, same: Mapping[str, str] | None = None) -> frozenset[str]:
    """Return the words of a key in the singular.

    Args:
        key: as in `missing_scale_for`.
        same: words that stand for others, by their singular.
    """
    words = {singular(word) for word in key.casefold().replace("-", "_").replace(" ", "_").split("_") if word}
    return frozenset((same or {}).get(word, word) for word in words)


def best_rule(words: frozenset[str], rules: Iterable[tuple[str, _Fact]], fillers: frozenset[str]) -> _Fact | None:
    """Return the fact of the rule that fits with the most groups, None where none fits whole."""
    best: tuple[int, _Fact] | None = None
    for rule, fact in rules:
        groups = [frozenset(group.split("|")) for group in rule.split()]
        known = frozenset[str]().union(*groups) | fillers
        if all(group & words for group in groups) and words <= known and (best is None or len(groups) > best[0]):
            best = len(groups), fact
    return None if best is None else best[1]


def singular(word: str) -> str:
    """Return a word without its plural s."""
    return word[:-1] if word.endswith("s") and len(word) > 3 and not word.endswith(("us", "ss", "as")) else word
