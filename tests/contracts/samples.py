"""A made-up instance of any record, filled from the types of its fields: what the laws of records and views use."""

from __future__ import annotations

import dataclasses
import types
import typing

from workbench.records import KINDS, Record, Stamp

STAMP = Stamp(seq=3, step=2, module="layers.1.attn", phase="decode", elapsed_s=0.5)


def sample(record: type[Record], *, empty: bool = False) -> Record:
    """Return an instance of a kind of record.

    Args:
        record: its class.
        empty: leave every sequence empty and every optional field None; otherwise both are filled.
    """
    hints = typing.get_type_hints(record)
    values = {field.name: _value(hints[field.name], empty) for field in dataclasses.fields(record)}
    return record(**{**values, "stamp": STAMP})


def samples() -> list[Record]:
    """Return two instances of every kind, one filled and one sparse."""
    return [sample(record, empty=empty) for record in KINDS.values() for empty in (False, True)]


def _value(hint: object, empty: bool) -> object:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return None if empty and type(None) in args else _value(args[0], empty)
    if origin is typing.Literal:
        return args[-1] if empty else args[0]
    if origin is tuple:
        if len(args) == 2 and args[1] is Ellipsis:
            return () if empty else (_value(args[0], empty), _value(args[0], empty))
        return tuple(_value(one, empty) for one in args)
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        hints = typing.get_type_hints(hint)
        return hint(**{field.name: _value(hints[field.name], empty) for field in dataclasses.fields(hint)})
    plain = {
        bool: not empty,
        int: 0 if empty else 7,
        float: 0.0 if empty else 0.25,
        str: "" if empty else "text <planted>",
    }
    if hint in plain:
        return plain[typing.cast("type", hint)]
    raise TypeError(f"no sample for a field of type {hint}; add one to {__name__}")
