"""The tensors inside a value, and the storages behind a tensor."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

Storage = torch.UntypedStorage


def tensors_in(value: object) -> Iterator[Tensor]:
    """Give every tensor of nested tuples, lists, mappings and dataclasses; parts of wrapper tensors in their place."""
    if isinstance(value, Tensor):
        yield from _parts(value)
    elif isinstance(value, (tuple, list, set, frozenset)):
        for item in value:
            yield from tensors_in(item)
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors_in(item)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for spec in dataclasses.fields(value):
            yield from tensors_in(getattr(value, spec.name, None))


def storage_of(tensor: Tensor) -> Storage | None:
    """Return the storage of a strided tensor, None for a tensor without one."""
    try:
        return tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):
        return None


def _parts(tensor: Tensor) -> Iterator[Tensor]:
    if is_traceable_wrapper_subclass(tensor):
        names, _ = tensor.__tensor_flatten__()
        for name in names:
            yield from _parts(getattr(tensor, name))
    elif tensor.layout is torch.strided:
        yield tensor
    else:
        yield from _sparse_parts(tensor)


def _sparse_parts(tensor: Tensor) -> Iterator[Tensor]:
    if tensor.layout is torch.sparse_coo:
        yield tensor._indices()
        yield tensor._values()
    elif tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        yield from (tensor.crow_indices(), tensor.col_indices(), tensor.values())
    elif tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        yield from (tensor.ccol_indices(), tensor.row_indices(), tensor.values())
