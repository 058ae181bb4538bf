"""Codes and scales on their way out of a kernel: in the caller's 8-bit dtype, and packed as the platform packs them."""

import torch
from torch import Tensor

from port.kernels.exponents import decode_exponents


def scale_dtype() -> torch.dtype:
    """Return the integer dtype that E8M0 bytes are packed into, little endian: `PLATFORM.fp8_sf_type`."""
    from port.platform import PLATFORM

    return PLATFORM.fp8_sf_type


def write_codes(out: Tensor, codes: Tensor) -> None:
    """Write FP8 or FP4 codes, whatever 8-bit dtype either side has."""
    out.view(torch.uint8).copy_(codes.view(torch.uint8))


def write_exponents(out: Tensor, exponents: Tensor) -> None:
    """Write E8M0 scales: as float32 numbers, or their bytes as wider integers."""
    if out.dtype == torch.float32:
        out.copy_(decode_exponents(exponents))
    else:
        out.copy_(exponents.view(torch.uint8).contiguous().view(out.dtype))
