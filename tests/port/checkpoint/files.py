"""Small checkpoint files written by hand, sound or with one thing wrong."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

Tensor = tuple[str, str, list[int], bytes]

F32_BYTES = 4


def floats(name: str, *shape: int) -> Tensor:
    """Return an F32 tensor of zeros."""
    count = 1
    for size in shape:
        count *= size
    return name, "F32", list(shape), bytes(F32_BYTES * count)


def header_of(tensors: Sequence[Tensor]) -> dict[str, object]:
    """Return the header of tensors that lie one after the other."""
    header: dict[str, object] = {}
    offset = 0
    for name, dtype, shape, data in tensors:
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    return header


def write_shard(path: Path, *tensors: Tensor) -> None:
    """Write a sound safetensors file."""
    write_raw(path, json.dumps(header_of(tensors)), b"".join(data for *_, data in tensors))


def write_raw(path: Path, header: str | bytes, data: bytes = b"", *, length: int | None = None) -> None:
    """Write a file with any header text, data and declared header length."""
    text = header.encode() if isinstance(header, str) else header
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)


def write_index(folder: Path, weight_map: Mapping[str, object], total_size: object = None) -> None:
    """Write an index."""
    body: dict[str, object] = {"weight_map": dict(weight_map)}
    if total_size is not None:
        body["metadata"] = {"total_size": total_size}
    (folder / "model.safetensors.index.json").write_text(json.dumps(body), encoding="utf-8")
