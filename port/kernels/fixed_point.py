"""Probabilities as whole weights, and a draw from them that is exact: the same token whatever is computed beside it.

A weight is a 32-bit word held as int32, whatever its sign; sums go in halves of 16 bits, so that none passes 2^31.
A draw has two levels: columns are folded into slots, a slot is chosen by its share of the total, and a column within
it. Everything is integer, so a row's token depends on its own weights and its own random words alone.

Shape letters: N rows, V columns, S slots, M columns of a slot.
Source: deepinfer 0.1.0 Ascend sampler kernels, described in the runtime contracts, section 10.4.
Differs: the random number is scaled to the total instead of taken modulo it. Modulo, a weight that is off by one bit
(the same row in a larger batch) gives another token altogether; scaled, it gives another one only next to a boundary.
Both are off from uniform by at most 2^-32.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from port.kernels.philox import multiply_words

_HALF = 0xFFFF
_SIGN = -(1 << 31)
_WIDE = 8192
_WIDE_SLOTS = 4096
_FEWEST_SLOTS = 64
_MOST_SLOTS = 2048


def slot_count(columns: int) -> int:
    """Return S: 4096 from 8192 columns on, else the power of two that covers the columns, from 64 to 2048."""
    if columns >= _WIDE:
        return _WIDE_SLOTS
    return min(1 << (max(columns, _FEWEST_SLOTS) - 1).bit_length(), _MOST_SLOTS)


def fixed_point_weights(probability: Tensor) -> Tensor:
    """Return `trunc(p * 2^31)` as words.

    Args:
        probability: float32, from 0 to 1, any shape.

    Returns:
        int32, same shape; 1 gives 2^31, whose word is negative.

    Numerics: exact, in two steps of 15 and 16 bits.
    """
    scaled = probability * 32768.0
    upper = scaled.floor()
    lower = ((scaled - upper) * 65536.0).floor()
    return (upper.to(torch.int32) << 16) | lower.to(torch.int32)


def unit_threshold(share: Tensor) -> tuple[Tensor, Tensor]:
    """Return a share of 2^32 as a word, and whether the share is everything, which no word can say.

    Args:
        share: float32, from 0 to 1.

    Returns:
        `trunc(share * 2^32)` as int32 words, 0 where the share is 1; bool.
    """
    everything = share >= 1.0
    scaled = torch.where(everything, 0.0, share) * 65536.0
    upper = scaled.floor()
    lower = ((scaled - upper) * 65536.0).floor()
    return (upper.to(torch.int32) << 16) | lower.to(torch.int32), everything


def word_below(left: Tensor, right: Tensor) -> Tensor:
    """Return whether `left < right` with both words taken as unsigned."""
    return (left ^ _SIGN) < (right ^ _SIGN)


def draw_columns(weight_NV: Tensor, random_N2: Tensor) -> Tensor:
    """Return one column per row, each with the probability of its share of the row's weights.

    Args:
        weight_NV: int32 words (N, V); a row's sum is at least 1 and below 2^32.
        random_N2: int32 words (N, 2), the low one first.

    Returns:
        int32 (N,). The 64-bit random number, scaled to the total, is looked up in the running sums: first over slots,
        a column c being in slot c mod S, then over the slot's columns, ascending.
    """
    rows, columns = weight_NV.shape
    slots = slot_count(columns)
    depth = -(-columns // slots)
    weight_NMS = F.pad(weight_NV, (0, depth * slots - columns)).view(rows, depth, slots)
    low_NMS, high_NMS = weight_NMS & _HALF, (weight_NMS >> 16) & _HALF
    until_NS = _running_sum(_sum(low_NMS), _sum(high_NMS))
    target_N1 = _scaled(random_N2[:, 1:2], random_N2[:, 0:1], until_NS[:, -1:])
    slot_N1, before_N1 = _find(until_NS, target_N1)
    rest_N1 = _minus(target_N1, before_N1)
    index = slot_N1.to(torch.int64).unsqueeze(1).expand(rows, depth, 1)
    until_NM = _running_sum(low_NMS.gather(2, index).squeeze(2), high_NMS.gather(2, index).squeeze(2))
    place_N1, _ = _find(until_NM, rest_N1)
    return (slot_N1 + place_N1 * slots).squeeze(1)


def _sum(half_NMS: Tensor) -> Tensor:
    return half_NMS.sum(dim=1, dtype=torch.int32)


def _running_sum(low: Tensor, high: Tensor) -> Tensor:
    """Return inclusive sums along the last axis as words; each half may hold up to 31 bits when it comes in."""
    high = (high + (low >> 16)) & _HALF  # what passes 32 bits in all is lost: sums of weights stay below
    low = (low & _HALF).cumsum(dim=-1, dtype=torch.int32)
    high = high.cumsum(dim=-1, dtype=torch.int32) + (low >> 16)
    return (low & _HALF) | (high << 16)


def _find(until: Tensor, target_N1: Tensor) -> tuple[Tensor, Tensor]:
    """Return the first place whose running sum passes the target, and the sum before it; int32 (N, 1) each."""
    passed = ~word_below(target_N1, until)
    place = passed.sum(dim=-1, keepdim=True, dtype=torch.int32).clamp(max=until.shape[-1] - 1)
    before = until.gather(1, (place - 1).clamp(min=0).to(torch.int64))
    return place, torch.where(place > 0, before, 0)


def _scaled(high: Tensor, low: Tensor, total: Tensor) -> Tensor:
    """Return `(high * 2^32 + low) * total / 2^64`, rounded down; words."""
    carried, _ = multiply_words(total, low)
    upper, lower = multiply_words(total, high)
    # Only what passes 32 bits of the sum of the middle words counts.
    halves = (lower & _HALF) + (carried & _HALF)
    top = ((lower >> 16) & _HALF) + ((carried >> 16) & _HALF) + (halves >> 16)
    return upper + (top >> 16)


def _minus(left: Tensor, right: Tensor) -> Tensor:
    """Return the difference of two words, modulo 2^32."""
    low = (left & _HALF) - (right & _HALF)
    high = ((left >> 16) & _HALF) - ((right >> 16) & _HALF) + (low >> 16)
    return (low & _HALF) | (high << 16)
