"""Random words from a counter: Philox4x32-10, in int32 operations that a device without 64-bit integers can do.

A word is 32 bits held as int32, whatever its sign. No product here passes 2^24 and no sum passes 2^31, so the results
are exact also where integers go through a float32 unit.

A draw is addressed, not made in turn: the key is the seed, the upper half of the counter is the sequence number, as
cuRAND places a subsequence, and the lower half counts blocks of four words, from 0. So a draw depends on its seed and
its sequence only. Which generator the Ascend kernels use is not visible in their source; this layout is the port's.

Source: Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011 (Random123).
"""

import torch
from torch import Tensor

_MULTIPLIER_0 = 0xD2511F53
_MULTIPLIER_1 = 0xCD9E8D57
_WEYL_0 = 0x9E3779B9
_WEYL_1 = 0xBB67AE85
_ROUNDS = 10
_HALF = 0xFFFF


def philox4x32(counter: Tensor, key: Tensor, *, rounds: int = _ROUNDS) -> Tensor:
    """Return four random words per counter.

    Args:
        counter: int32 (..., 4), word 0 lowest.
        key: int32 (..., 2).
        rounds: 10 is the standard.

    Returns:
        int32 (..., 4).
    """
    c0, c1, c2, c3 = counter.unbind(-1)
    k0, k1 = key.unbind(-1)
    for _ in range(rounds):
        high_0, low_0 = multiply_words(c0, _MULTIPLIER_0)
        high_1, low_1 = multiply_words(c2, _MULTIPLIER_1)
        c0, c1, c2, c3 = high_1 ^ c1 ^ k0, low_1, high_0 ^ c3 ^ k1, low_0
        k0, k1 = _plus(k0, _WEYL_0), _plus(k1, _WEYL_1)
    return torch.stack((c0, c1, c2, c3), dim=-1)


def draw_words(seed_N: Tensor, position_N: Tensor, *, case: int) -> Tensor:
    """Return the four words of one draw per row.

    Args:
        seed_N: uint64 or int64 (N,), or int32 (N, 2) with the low word first.
        position_N: int32 (N,), at least 0.
        case: 0 a fresh draw, 1 a residual draw or a draft, 2 an acceptance test; sequence = 3 * position + case.

    Returns:
        int32 (N, 4).
    """
    key = seed_N.view(torch.int32).view(-1, 2) if seed_N.element_size() == 8 else seed_N
    high, low = multiply_words(position_N, 3)
    low_half = (low & _HALF) + case
    carry = low_half >> 16
    high_half = ((low >> 16) & _HALF) + carry
    sequence_low = (low_half & _HALF) | (high_half << 16)
    sequence_high = high + (high_half >> 16)
    zero = torch.zeros_like(position_N)
    return philox4x32(torch.stack((zero, zero, sequence_low, sequence_high), dim=-1), key)


def multiply_words(word: Tensor, factor: int | Tensor) -> tuple[Tensor, Tensor]:
    """Return the high and the low word of `word * factor`, both taken as unsigned.

    Args:
        word: int32, any shape.
        factor: from 0 to 2^32 - 1, or int32 words of a shape that fits.

    Returns:
        Two int32 tensors of the common shape.
    """
    low, high = word & _HALF, (word >> 16) & _HALF
    # Digits of 16 bits; a byte of the factor times a half of the word takes 24 bits.
    digits: list[Tensor] = [torch.zeros_like(word)] * 5
    for place in range(4):
        byte = (factor >> (8 * place)) & 0xFF
        for shift, half in ((0, low), (1, high)):
            product = half * byte
            first = place // 2 + shift
            if place % 2 == 0:
                digits[first] = digits[first] + (product & _HALF)
                digits[first + 1] = digits[first + 1] + (product >> 16)
            else:
                digits[first] = digits[first] + ((product & 0xFF) << 8)
                digits[first + 1] = digits[first + 1] + (product >> 8)
    for place in range(3):
        digits[place + 1] = digits[place + 1] + (digits[place] >> 16)
    d0, d1, d2, d3 = (digit & _HALF for digit in digits[:4])
    return d2 | (d3 << 16), d0 | (d1 << 16)


def _plus(word: Tensor, constant: int) -> Tensor:
    low = (word & _HALF) + (constant & _HALF)
    high = ((word >> 16) & _HALF) + (constant >> 16) + (low >> 16)
    return (low & _HALF) | (high << 16)
