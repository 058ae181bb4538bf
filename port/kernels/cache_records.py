"""Cache rows as the bytes of the contract: encoded, decoded, read by slot, written by slot.

| format | bytes | elements | scale | arrangement in a block |
|---|---|---|---|---|
| `FP4_MAIN` | 256 + 32 = 288 | e2m1, two per byte | e4m3 per 16 | interleaved: data then scales, entry by entry |
| `FP8_MAIN` | 512 + 16 = 528 | e4m3 | E8M0 per 32 | interleaved |
| `FP4_INDEX` | 64 + 4 = 68 | e2m1, two per byte | E8M0 per 32 | planar: data of all entries, then all scales |
| `FP8_INDEX` | 128 + 4 = 132 | e4m3 | E8M0 per 32 | planar |

The figures hold for the released widths, 512 and 128; other widths scale. A cache is uint8 (blocks, entries, 1,
record), and a slot counts entries over all blocks: slot = block * entries + entry. Slot -1 stores nothing and reads
zeros.

Shape letters: B blocks, E entries per block, N rows, D elements of a row.
Source: deepinfer 0.1.0 cache engine, described in the runtime contracts, sections 8.2 and 8.5.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from port.kernels.dequantize import unpack_fp4
from port.kernels.exponents import decode_exponents
from port.kernels.gather import gather_table_rows
from port.kernels.quantize import (
    FP8_MAX,
    ScaleDivision,
    quantize_fp4_e4m3_rows,
    quantize_fp4_rows,
    quantize_fp8_rows,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordFormat:
    """How one row of a cache is stored.

    Attributes:
        name: "fp4_main", "fp8_main", "fp4_index" or "fp8_index".
        element: of the data bytes.
        scale: of the scale bytes.
        group: elements that share a scale.
        planar: whether the data of a block's entries come before all their scales.
    """

    name: str
    element: Literal["fp4", "fp8"]
    scale: Literal["e8m0", "e4m3"]
    group: int
    planar: bool

    def data_bytes(self, width: int) -> int:
        """Return the bytes of a row of `width` elements without its scales."""
        return width // 2 if self.element == "fp4" else width

    def scale_bytes(self, width: int) -> int:
        """Return the bytes of a row's scales."""
        return width // self.group

    def record_bytes(self, width: int) -> int:
        """Return the bytes of a row with its scales."""
        return self.data_bytes(width) + self.scale_bytes(width)

    def width_of(self, record_bytes: int) -> int:
        """Return the elements of a row that takes `record_bytes` bytes.

        Raises:
            ValueError: no row of this format takes so many.
        """
        numerator, denominator = (
            (2 * self.group, self.group + 2) if self.element == "fp4" else (self.group, self.group + 1)
        )
        width = record_bytes * numerator // denominator
        if width <= 0 or width % self.group or self.record_bytes(width) != record_bytes:
            raise ValueError(
                f"cache format {self.name}: expected the bytes of whole groups of {self.group} elements "
                f"with their scales; found records of {record_bytes} bytes."
            )
        return width


FP4_MAIN = RecordFormat(name="fp4_main", element="fp4", scale="e4m3", group=16, planar=False)
FP8_MAIN = RecordFormat(name="fp8_main", element="fp8", scale="e8m0", group=32, planar=False)
FP4_INDEX = RecordFormat(name="fp4_index", element="fp4", scale="e8m0", group=32, planar=True)
FP8_INDEX = RecordFormat(name="fp8_index", element="fp8", scale="e8m0", group=32, planar=True)

_RELEASED = {288: FP4_MAIN, 528: FP8_MAIN, 68: FP4_INDEX, 132: FP8_INDEX}


