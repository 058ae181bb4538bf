"""One stored tensor, as its header describes it: where its bytes lie and how to read them."""

from dataclasses import dataclass
from math import prod

import torch

from port.checkpoint.dtypes import STORED_DTYPES


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorEntry:
    """One tensor of a checkpoint.

    Attributes:
        name: name in the model, without an optional leading `model.`.
        shape: stored shape, in elements (an F4 axis counts codes, not bytes).
        dtype: element type as the header spells it, as in "F8_E4M3".
        file: file name relative to the checkpoint folder, with forward slashes.
        offset: first byte, counted from the start of the file.
        nbytes: bytes stored.
        stored_name: spelling in the file where it differs from `name`, else None.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    file: str
    offset: int
    nbytes: int
    stored_name: str | None = None

    @property
    def element_count(self) -> int:
        """Elements, 1 for a scalar."""
        return prod(self.shape)

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype a read returns; `torch.uint8` for raw bytes of a type torch does not have."""
        return STORED_DTYPES[self.dtype].torch_dtype or torch.uint8

    @property
    def torch_shape(self) -> tuple[int, ...]:
        """The shape a read returns: the last axis counts bytes where several elements share one.

        A packed tensor whose last axis does not end on a byte border comes back as one axis of bytes.
        """
        stored = STORED_DTYPES[self.dtype]
        if not stored.is_packed:
            return self.shape
        row_bits = (self.shape[-1] if self.shape else 1) * stored.bits
        return (*self.shape[:-1], row_bits // 8) if self.shape and row_bits % 8 == 0 else (self.nbytes,)

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}{list(self.shape)} in {self.file}"
