"""What every record has: a stamp, a kind, a JSON form, and a finding without what may differ between runs."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from workbench.errors import JournalError

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamp:
    """Where and when a record was made.

    Attributes:
        seq: position in the journal, from 0, given by the journal; -1 before the record is in one.
        step: index of the step point the session stood at, or None outside a step.
        module: fully qualified module name, "" for the whole model.
        phase: "prefill", "decode", "compile", "load", or "" where none applies.
        elapsed_s: seconds since the journal began, monotonic; never compared.
    """

    seq: int = -1
    step: int | None = None
    module: str = ""
    phase: str = ""
    elapsed_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """Base of all records.

    Attributes:
        stamp: where and when.
    """

    kind: ClassVar[str] = "record"
    volatile: ClassVar[frozenset[str]] = frozenset()
    """Fields that two equal runs may differ in (times, addresses, paths); left out of the finding."""

    stamp: Stamp = Stamp()

    def to_json(self) -> dict[str, Json]:
        """Return the record as JSON-able values, `kind` first."""
        return {"kind": type(self).kind, **_plain(self)}

    def finding(self) -> dict[str, Json]:
        """Return what another run of the same plan must reproduce."""
        skipped = type(self).volatile | {"stamp"}
        body = {name: value for name, value in _plain(self).items() if name not in skipped}
        return {"kind": type(self).kind, "module": self.stamp.module, "phase": self.stamp.phase, **body}


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownRecord(Record):
    """A record whose kind this version does not know; kept word for word, shown as such.

    Attributes:
        unknown_kind: the kind the file names.
        body: the fields as they stand in the file.
    """

    kind: ClassVar[str] = "unknown"
    unknown_kind: str
    body: Mapping[str, object]

    def to_json(self) -> dict[str, Json]:
        """Return the line as it was read."""
        return typing.cast("dict[str, Json]", {"kind": self.unknown_kind, **self.body})

    def finding(self) -> dict[str, Json]:
        """Return the line without its stamp, since which fields may differ is not known."""
        body = {name: value for name, value in self.to_json().items() if name != "stamp"}
        return {**body, "module": self.stamp.module, "phase": self.stamp.phase}


def _plain(value: object) -> dict[str, Json]:
    return typing.cast("dict[str, Json]", to_plain(value))


def to_plain(value: object) -> Json:
    """Return `value` (dataclasses, tuples, mappings, scalars) as JSON-able values.

    Floats that JSON cannot hold become the strings "nan", "inf", "-inf".

    Raises:
        JournalError: a value of a type no record may hold.
    """
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        if value != value:
            return "nan"
        return value if abs(value) != float("inf") else ("inf" if value > 0 else "-inf")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        mapping = typing.cast("Mapping[object, object]", value)
        return {str(name): to_plain(item) for name, item in mapping.items()}
    if isinstance(value, (tuple, list)):
        return [to_plain(item) for item in typing.cast("typing.Sequence[object]", value)]
    raise JournalError(
        f"a record field must be JSON-able: expected a scalar, tuple, mapping or dataclass, got {type(value)}"
    )


_T = typing.TypeVar("_T")


def from_plain(cls: type[_T], body: Mapping[str, object], *, where: str = "") -> _T:
    """Return the dataclass `cls` rebuilt from its JSON form.

    Fields of a newer version that `cls` lacks are ignored; a field without default that is absent is an error.

    Raises:
        JournalError: a required field is missing, or a value cannot be read as its declared type.
    """
    hints = typing.get_type_hints(cls)
    values: dict[str, object] = {}
    for field in dataclasses.fields(typing.cast("typing.Any", cls)):
        if field.name in body:
            values[field.name] = _read(hints[field.name], body[field.name], f"{where}{cls.__name__}.{field.name}")
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise JournalError(
                f"{where}{cls.__name__}: field {field.name!r} is missing; the file is damaged or older than it says"
            )
    return cls(**values)


def _read(hint: object, value: object, where: str) -> object:
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        if value is None:
            return None
        options = [option for option in typing.get_args(hint) if option is not type(None)]
        return _read(options[0], value, where) if len(options) == 1 else value
    if origin is typing.Literal:
        if value not in typing.get_args(hint):
            raise JournalError(f"{where}: expected one of {typing.get_args(hint)}, found {value!r}")
        return value
    if origin is tuple:
        if not isinstance(value, list):
            raise JournalError(f"{where}: expected a list, found {value!r}")
        items = typing.cast("list[object]", value)
        args = typing.get_args(hint)
        item_hints = [args[0]] * len(items) if len(args) == 2 and args[1] is Ellipsis else list(args)
        if len(item_hints) != len(items):
            raise JournalError(f"{where}: expected {len(item_hints)} items, found {value!r}")
        return tuple(_read(one, item, where) for one, item in zip(item_hints, items, strict=True))
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        if not isinstance(value, Mapping):
            raise JournalError(f"{where}: expected an object, found {value!r}")
        return from_plain(hint, typing.cast("Mapping[str, object]", value), where=where + ".")
    if hint is float:
        if (isinstance(value, (int, float)) and not isinstance(value, bool)) or value in ("nan", "inf", "-inf"):
            return float(typing.cast("str", value))
        raise JournalError(f"{where}: expected a number, found {value!r}")
    if hint in (int, str, bool) and (type(value) is not hint):
        raise JournalError(f"{where}: expected {typing.cast('type', hint).__name__}, found {value!r}")
    return value
