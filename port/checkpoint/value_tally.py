"""Counts the codes of one quantised weight, piece by piece: NaN, codes above a device's range, what halving would do.

Host e4m3 (`float8_e4m3fn`) reaches 448; the e4m3 of the device ends at 240 and reads the codes above as infinity or
NaN. Halving the codes and doubling the scale of a tile keeps every number, as long as no halved code falls off the
subnormal grid.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from port.checkpoint.codecs import QuantizedTensor
from port.checkpoint.scales import QuantizedEntry
from port.kernels.exponents import decode_exponents

DEVICE_FP8_MAX = 240.0
_SHOWN = 8
_E4M3_NAN = 0x7F
_E4M3_ABOVE_240 = 0x78
_E5M2_INFINITY = 0x7C
_Codes = npt.NDArray[np.uint8]
_Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class HalvingFix:
    """What becomes of a weight when codes are halved and scales doubled in the tiles that hold a code above 240.

    Attributes:
        exact: whether every number stays the same.
        inexact_count: codes that would change; only odd codes in the two lowest binades can.
        max_abs: largest magnitude of a code afterwards.
        tile_count: tiles that change.
        scale: the largest changed scale, as a number, afterwards.
    """

    exact: bool
    inexact_count: int
    max_abs: float
    tile_count: int
    scale: float

    def __str__(self) -> str:
        tiles = f"{self.tile_count} tile{'' if self.tile_count == 1 else 's'}"
        outcome = "exact for every value" if self.exact else f"exact but for {self.inexact_count} small codes"
        return f"halve the stored values and double the scale of {tiles}: {outcome}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueReport:
    """The stored values of one quantised weight.

    Attributes:
        name: of the weight.
        element_count: elements of the weight.
        max_abs: largest magnitude among the codes, before the scale; NaN codes left out.
        above_device_count: codes above 240.
        above_device_codes: the first few of them, as stored bytes.
        nan_value_count, nan_value_indices: NaN codes, and where the first few are (row, column).
        nan_scale_count, nan_scale_indices: NaN or infinite scales, and where the first few are in the scale tensor.
        nan_element_count: elements that are NaN after dequantising, from either cause.
        fix: what halving would do; None when no code is above 240.
    """

    name: str
    element_count: int
    max_abs: float
    above_device_count: int
    above_device_codes: tuple[int, ...]
    nan_value_count: int
    nan_value_indices: tuple[tuple[int, int], ...]
    nan_scale_count: int
    nan_scale_indices: tuple[tuple[int, int], ...]
    nan_element_count: int
    fix: HalvingFix | None

    @property
    def ok(self) -> bool:
        """Whether there is nothing to say."""
        return not (self.above_device_count or self.nan_element_count)


class ValueTally:
    """Adds up the pieces of one weight; single use."""

    def __init__(self, entry: QuantizedEntry) -> None:
        self.entry = entry
        self.histogram = np.zeros(256, dtype=np.int64)
        self.nan_values: list[tuple[int, int]] = []
        self.nan_scales: list[tuple[int, int]] = []
        self.above: list[int] = []
        self.nan_value_count = self.nan_scale_count = self.nan_elements = 0
        self.tile_count = self.inexact_count = 0
        self.max_abs_after = 0
        self.largest_scale = 0.0

    def add(self, piece: QuantizedTensor, first_row: int) -> None:
        """Count one piece, whose rows begin at `first_row` and on a tile border."""
        codes: _Codes = piece.weight.contiguous().view(torch.uint8).numpy()
        scale = _scale_numbers(piece)
        bad_scale: _Mask = ~np.isfinite(scale)
        self.histogram += np.bincount(codes.ravel(), minlength=256)
        bad_area: _Mask | None = None
        if bad_scale.any():
            tile_row = first_row // self.entry.block[0]
            self.nan_scale_count += int(bad_scale.sum())
            self.nan_scales += _first(bad_scale, tile_row, _SHOWN - len(self.nan_scales))
            bad_area = self._to_elements(bad_scale, piece.shape)
            self.nan_elements += int(bad_area.sum())
        if self.entry.packed:
            return  # every FP4 code is a number
        magnitude: _Codes = np.bitwise_and(codes, np.uint8(0x7F))
        is_e4m3 = self.entry.weight.dtype == "F8_E4M3"
        bad: _Mask = magnitude == _E4M3_NAN if is_e4m3 else magnitude > _E5M2_INFINITY
        if bad.any():
            self.nan_value_count += int(bad.sum())
            self.nan_values += _first(bad, first_row, _SHOWN - len(self.nan_values))
            self.nan_elements += int((bad & ~bad_area).sum() if bad_area is not None else bad.sum())
        if is_e4m3:
            self._count_above(codes, magnitude, scale)

    def _count_above(self, codes: _Codes, magnitude: _Codes, scale: npt.NDArray[np.float32]) -> None:
        above: _Mask = (magnitude >= _E4M3_ABOVE_240) & (magnitude != _E4M3_NAN)
        if not above.any():
            self.max_abs_after = max(self.max_abs_after, _largest(magnitude))
            return
        self.above += [int(code) for code in codes[above][: _SHOWN - len(self.above)]]
        rows, columns = self.entry.block
        tiles = np.zeros(scale.shape, dtype=np.bool_)
        at_row, at_column = np.nonzero(above)
        tiles[at_row // rows, at_column // columns] = True
        affected = self._to_elements(tiles, (codes.shape[0], codes.shape[1]))
        self.tile_count += int(tiles.sum())
        # Below 2^-5 (two lowest binades, codes under 0x10) an odd code has no half on the grid.
        self.inexact_count += int((affected & (magnitude < 0x10) & (magnitude & 1 == 1)).sum())
        self.largest_scale = max(self.largest_scale, float(np.nanmax(scale[tiles])) * 2)
        halved = magnitude - 8 * (affected & (magnitude >= 0x10) & (magnitude != _E4M3_NAN)).astype(np.uint8)
        self.max_abs_after = max(self.max_abs_after, _largest(halved))

    def _to_elements(self, tiles: _Mask, shape: tuple[int, int]) -> _Mask:
        rows, columns = self.entry.block
        return tiles.repeat(rows, axis=0)[: shape[0]].repeat(columns, axis=1)[:, : shape[1]]

    def report(self) -> ValueReport:
        """Return what was counted."""
        is_e4m3 = self.entry.weight.dtype == "F8_E4M3"
        seen = [code for code in range(256) if self.histogram[code]]
        above_count = int(sum(self.histogram[code] for code in seen if _E4M3_ABOVE_240 <= code & 0x7F < _E4M3_NAN))
        fix = None
        if is_e4m3 and above_count:
            fix = HalvingFix(
                exact=self.inexact_count == 0,
                inexact_count=self.inexact_count,
                max_abs=_e4m3_number(self.max_abs_after),
                tile_count=self.tile_count,
                scale=self.largest_scale,
            )
        return ValueReport(
            name=self.entry.name,
            element_count=self.entry.shape[0] * self.entry.shape[1],
            max_abs=_max_abs(self.entry, seen),
            above_device_count=above_count if is_e4m3 else 0,
            above_device_codes=tuple(self.above),
            nan_value_count=self.nan_value_count,
            nan_value_indices=tuple(self.nan_values),
            nan_scale_count=self.nan_scale_count,
            nan_scale_indices=tuple(self.nan_scales),
            nan_element_count=self.nan_elements,
            fix=fix,
        )


def _scale_numbers(piece: QuantizedTensor) -> npt.NDArray[np.float32]:
    if piece.scale_kind == "number":
        return piece.scale.to(torch.float32).numpy()
    return decode_exponents(piece.scale.contiguous()).numpy()


def _first(mask: _Mask, row_offset: int, count: int) -> list[tuple[int, int]]:
    if count <= 0:
        return []
    return [(int(row) + row_offset, int(column)) for row, column in np.argwhere(mask)[:count]]


def _largest(magnitude: _Codes) -> int:
    finite = magnitude[magnitude != _E4M3_NAN]
    return int(finite.max()) if finite.size else 0


def _e4m3_number(code: int) -> float:
    return float(torch.tensor([code], dtype=torch.uint8).view(torch.float8_e4m3fn).to(torch.float32))


def _max_abs(entry: QuantizedEntry, seen: list[int]) -> float:
    codes = torch.tensor(seen, dtype=torch.uint8)
    numbers = _code_numbers(entry, codes)
    finite = numbers[torch.isfinite(numbers)]
    return float(finite.abs().max()) if finite.numel() else 0.0


def _code_numbers(entry: QuantizedEntry, codes: Tensor) -> Tensor:
    if entry.packed:
        return QuantizedTensor(
            name=entry.name,
            weight=codes.view(-1, 1),
            scale=torch.full((codes.numel(), 1), 127, dtype=torch.uint8),
            block=(1, 2),
            packed=True,
        ).dequantize()
    dtype = torch.float8_e5m2 if entry.weight.dtype == "F8_E5M2" else torch.float8_e4m3fn
    return codes.view(dtype).to(torch.float32)
