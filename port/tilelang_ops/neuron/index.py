"""Factories for rows by number and for lists of rows and slots."""

from collections.abc import Callable

import torch
from torch import Tensor

from port.kernels.gather import load_known_rows
from port.kernels.index_lists import flat_table_slots, paged_slots, range_index, shift_index, two_ranges_index
from port.tilelang_ops.neuron.arguments import Arguments, Dtype, as_dtype, at_least

_INT32 = torch.int32
_STRIDE_UNIT = 4


def gather_tl(D: int, dtype: Dtype, index_dtype: Dtype, x_stride: int) -> Callable[..., Tensor]:
    """Return a kernel that picks rows: `(x [n, D], index [m]) → y [m, D]`; a number outside [0, n) gives zeros."""
    name = "gather_tl"
    at_least(name, 1, D=D, x_stride=x_stride)
    row_dtype, number_dtype = as_dtype(name, "dtype", dtype), as_dtype(name, "index_dtype", index_dtype)

    def kernel(x: Tensor, index: Tensor, y: Tensor) -> Tensor:
        given = Arguments(name)
        given.check("x", x, row_dtype, ("n", D), row_stride=x_stride)
        given.check("index", index, number_dtype, ("m",))
        given.check("y", y, row_dtype, ("m", D))
        if x.shape[0] == 0:
            return y.zero_()
        # Bytes are moved as wider words, which needs rows side by side.
        return y.copy_(load_known_rows(x.contiguous() if x.element_size() == 1 else x, index))

    return kernel


def load_kv_index_tl(length: int, block_size: int, has_block_tables: bool) -> Callable[..., Tensor]:
    """Return a kernel that spells out one range a row: `(offset_len [n, 2], block_table) → index [n, length]`.

    Args:
        length: columns; those after the range hold -1.
        block_size: without tables, slots of a ring inside which numbers wrap (0: no ring); with tables, entries of
            a block.
        has_block_tables: `block_table`, int32 and flat (all tables in a line, offsets counted over the line), turns
            entries into slots.
    """
    name = "load_kv_index_tl"
    at_least(name, 1, length=length)
    at_least(name, 1 if has_block_tables else 0, block_size=block_size)

    def kernel(offset_len: Tensor, block_table: Tensor | None, index: Tensor) -> Tensor:
        given = Arguments(name)
        given.check("offset_len", offset_len, _INT32, ("n", 2))
        given.check("index", index, _INT32, ("n", length))
        given.present("block_table", block_table, has_block_tables, f"has_block_tables is {has_block_tables}")
        offset, count = offset_len.unbind(dim=1)
        if block_table is None:
            return index.copy_(range_index(offset, count, width=length, ring=block_size))
        given.check("block_table", block_table, _INT32, ("p",))
        entry = range_index(offset, count, width=length)
        return index.copy_(flat_table_slots(entry, block_table, entries_per_block=block_size))

    return kernel


def expand_swa_index_tl(width: int) -> Callable[..., Tensor]:
    """Return a kernel that spells out two ranges a row, one after the other: `(pivots [n, 4]) → index [n, width]`."""
    name = "expand_swa_index_tl"
    at_least(name, 1, width=width)

    def kernel(pivots: Tensor, index: Tensor) -> Tensor:
        given = Arguments(name)
        given.check("pivots", pivots, _INT32, ("n", 4))
        given.check("index", index, _INT32, ("n", width))
        return index.copy_(two_ranges_index(pivots, width=width))

    return kernel


def kv_index_cat_tl(dtype: Dtype, W: int, topk: int, out_stride: int) -> Callable[..., Tensor]:
    """Return a kernel that joins lists: `(window [n, W], selected [n, topk], a, b) → index [n, W + topk]`.

    The selected numbers rise by the two scalars `a + b`; -1 stays. Rows of the output lie `out_stride` elements
    apart, a multiple of 4.
    """
    name = "kv_index_cat_tl"
    at_least(name, 1, W=W, topk=topk)
    number_dtype = as_dtype(name, "dtype", dtype)
    if out_stride < W + topk or out_stride % _STRIDE_UNIT:
        raise ValueError(
            f"{name}: out_stride: expected a multiple of {_STRIDE_UNIT}, at least W + topk = {W + topk}; "
            f"found {out_stride}."
        )

    def kernel(window: Tensor, selected: Tensor, a: int, b: int, index: Tensor) -> Tensor:
        given = Arguments(name)
        given.check("window", window, number_dtype, ("n", W), strided=True)
        given.check("selected", selected, number_dtype, ("n", topk), strided=True)
        given.check("index", index, number_dtype, ("n", W + topk), row_stride=out_stride)
        return index.copy_(torch.cat((window, shift_index(selected, a + b)), dim=1))

    return kernel


def convert_kv_index_tl(s: int, k: int, n: int, block_size: int) -> Callable[..., Tensor]:
    """Return a kernel that turns entries into slots in place: `(idx [b, s, k], lens [b, s], tables [b, n])` → idx.

    The column number decides: columns below the length are mapped through the row's table, all others become -1. An
    entry of -1 in a column to be mapped, which the contract leaves open, stays -1.
    """
    name = "convert_kv_index_tl"
    at_least(name, 1, s=s, k=k, n=n, block_size=block_size)

    def kernel(idx: Tensor, lens: Tensor, tables: Tensor) -> Tensor:
        given = Arguments(name)
        given.check("idx", idx, _INT32, ("b", s, k))
        given.check("lens", lens, _INT32, ("b", s))
        given.check("tables", tables, _INT32, ("b", n), strided=True)
        column = torch.arange(k, dtype=_INT32, device=idx.device)
        valid = (column < lens.unsqueeze(-1)) & (idx >= 0)
        slots = paged_slots(idx.flatten(1), tables, entries_per_block=block_size, valid_NJ=valid.flatten(1))
        return idx.copy_(slots.view(idx.shape))

    return kernel
