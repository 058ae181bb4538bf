"""FP8 weights brought into the range of a device while they are loaded, and what that cost.

The arithmetic is in `port/kernels/fp8_range.py`; here a tensor is walked in pieces, so that a table of a gigabyte takes
no second one, and every change is counted.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from port.errors import CheckpointError
from port.kernels.exponents import decode_exponents
from port.kernels.fp8_range import limit_fp8_tiles

_PIECE_ELEMENTS = 32 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Fp8RangeReport:
    """What bringing weights into a range changed.

    Attributes:
        limit: largest magnitude of a code afterwards.
        tensors: FP8 weights looked at.
        tensors_changed: those with a code above the limit.
        tiles, tiles_halved: groups of elements that share a scale.
        elements, elements_halved: in all, and in halved tiles.
        elements_rounded: those whose number changed, because half of it lies between two codes.
        largest_change: of a number, absolute.
        largest_change_of_tile: of a number, as a share of its tile's largest one.
    """

    limit: float
    tensors: int = 0
    tensors_changed: int = 0
    tiles: int = 0
    tiles_halved: int = 0
    elements: int = 0
    elements_halved: int = 0
    elements_rounded: int = 0
    largest_change: float = 0.0
    largest_change_of_tile: float = 0.0

    def __add__(self, other: "Fp8RangeReport") -> "Fp8RangeReport":
        """Return both together; the limits are the same."""
        return Fp8RangeReport(
            limit=self.limit,
            tensors=self.tensors + other.tensors,
            tensors_changed=self.tensors_changed + other.tensors_changed,
            tiles=self.tiles + other.tiles,
            tiles_halved=self.tiles_halved + other.tiles_halved,
            elements=self.elements + other.elements,
            elements_halved=self.elements_halved + other.elements_halved,
            elements_rounded=self.elements_rounded + other.elements_rounded,
            largest_change=max(self.largest_change, other.largest_change),
            largest_change_of_tile=max(self.largest_change_of_tile, other.largest_change_of_tile),
        )

    def __str__(self) -> str:
        return (
            f"FP8 codes kept within {self.limit:g}: {self.tiles_halved:,} of {self.tiles:,} tiles halved in "
            f"{self.tensors_changed} of {self.tensors} weights; {self.elements_rounded:,} of {self.elements:,} "
            f"elements rounded, by at most {self.largest_change:.3g}, a share of {self.largest_change_of_tile:.3g} of "
            "their tile's largest"
        )


def limit_fp8_weight(name: str, weight: Tensor, scale: Tensor, *, limit: float) -> Fp8RangeReport:
    """Keep the codes of one weight within a limit, in place, and return what changed.

    Args:
        name: of the weight, for errors.
        weight: float8_e4m3fn (N, K), on the host; changed.
        scale: float8_e8m0fnu, a byte per 32 x 32 tile or per row and 32 columns; changed.
        limit: 224 to 448.

    Raises:
        CheckpointError: NaN among codes or scales, a scale that cannot be doubled, or one that does not fit the weight.
            Nothing of the piece it was found in has changed.
    """
    rows, columns = weight.shape
    across = -(-columns // 32)
    down = {-(-rows // 32): 32, rows: 1}.get(scale.shape[0])
    if down is None or scale.shape[1] != across:
        raise CheckpointError(
            f"{name}: expected scales per 32 x 32 tile or per row and 32 columns of {list(weight.shape)}; found "
            f"{list(scale.shape)}."
        )
    codes, exponents = weight.view(torch.uint8), scale.view(torch.uint8)
    step = max(_PIECE_ELEMENTS // max(columns, 1) // 32 * 32, 32)
    report = Fp8RangeReport(limit=limit)
    for begin in range(0, rows, step):
        part = slice(begin, min(begin + step, rows))
        groups = slice(begin // down, -(-part.stop // down))
        old_codes, old_scales = codes[part], exponents[groups]
        try:
            new_codes, new_scales = limit_fp8_tiles(old_codes, old_scales, block=(down, 32), limit=limit)
        except ValueError as error:
            raise CheckpointError(
                f"{name}, rows {part.start} to {part.stop - 1}: {error} This weight cannot be brought into the range "
                "of the device; load it with a profile that keeps 448, on the host."
            ) from None
        report = report + _changes(old_codes, old_scales, new_codes, new_scales, down, limit)
        if new_codes is not old_codes:
            codes[part] = new_codes
            exponents[groups] = new_scales
    changed = int(report.tiles_halved > 0)
    return report + Fp8RangeReport(limit=limit, tensors=1, tensors_changed=changed)


def _changes(
    codes: Tensor, scales: Tensor, new_codes: Tensor, new_scales: Tensor, down: int, limit: float
) -> Fp8RangeReport:
    plain = Fp8RangeReport(limit=limit, tiles=scales.numel(), elements=codes.numel())
    if new_codes is codes:
        return plain
    halved = new_scales != scales
    everywhere = _per_element(halved, codes, down)
    old = codes.view(torch.float8_e4m3fn).to(torch.float32)
    new = new_codes.view(torch.float8_e4m3fn).to(torch.float32) * torch.where(everywhere, 2.0, 1.0)
    change = (new - old).abs()  # in units of the old scale
    factor = _per_element(decode_exponents(scales), codes, down)
    # Every halved tile has a code above the limit; measured against that, the share is never told too small.
    return Fp8RangeReport(
        limit=limit,
        tiles=plain.tiles,
        elements=plain.elements,
        tiles_halved=int(halved.sum()),
        elements_halved=int(everywhere.sum()),
        elements_rounded=int((change > 0).sum()),
        largest_change=float((change * factor).max()),
        largest_change_of_tile=float(change.max()) / limit,
    )


def _per_element(tiles: Tensor, codes: Tensor, down: int) -> Tensor:
    rows, columns = codes.shape
    return tiles.repeat_interleave(down, dim=0)[:rows].repeat_interleave(32, dim=1)[:, :columns]
