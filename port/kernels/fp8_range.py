"""Stored FP8 weights brought into a smaller range of codes, as a device with a shorter e4m3 reads them.

trn2's e4m3 has infinities where e4m3fn has its codes from 256 to 448, and ends at 240 (documented). A tile that holds a
larger code is halved as a whole, and its scale is doubled: the numbers stay what they are. Only codes below 2^-5 can
lose, those whose half falls between two subnormal codes; they go to the nearer one, ties to even, off by at most 2^-10
times the old scale, a 2^-18th of the tile's largest element or less.

Shape letters: N rows, K columns.
"""

import torch
from torch import Tensor

_MAGNITUDE = 0x7F
_SIGN = 0x80
_NAN = 0x7F
_EXPONENT_STEP = 8
_LAST_EXPONENT = 254


def largest_code(limit: float) -> int:
    """Return the byte of the largest e4m3fn number that is at most `limit`.

    Raises:
        ValueError: a limit below 1 or above 448: halving once could not keep to it, or there is nothing above it.
    """
    if not 224.0 <= limit <= 448.0:
        raise ValueError(f"fp8 limit: expected 224 to 448, so that one halving is enough; found {limit:g}.")
    codes = torch.arange(_NAN, dtype=torch.uint8).view(torch.float8_e4m3fn).to(torch.float32)
    return int((codes <= limit).sum()) - 1


def halve_fp8_codes(code: Tensor) -> Tensor:
    """Return the codes of half the numbers, rounded to nearest, ties to even.

    Args:
        code: uint8, bytes of e4m3fn without NaN.

    Returns:
        uint8, same shape. Exact from 2^-5 on; below, the grid of 2^-9 decides.
    """
    magnitude = code & _MAGNITUDE
    # Up to byte 15 the byte counts steps of 2^-9, and so does its half; above, one exponent less is half.
    small = (magnitude + ((magnitude >> 1) & 1)) >> 1
    halved = torch.where(magnitude < 2 * _EXPONENT_STEP, small, magnitude - _EXPONENT_STEP)
    return halved | (code & _SIGN)


def limit_fp8_tiles(code_NK: Tensor, scale: Tensor, *, block: tuple[int, int], limit: float) -> tuple[Tensor, Tensor]:
    """Return codes and scales of the same numbers with no code above `limit`.

    Args:
        code_NK: uint8 (N, K), bytes of e4m3fn.
        scale: uint8 exponents (ceil(N / block[0]), ceil(K / block[1])).
        block: rows and columns that share a scale.
        limit: 224 to 448.

    Returns:
        The same shapes and dtypes; tiles that kept to the limit are unchanged.

    Raises:
        ValueError: a NaN code or scale, or a scale of 254 on a tile that must be halved, which the next byte could not
            hold. Reads values: for loading, not for a graph.
    """
    rows, columns = code_NK.shape
    magnitude = code_NK & _MAGNITUDE
    if bool((magnitude == _NAN).any()):
        raise ValueError("expected finite FP8 codes; found NaN (0x7f or 0xff).")
    tiles = (scale.shape[0], block[0], scale.shape[1], block[1])
    if rows == tiles[0] * tiles[1] and columns == tiles[2] * tiles[3]:
        padded = magnitude
    else:
        padded = magnitude.new_zeros(tiles[0] * tiles[1], tiles[2] * tiles[3])
        padded[:rows, :columns] = magnitude
    over = padded.view(tiles).amax(dim=(1, 3)) > largest_code(limit)
    if bool((scale == _LAST_EXPONENT + 1).any()):
        raise ValueError("expected finite scales; found NaN (exponent byte 255).")
    if bool((over & (scale >= _LAST_EXPONENT)).any()):
        where = (over & (scale >= _LAST_EXPONENT)).nonzero()[0].tolist()
        raise ValueError(
            f"tile {where}: expected an exponent byte of at most 253, since the tile holds codes above {limit:g} and "
            "its scale must be doubled; found 254, the largest there is."
        )
    if not bool(over.any()):
        return code_NK, scale
    everywhere = over.repeat_interleave(block[0], dim=0)[:rows].repeat_interleave(block[1], dim=1)[:, :columns]
    return torch.where(everywhere, halve_fp8_codes(code_NK), code_NK), scale + over.to(torch.uint8)
