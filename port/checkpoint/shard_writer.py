"""Safetensors files written byte by byte: the same tensors give the same bytes, on any machine and library version.

Tensors lie widest elements first, then by name, as the safetensors library lays them; the header is padded with blanks
to a multiple of 8 bytes. A weight and its scale go into one shard, and every Engram table gets a shard of its own at
the end, as in the release.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from port.checkpoint.dtypes import STORED_DTYPES, STORED_NAME
from port.checkpoint.index_file import INDEX_NAME
from port.checkpoint.slices import is_table

_METADATA = {"format": "pt"}


def shard_bytes(tensors: Mapping[str, Tensor]) -> bytes:
    """Return the bytes of one safetensors file."""
    header: dict[str, object] = {"__metadata__": _METADATA}
    names = sorted(tensors, key=lambda name: (-STORED_DTYPES[_stored_name(tensors[name])].bits, name))
    data: list[bytes] = []
    offset = 0
    for name in names:
        tensor = tensors[name].contiguous()
        content = tensor.view(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
        header[name] = {
            "dtype": _stored_name(tensor),
            "shape": list(tensor.shape),
            "data_offsets": [offset, offset + len(content)],
        }
        data.append(content)
        offset += len(content)
    text = json.dumps(header, separators=(",", ":")).encode("utf-8")
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + b"".join(data)


def write_shards(folder: Path, tensors: Mapping[str, Tensor], *, target_bytes: int) -> tuple[str, ...]:
    """Write tensors as numbered shards with an index, and return the names of the shards.

    Args:
        folder: exists; files in it are overwritten.
        tensors: by name, in model order.
        target_bytes: a shard is closed once it holds as much.
    """
    groups = list(_shards(tensors, target_bytes))
    files = [f"model-{number:05d}-of-{len(groups):05d}.safetensors" for number in range(1, len(groups) + 1)]
    weight_map: dict[str, str] = {}
    for file, names in zip(files, groups, strict=True):
        (folder / file).write_bytes(shard_bytes({name: tensors[name] for name in names}))
        weight_map.update(dict.fromkeys(names, file))
    index = {
        "metadata": {"total_size": sum(tensor.nbytes for tensor in tensors.values())},
        "weight_map": dict(sorted(weight_map.items())),
    }
    (folder / INDEX_NAME).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
    return tuple(files)


def _shards(tensors: Mapping[str, Tensor], target_bytes: int) -> Iterator[Sequence[str]]:
    """Yield the names of each shard; a weight is never parted from its scale."""
    tables = [group for group in _pairs(tensors) if is_table(group[0])]
    names: list[str] = []
    nbytes = 0
    for group in _pairs(tensors):
        if group in tables:
            continue
        names += group
        nbytes += sum(tensors[name].nbytes for name in group)
        if nbytes >= target_bytes:
            yield names
            names, nbytes = [], 0
    if names:
        yield names
    yield from tables


def _pairs(tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, ...]]:
    for name in tensors:
        scale = name.removesuffix(".weight") + ".scale"
        if name.endswith(".weight") and scale in tensors:
            yield name, scale
        elif not (name.endswith(".scale") and name.removesuffix(".scale") + ".weight" in tensors):
            yield (name,)


def _stored_name(tensor: Tensor) -> str:
    return STORED_NAME[tensor.dtype]
