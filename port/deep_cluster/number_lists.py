"""Lists of small numbers as Linux and Neuron write them: `3`, `0,2,5`, `0-3`, `0-3,8`; read and written."""

from __future__ import annotations

import re
from collections.abc import Iterable

_PART = re.compile(r"(\d{1,6})(?:\s*-\s*(\d{1,6}))?")
_MOST = 100_000
"""More numbers than any machine has; a range beyond is a slip of the pen, not a machine."""


def parse_numbers(text: str, *, where: str, example: str = "0-3,8") -> tuple[int, ...]:
    """Return the numbers of a list in the order they stand; ranges include both ends.

    Args:
        text: the list; blanks around numbers, commas and dashes are passed over.
        where: what the text is, for the error.
        example: a list of this kind, for the error.

    Raises:
        ValueError: an empty list, an empty part, a negative or reversed range, a number twice, or anything else that is
            no list; the message has the part at fault.
    """

    def refuse(what: str) -> ValueError:
        return ValueError(
            f"{where}: expected numbers and ranges such as {example}; found {text!r}: {what}. "
            "Write each number once, ranges with the lower end first."
        )

    numbers: list[int] = []
    for part in text.split(","):
        stripped = part.strip()
        matched = _PART.fullmatch(stripped)
        if matched is None:
            if not stripped:
                raise refuse("a part is empty")
            raise refuse(f"{stripped!r} is negative" if re.fullmatch(r"-\s*\d+", stripped) else f"{stripped!r}")
        first, last = int(matched[1]), int(matched[2] or matched[1])
        if last < first:
            raise refuse(f"the range {stripped!r} is reversed")
        if last - first >= _MOST:
            raise refuse(f"the range {stripped!r} has more than {_MOST:,} numbers")
        numbers += range(first, last + 1)
    repeated = sorted({number for number in numbers if numbers.count(number) > 1}) if len(numbers) < 2000 else []
    if repeated or len(set(numbers)) != len(numbers):
        raise refuse(f"{', '.join(map(str, repeated[:4])) or 'a number'} stands there twice")
    return tuple(numbers)


def numbers_text(numbers: Iterable[int]) -> str:
    """Return the shortest list of these numbers, sorted, as in `0-3,8`; "" for none."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
