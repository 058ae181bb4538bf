"""Powers of two held as one exponent byte (E8M0), and the rounding that makes them.

The arithmetic works on the bits of float32, so the dtype float8_e8m0fnu need only be viewable as bytes.
Byte `b` stands for `2 ** (b - 127)`; byte 255 is NaN.
"""

import torch
from torch import Tensor

_MANTISSA_BITS = 23
_MANTISSA_MASK = (1 << _MANTISSA_BITS) - 1
_SUBNORMAL_2_POW_MINUS_127 = 0x00400000  # exponent byte 0 has no normal float32
_QUIET_NAN = 0x7FC00000


def decode_exponents(scale: Tensor) -> Tensor:
    """Return the powers of two that exponent bytes stand for.

    Args:
        scale: float8_e8m0fnu or uint8, any shape.

    Returns:
        float32, same shape. Byte 0 gives 2^-127 (a subnormal), byte 255 gives NaN.

    Numerics: exact.
    """
    byte = scale.view(torch.uint8).to(torch.int32)
    bits = byte << _MANTISSA_BITS
    bits = torch.where(byte == 0, torch.full_like(bits, _SUBNORMAL_2_POW_MINUS_127), bits)
    bits = torch.where(byte == 255, torch.full_like(bits, _QUIET_NAN), bits)
    return bits.view(torch.float32)


def ceil_exponents(value: Tensor) -> Tensor:
    """Return the exponent byte of the smallest power of two that is not below `value`.

    Args:
        value: float32, positive and normal (at least 2^-126).

    Returns:
        uint8, same shape: `ceil(log2(value)) + 127`, read off the bits, where no logarithm can round it.

    Source: DeepSeek-V4.1 `inference/kernel.py`, the power-of-two rounding of `act_quant`, revision dba1be0a.
    """
    bits = value.contiguous().view(torch.int32)
    exponent = (bits >> _MANTISSA_BITS) & 0xFF
    has_fraction = (bits & _MANTISSA_MASK) != 0
    return (exponent + has_fraction.to(torch.int32)).to(torch.uint8)