def format_of(record_bytes: int) -> RecordFormat:
    """Return the format of a released cache by the size of its last axis.

    Raises:
        ValueError: none of the released sizes; caches of other widths name their format.
    """
    found = _RELEASED.get(record_bytes)
    if found is None:
        sizes = ", ".join(f"{size} ({form.name})" for size, form in _RELEASED.items())
        raise ValueError(f"cache records: expected {sizes} bytes; found {record_bytes}.")
    return found


def encode_rows(
    rows_ND: Tensor, form: RecordFormat, *, fp8_max: float = FP8_MAX, scale_division: ScaleDivision = "divide"
) -> tuple[Tensor, Tensor]:
    """Return rows quantised to their stored form.

    Args:
        rows_ND: (N, D), float32 or bfloat16, D a multiple of the format's group.
        form: the format.
        fp8_max: largest magnitude of an fp8 element, and of an e4m3 scale.
        scale_division: how fp4 rows with e4m3 scales are divided, see `quantize_fp4_e4m3_rows`.

    Returns:
        Data uint8 (N, data bytes) and scales uint8 (N, scale bytes).
    """
    if form.element == "fp8":
        data, scale = quantize_fp8_rows(rows_ND, group=form.group, fp8_max=fp8_max)
    elif form.scale == "e8m0":
        data, scale = quantize_fp4_rows(rows_ND, group=form.group)
    else:
        data, scale = quantize_fp4_e4m3_rows(
            rows_ND, group=form.group, scale_division=scale_division, scale_max=fp8_max
        )
    return data.view(torch.uint8), scale.view(torch.uint8)


