"""JSON as a checkpoint needs it read: repeated keys are reported, NaN and Infinity are refused.

The standard parser keeps the last of two equal keys without a word, which is how one line of an index silently hides
another.
"""

import json
from typing import NoReturn, TypeAlias

Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | float | bool | None"


def parse_json(text: str | bytes) -> tuple[Json, tuple[str, ...]]:
    """Return the parsed value and every key that appears twice in one object, in order of appearance.

    Raises:
        ValueError: not JSON, not UTF-8, or nested too deeply; the text says where.
    """
    repeated: list[str] = []

    def to_dict(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
        record = dict(pairs)
        if len(record) != len(pairs):
            seen: set[str] = set()
            for key, _ in pairs:
                if key in seen and key not in repeated:
                    repeated.append(key)
                seen.add(key)
        return record

    try:
        # bytes must be UTF-8: left to itself json.loads would guess UTF-16 and accept what other readers refuse.
        decoded = text.decode("utf-8") if isinstance(text, bytes) else text
        value: Json = json.loads(decoded, object_pairs_hook=to_dict, parse_constant=_refuse_constant)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    return value, tuple(repeated)


def _refuse_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is not JSON")
