"""The element types a safetensors file may declare: their width, and the torch dtype that holds them.

| stored | bits | in memory |
|---|---|---|
| F4 | 4 | `torch.float4_e2m1fn_x2`: two codes a byte, so the last axis is half the stored one |
| F6_E2M3, F6_E3M2 | 6 | raw bytes (`torch.uint8`); torch has no such type |
| all others | 8 to 64 | the torch dtype of the same layout, element for element |

Files are little-endian; so is every machine the port runs on.
"""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredDtype:
    """One element type of the file format.

    Attributes:
        name: as spelled in a header.
        bits: per element.
        torch_dtype: what a read returns; None where torch has no such type and raw bytes come back.
    """

    name: str
    bits: int
    torch_dtype: torch.dtype | None

    @property
    def is_packed(self) -> bool:
        """Whether several elements share a byte."""
        return self.bits % 8 != 0


def _table() -> dict[str, StoredDtype]:
    rows: list[tuple[str, int, torch.dtype | None]] = [
        ("BOOL", 8, torch.bool),
        ("F4", 4, torch.float4_e2m1fn_x2),
        ("F6_E2M3", 6, None),
        ("F6_E3M2", 6, None),
        ("U8", 8, torch.uint8),
        ("I8", 8, torch.int8),
        ("F8_E5M2", 8, torch.float8_e5m2),
        ("F8_E4M3", 8, torch.float8_e4m3fn),
        ("F8_E8M0", 8, torch.float8_e8m0fnu),
        ("F8_E4M3FNUZ", 8, torch.float8_e4m3fnuz),
        ("F8_E5M2FNUZ", 8, torch.float8_e5m2fnuz),
        ("I16", 16, torch.int16),
        ("U16", 16, torch.uint16),
        ("F16", 16, torch.float16),
        ("BF16", 16, torch.bfloat16),
        ("I32", 32, torch.int32),
        ("U32", 32, torch.uint32),
        ("F32", 32, torch.float32),
        ("C64", 64, torch.complex64),
        ("F64", 64, torch.float64),
        ("I64", 64, torch.int64),
        ("U64", 64, torch.uint64),
    ]
    return {name: StoredDtype(name=name, bits=bits, torch_dtype=dtype) for name, bits, dtype in rows}


STORED_DTYPES: dict[str, StoredDtype] = _table()
"""Every element type of the format, by its spelling in a header."""

STORED_NAME: dict[torch.dtype, str] = {
    stored.torch_dtype: name for name, stored in STORED_DTYPES.items() if stored.torch_dtype is not None
}
"""The header spelling of a torch dtype."""
