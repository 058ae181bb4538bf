"""Tensors into a journal and out of it: one-line summaries, bytes for the side file, and tensors back from it.

The part of the journal that needs torch; the journal itself does not.
"""

from __future__ import annotations

import hashlib
import math
from typing import TypedDict

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from workbench.errors import JournalError
from workbench.journal import Journal

_STORED_NAME: dict[torch.dtype, str] = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.uint16: "U16",
    torch.int16: "I16",
    torch.uint32: "U32",
    torch.int32: "I32",
    torch.uint64: "U64",
    torch.int64: "I64",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.float8_e8m0fnu: "F8_E8M0",
    torch.float8_e4m3fnuz: "F8_E4M3FNUZ",
    torch.float8_e5m2fnuz: "F8_E5M2FNUZ",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float32: "F32",
    torch.float64: "F64",
    torch.complex64: "C64",
}
_TORCH_DTYPE = {name: dtype for dtype, name in _STORED_NAME.items()}


class SummaryFields(TypedDict, total=False):
    """The fields of a `TensorSummary` that come from the tensor alone; the figures are absent in `dry`."""

    shape: tuple[int, ...]
    dtype: str
    device: str
    min: float | None
    max: float | None
    mean: float | None
    std: float | None
    norm: float | None
    nan_count: int | None
    inf_count: int | None
    zero_count: int | None
    digest: str


def has_numbers(tensor: Tensor) -> bool:
    """Say whether the tensor holds values; fake and meta tensors do not."""
    return not (tensor.is_meta or isinstance(tensor, FakeTensor))


def dtype_name(dtype: torch.dtype) -> str:
    """Return the torch spelling without `torch.`."""
    return str(dtype).removeprefix("torch.")


def tensor_text(tensor: Tensor) -> str:
    """Return `dtype[shape]@device`, as error messages spell a tensor."""
    shape = ", ".join(str(size) for size in tensor.shape)
    return f"{dtype_name(tensor.dtype)}[{shape}]@{tensor.device}"


def on_host(tensor: Tensor) -> Tensor:
    """Return a detached copy or view on the CPU, dense and row-major."""
    host = tensor.detach().to("cpu")
    return (host if host.layout is torch.strided else host.to_dense()).contiguous()


def as_float64(tensor: Tensor) -> Tensor:
    """Return the values as float64 on the CPU; exact for every dtype but 64-bit integers beyond 2**53."""
    host = on_host(tensor)
    if host.dtype.is_complex:
        host = torch.view_as_real(host)
    # Narrow floats are widened through float32: several have no direct conversion to float64.
    return (host.float() if host.dtype.itemsize == 1 and host.dtype.is_floating_point else host).to(torch.float64)


def tensor_bytes(tensor: Tensor) -> bytes:
    """Return the elements row-major, little-endian, as a safetensors file holds them."""
    host = on_host(tensor)
    if host.numel() == 0:
        return b""
    return host.reshape(-1).view(torch.uint8).numpy().tobytes()


def summarize(tensor: Tensor) -> SummaryFields:
    """Return the fields of a `TensorSummary`: shape and dtype always, figures where there are numbers.

    Numerics: minimum, maximum, mean, deviation (of the population) and norm are over the finite elements, in float64.
    """
    fields = SummaryFields(
        shape=tuple(int(size) for size in tensor.shape), dtype=dtype_name(tensor.dtype), device=str(tensor.device)
    )
    if not has_numbers(tensor):
        return fields
    values = as_float64(tensor).reshape(-1)
    finite = values[torch.isfinite(values)]
    fields["nan_count"] = int(values.isnan().sum())
    fields["inf_count"] = int(values.isinf().sum())
    fields["zero_count"] = int((values == 0).sum())
    fields["digest"] = hashlib.sha256(tensor_bytes(tensor)).hexdigest()[:16]
    if finite.numel():
        mean = finite.mean().item()
        fields["min"], fields["max"], fields["mean"] = finite.min().item(), finite.max().item(), mean
        fields["std"] = math.sqrt(max(0.0, (finite - mean).square().mean().item()))
        fields["norm"] = finite.norm().item()
    return fields


def keep_tensor(journal: Journal, key: str, tensor: Tensor) -> str | None:
    """Store a tensor in the journal's side file and return its key, None for a tensor without numbers.

    Raises:
        JournalError: a dtype that a safetensors file cannot hold.
    """
    if not has_numbers(tensor):
        return None
    if tensor.dtype not in _STORED_NAME:
        raise JournalError(
            f"capture {key!r}: {tensor_text(tensor)} cannot be stored; expected one of {', '.join(_TORCH_DTYPE)}"
        )
    return journal.keep(key, _STORED_NAME[tensor.dtype], tuple(tensor.shape), tensor_bytes(tensor))


def captured_tensor(journal: Journal, key: str) -> Tensor:
    """Return a captured tensor, on the CPU, in the dtype it was captured in.

    Raises:
        JournalError: no such key, or a dtype torch does not have.
    """
    stored = journal.capture(key)
    if stored.dtype not in _TORCH_DTYPE:
        raise JournalError(f"capture {key!r}: torch has no dtype for {stored.dtype!r}")
    dtype = _TORCH_DTYPE[stored.dtype]
    if not stored.data:
        return torch.empty(stored.shape, dtype=dtype)
    return torch.frombuffer(bytearray(stored.data), dtype=torch.uint8).view(dtype).reshape(stored.shape)