def decode_rows(data: Tensor, scale: Tensor, form: RecordFormat, *, out_dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """Return stored rows as numbers.

    Args:
        data: uint8 (..., data bytes).
        scale: uint8 (..., scale bytes).
        form: the format.
        out_dtype: bfloat16 or float32; both hold every value exactly.

    Returns:
        (..., D) in `out_dtype`.
    """
    values = unpack_fp4(data) if form.element == "fp4" else data.view(torch.float8_e4m3fn).to(torch.float32)
    factor = decode_exponents(scale) if form.scale == "e8m0" else scale.view(torch.float8_e4m3fn).to(torch.float32)
    grouped = values.unflatten(-1, (values.shape[-1] // form.group, form.group))
    return (grouped * factor.unsqueeze(-1)).flatten(-2).to(out_dtype)


def read_slots(cache: Tensor, slot: Tensor, form: RecordFormat) -> tuple[Tensor, Tensor]:
    """Return the stored rows of some slots.

    Args:
        cache: uint8 (B, E, 1, record) or (B, E, record); a block's bytes are contiguous, blocks may lie apart.
        slot: int32, any shape; -1 or block * E + entry.
        form: the format.

    Returns:
        Data uint8 (*slot.shape, data bytes) and scales uint8 (*slot.shape, scale bytes); zeros where the slot is -1.

    Raises:
        ValueError: a cache whose bytes are not arranged so.
    """
    data_BEp, scale_BEs = _sections(cache, form)
    entries, data_bytes = data_BEp.shape[1:]
    kept = (slot >= 0).unsqueeze(-1)
    slot = slot.clamp(min=0)
    block, entry = torch.div(slot, entries, rounding_mode="floor"), slot % entries
    if form.planar:
        data, scale = _pick(data_BEp, block, entry), _pick(scale_BEs, block, entry)
    else:
        record = _pick(cache.squeeze(2) if cache.ndim == 4 else cache, block, entry)
        data, scale = record[..., :data_bytes], record[..., data_bytes:]
    zero = torch.zeros((), dtype=torch.uint8, device=cache.device)
    return torch.where(kept, data, zero), torch.where(kept, scale, zero)


def write_slots(cache: Tensor, slot_N: Tensor, data: Tensor, scale: Tensor, form: RecordFormat) -> None:
    """Write stored rows into their slots, in place; rows with slot -1 change nothing that is ever read.

    Args:
        cache: as for `read_slots`; changed.
        slot_N: int32 (N,), -1 or a slot; no slot above those of block 0 twice.
        data: uint8 (N, data bytes).
        scale: uint8 (N, scale bytes).
        form: the format.

    Rows with slot -1 are sent to slot 0, which belongs to the block of padding rows, as what it holds already: shapes
    stay static and nothing is masked. The cache is written once: a graph that writes one tensor twice may lose a write
    on the device (field reports).
    """
    data_BEp, scale_BEs = _sections(cache, form)
    entries, data_bytes = data_BEp.shape[1:]
    kept = (slot_N >= 0).unsqueeze(-1)
    slot_N = slot_N.clamp(min=0)
    block, entry = torch.div(slot_N, entries, rounding_mode="floor"), slot_N % entries
    record = torch.cat((data, scale), dim=-1)
    record = torch.where(kept, record, torch.cat((data_BEp[0, 0], scale_BEs[0, 0])))
    rows = cache.squeeze(2) if cache.ndim == 4 else cache
    if not form.planar:
        rows.index_put_((block, entry), record)
        return
    scale_bytes = scale.shape[-1]
    data_columns = entry.unsqueeze(-1) * data_bytes + torch.arange(data_bytes, dtype=torch.int32, device=cache.device)
    scale_columns = entry.unsqueeze(-1) * scale_bytes + torch.arange(
        scale_bytes, dtype=torch.int32, device=cache.device
    )
    columns = torch.cat((data_columns, entries * data_bytes + scale_columns), dim=-1)
    rows.flatten(1, 2).index_put_((block.unsqueeze(-1).expand_as(columns), columns), record)


def _sections(cache: Tensor, form: RecordFormat) -> tuple[Tensor, Tensor]:
    """Return views of a cache's data (B, E, data bytes) and scales (B, E, scale bytes)."""
    if cache.dtype != torch.uint8 or cache.ndim not in (3, 4) or (cache.ndim == 4 and cache.shape[2] != 1):
        raise ValueError(
            f"cache: expected uint8 [blocks, entries, 1, record]; found {cache.dtype} {list(cache.shape)}."
        )
    if cache.ndim == 4:
        cache = cache.squeeze(2)
    _, entries, record = cache.shape
    width = form.width_of(record)
    data_bytes, scale_bytes = form.data_bytes(width), form.scale_bytes(width)
    if not form.planar:
        return cache[..., :data_bytes], cache[..., data_bytes:]
    if cache.stride()[1:] != (record, 1):
        raise ValueError(
            f"cache: expected each block's {entries * record} bytes side by side for the planar format "
            f"{form.name}; found strides {cache.stride()}."
        )
    flat = cache.flatten(1, 2)
    data = flat[:, : entries * data_bytes].unflatten(1, (entries, data_bytes))
    scale = flat[:, entries * data_bytes :].unflatten(1, (entries, scale_bytes))
    return data, scale


def _pick(section_BEp: Tensor, block: Tensor, entry: Tensor) -> Tensor:
    """Return the bytes of (block, entry) pairs.

    Entries and blocks that lie a whole number of rows apart are rows of one table, and an embedding look-up moves them
    as words; indexing bytes would have the device widen the whole cache. The contract's paddings are made so.
    """
    blocks, entries, width = section_BEp.shape
    if section_BEp.is_contiguous():
        return gather_table_rows(section_BEp.reshape(blocks * entries, width), block * entries + entry)
    block_stride, entry_stride, byte_stride = section_BEp.stride()
    aligned = byte_stride == 1 and not (block_stride % width or entry_stride % width) and blocks * entries > 0
    if not aligned:
        return section_BEp[block, entry]
    block_rows, entry_rows = block_stride // width, entry_stride // width
    rows = (blocks - 1) * block_rows + (entries - 1) * entry_rows + 1
    table = section_BEp.as_strided((rows, width), (width, 1))
    return gather_table_rows(table, block * block_rows + entry * entry_rows)
