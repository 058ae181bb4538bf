"""A stored weight and its scale as one object: sliced together, dequantised exactly, encoded for fixtures.

The arithmetic is in `port/kernels/dequantize.py` and `port/kernels/quantize.py`; this file only keeps codes and
scales in step. A slice
may begin inside a tile: the distance to the tile's edge is kept as `origin`, so that every element meets its own
scale. It may not begin inside a byte.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from port.checkpoint.scales import QuantizedEntry, ScaleKind
from port.errors import CheckpointError
from port.kernels.dequantize import dequantize_fp4_rows, dequantize_fp8_tiles
from port.kernels.quantize import FP8_MAX, quantize_fp4_rows, quantize_fp8_tiles


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class QuantizedTensor:
    """Codes and scales of a matrix, or of a slice of one.

    Attributes:
        name: of the weight.
        weight: codes as stored; (N, K), or (N, K / 2) bytes where two FP4 codes share one, low nibble = even column.
        scale: one entry per tile, (ceil((origin rows + N) / block rows), likewise for columns).
        block: rows and columns of a tile.
        packed: whether two FP4 codes share a byte.
        scale_kind: whether scales are exponents or numbers.
        origin: rows and columns of the first tile that lie before this slice.
    """

    name: str
    weight: Tensor
    scale: Tensor
    block: tuple[int, int]
    packed: bool = False
    scale_kind: ScaleKind = "exponent"
    origin: tuple[int, int] = (0, 0)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns in elements."""
        rows, columns = self.weight.shape
        return rows, columns * 2 if self.packed else columns

    @property
    def nbytes(self) -> int:
        """Bytes of codes and scales."""
        return self.weight.nbytes + self.scale.nbytes

    def slice(self, rows: slice = slice(None), columns: slice = slice(None)) -> "QuantizedTensor":
        """Return a part of the matrix with exactly the scales it needs; views, nothing is copied.

        Args:
            rows: step 1, counted in elements.
            columns: step 1, counted in elements also where two share a byte.

        Raises:
            CheckpointError: a step other than 1, or a column border inside a byte.
        """
        cut = _cut(self.name, self.shape, self.block, self.origin, self.packed, (rows, columns))
        return QuantizedTensor(
            name=self.name,
            weight=self.weight[cut.weight[0], cut.weight[1]],
            scale=self.scale[cut.scale[0], cut.scale[1]],
            block=self.block,
            packed=self.packed,
            scale_kind=self.scale_kind,
            origin=cut.origin,
        )

    def dequantize(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return the matrix as numbers, (N, K) in `dtype`; float32 and bfloat16 are exact for power-of-two scales."""
        rows, columns = self.shape
        if rows == 0 or columns == 0:
            return torch.empty(rows, columns, dtype=dtype)
        codes = self.weight.view(torch.uint8) if self.packed else self.weight
        before_rows, before_columns = self.origin
        if self.origin != (0, 0):  # the kernels take whole tiles; fill the part of the first tile that was cut off
            codes = _pad_before(codes, before_rows, before_columns // (2 if self.packed else 1))
        if self.packed:
            values = dequantize_fp4_rows(codes, self.scale, group=self.block[1], out_dtype=dtype)
        else:
            values = dequantize_fp8_tiles(codes, self.scale, block=self.block, out_dtype=dtype)
        return values[before_rows:, before_columns:]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """Where a slice of a quantised matrix lies in its two stored tensors.

    Attributes:
        weight: rows and stored columns (bytes where two codes share one).
        columns: columns in elements.
        scale: rows and columns of the scale.
        origin: rows and columns of the first tile that lie before the slice.
    """

    weight: tuple[slice, slice]
    columns: slice
    scale: tuple[slice, slice]
    origin: tuple[int, int]


def cut_entry(entry: QuantizedEntry, rows: slice, columns: slice) -> Cut:
    """Return where a slice of a stored weight lies, before anything is read.

    Raises:
        CheckpointError: a step other than 1, or a column border inside a byte.
    """
    return _cut(entry.name, entry.shape, entry.block, (0, 0), entry.packed, (rows, columns))


def encode_fp8(
    values: Tensor, *, name: str = "", block: tuple[int, int] = (32, 32), fp8_max: float = FP8_MAX
) -> QuantizedTensor:
    """Return a matrix as FP8 codes with one power-of-two scale per tile; `block=(1, 32)` for Engram table rows.

    Args:
        values: (N, K), any float dtype.
        name: of the weight.
        block: rows and columns of a tile.
        fp8_max: largest magnitude a code may stand for.
    """
    weight, scale = quantize_fp8_tiles(values, block=block, fp8_max=fp8_max)
    return QuantizedTensor(name=name, weight=weight, scale=scale, block=block)


def encode_fp4(values: Tensor, *, name: str = "", group: int = 32) -> QuantizedTensor:
    """Return a matrix as packed FP4 codes with one power-of-two scale per row and `group` columns.

    Args:
        values: (N, K), any float dtype, K divisible by `group`.
        name: of the weight.
        group: columns that share a scale.
    """
    weight, scale = quantize_fp4_rows(values, group=group)
    return QuantizedTensor(name=name, weight=weight, scale=scale, block=(1, group), packed=True)


def _cut(
    name: str,
    shape: tuple[int, int],
    block: tuple[int, int],
    origin: tuple[int, int],
    packed: bool,
    slices: tuple[slice, slice],
) -> Cut:
    weight: list[slice] = []
    scale: list[slice] = []
    within: list[int] = []
    for axis in (0, 1):
        begin, end, step = slices[axis].indices(shape[axis])
        if step != 1:
            raise CheckpointError(f"{name}: expected slices with step 1; found step {step} on axis {axis}.")
        end = max(begin, end)
        first = origin[axis] + begin
        weight.append(slice(begin, end))
        scale.append(
            slice(
                first // block[axis], -(-(origin[axis] + end) // block[axis]) if end > begin else first // block[axis]
            )
        )
        within.append(first % block[axis])
    columns = weight[1]
    if packed:
        if columns.start % 2 or columns.stop % 2:
            raise CheckpointError(
                f"{name}: expected even column borders, because two FP4 codes share a byte; "
                f"found [{columns.start}, {columns.stop}). Slice at even columns."
            )
        weight[1] = slice(columns.start // 2, columns.stop // 2)
    return Cut(
        weight=(weight[0], weight[1]), columns=columns, scale=(scale[0], scale[1]), origin=(within[0], within[1])
    )


def _pad_before(codes: Tensor, rows: int, columns: int) -> Tensor:
    padded = torch.zeros(rows + codes.shape[0], columns + codes.shape[1], dtype=torch.uint8)
    padded[rows:, columns:] = codes.view(torch.uint8)
    return padded.view(codes.dtype)
