"""Rows of sharded Engram tables under the contract's names; see `port/collectives/table_lookup.py` for what happens.

Differs from the upstream package: a rank keeps the scales of its own rows only, where upstream gathers the whole scale
table to every rank; an index below 0 gives zeros, where upstream leaves what was in the buffer (the gate passes such
tokens through untouched either way); packed scales are row-major.
Source: `deepinfer_ep` 2.5.0, described in the runtime contracts, section 14.3.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from port.checkpoint.slices import table_rows_of_rank
from port.collectives.table_lookup import look_up_rows
from port.collectives.transport import group_rank, group_size
from port.vendor.deep_ep.sizes import align

Fetched = Tensor | tuple[Tensor, Tensor]
_SCALE_ONE = 127  # exponent byte of 2^0


class EngramBuffer:
    """The tables of all Engram layers, shared by a group.

    Args:
        group: the ranks that share the tables; None for this process alone.
        entries_per_layer: rows of each layer's whole table, with or without its padding rows.
        hidden: width of a row.
        max_tokens: most tokens fetched at a time.
        entries_per_token: rows looked up per token and layer.
        dtype: of the tables; float8_e4m3fn with scales, or bfloat16 without.
        num_sf_packs: packed scale words per row; 0 without scales.

    Raises:
        ValueError: a size below 1, or another dtype.
    """

    def __init__(
        self,
        group: ProcessGroup | None,
        entries_per_layer: Sequence[int],
        hidden: int,
        max_tokens: int,
        entries_per_token: int,
        dtype: torch.dtype = torch.float8_e4m3fn,
        num_sf_packs: int = 0,
    ) -> None:
        sizes = {
            "entries_per_layer": min(entries_per_layer, default=0),
            "hidden": hidden,
            "max_tokens": max_tokens,
            "entries_per_token": entries_per_token,
            "num_sf_packs": num_sf_packs if dtype == torch.float8_e4m3fn else 1,
        }
        problems = [f"{name}: expected at least 1; found {size}" for name, size in sizes.items() if size < 1]
        if dtype not in (torch.float8_e4m3fn, torch.bfloat16):
            problems.append(f"dtype: expected float8_e4m3fn or bfloat16; found {dtype}")
        if problems:
            raise ValueError("EngramBuffer: " + "; ".join(problems) + ".")
        self.group = group
        self.entries_per_layer = tuple(entries_per_layer)
        self.hidden = hidden
        self.max_tokens = max_tokens
        self.entries_per_token = entries_per_token
        self.dtype = dtype
        self.num_sf_packs = num_sf_packs
        self.config: tuple[int, int, bool] | None = None
        self._tables: list[tuple[Tensor, ...]] = []

    @staticmethod
    def get_storage_size_hint(
        group: ProcessGroup | None,
        entries_per_layer: Sequence[int],
        hidden: int,
        max_tokens: int,
        entries_per_token: int,
        dtype: torch.dtype = torch.float8_e4m3fn,
        num_sf_packs: int = 0,
    ) -> tuple[int, int]:
        """Return (bytes of the rows of one fetch, bytes of this rank's rows), scales included in both."""
        row = hidden * dtype.itemsize + (hidden // 32 if num_sf_packs else 0)
        fetched = align(len(entries_per_layer) * max_tokens * entries_per_token * row)
        stored = sum(_rows_per_rank(rows, group_size(group)) for rows in entries_per_layer) * row
        return fetched, align(stored)

    @staticmethod
    def get_theoretical_config(
        group: ProcessGroup | None, num_layers: int, max_tokens: int, entries_per_token: int
    ) -> tuple[int, int, bool]:
        """Return (queue pairs, depth, flag): one queue, deep enough for all of a fetch, nothing special."""
        return 1, num_layers * max_tokens * entries_per_token, False

    def set_config(self, num_queue_pairs: int, depth: int, flag: bool = False) -> None:
        """Keep a configuration. It changes nothing: `torch.distributed` has no queues to set.

        Raises:
            ValueError: a count below 1.
        """
        if num_queue_pairs < 1 or depth < 1:
            raise ValueError(
                f"set_config: expected at least one queue pair and a depth of at least 1; found {num_queue_pairs} and "
                f"{depth}."
            )
        self.config = (num_queue_pairs, depth, flag)

    def write(self, tables: Sequence[Tensor], sfs: Sequence[Tensor] | None = None) -> None:
        """Take this rank's rows of every layer's table, once after loading.

        Args:
            tables: (rows per rank, hidden) each, in the buffer's dtype, padding rows included; kept, not copied.
            sfs: packed scales of each table, integers or bytes (rows, packs): the whole table's, with or without
                padding rows, of which only this rank's rows are copied; or this rank's alone, which are kept.

        Raises:
            ValueError: another number of tables, or shapes and dtypes other than these.
        """
        scales = [None] * len(tables) if sfs is None else list(sfs)
        wanted = len(self.entries_per_layer)
        if len(tables) != wanted or len(scales) != wanted:
            raise ValueError(f"write: expected {wanted} tables and as many scales; found {len(tables)}, {len(scales)}.")
        found = []
        for layer, (rows, table, scale) in enumerate(zip(self.entries_per_layer, tables, scales, strict=True)):
            per_rank = _rows_per_rank(rows, group_size(self.group))
            if table.dtype != self.dtype or tuple(table.shape) != (per_rank, self.hidden):
                raise ValueError(
                    f"write: tables[{layer}]: expected {self.dtype}[{per_rank}, {self.hidden}], one rank's rows of "
                    f"{rows}; found {table.dtype}{list(table.shape)}."
                )
            if (scale is None) != (self.num_sf_packs == 0):
                raise ValueError(
                    f"write: sfs[{layer}]: expected {self.num_sf_packs} scale words per row; found "
                    f"{'none' if scale is None else list(scale.shape)}."
                )
            local = () if scale is None else (self._local_scales(layer, scale, rows, per_rank),)
            found.append((table.contiguous(), *local))
        self._tables = found

    def fetch(self, indices: Tensor, use_tma_aligned_col_major_sf: bool = True) -> list[Callable[[], Fetched]]:
        """Ask for the rows of all layers; every rank of the group calls this, with any number of tokens.

        Args:
            indices: int32 (layers, tokens, entries per token), rows of the whole tables; below 0 for none.
            use_tma_aligned_col_major_sf: no effect, see the module.

        Returns:
            One callable per layer, in order, to be called when the layer runs: `(codes (tokens, entries * hidden),
            packed scales (tokens, entries * packs))`, or one tensor for tables without scales.

        The host waits for the numbers of rows and for the requests of the others; the rows themselves are waited for
        in the callables. Ids come from the host, so this is no part of a compiled graph.

        Raises:
            ValueError: nothing was written, a shape or dtype other than this, or an id that is no row.
        """
        if not self._tables:
            raise ValueError("fetch: expected tables; nothing was written. Call `write` after loading.")
        expected = (len(self._tables), self.entries_per_token)
        if indices.dtype != torch.int32 or indices.dim() != 3 or (indices.shape[0], indices.shape[2]) != expected:
            raise ValueError(
                f"fetch: expected int32[{expected[0]}, tokens, {expected[1]}]; found {indices.dtype}"
                f"{list(indices.shape)}."
            )
        if indices.shape[1] > self.max_tokens:
            raise ValueError(f"fetch: expected at most {self.max_tokens} tokens; found {indices.shape[1]}.")
        return [self._fetch_layer(tables, ids) for tables, ids in zip(self._tables, indices, strict=True)]

    def _fetch_layer(self, tables: tuple[Tensor, ...], ids: Tensor) -> Callable[[], Fetched]:
        tokens = ids.shape[0]
        pending = look_up_rows(ids.flatten().clamp(min=-1), tables, group=self.group)

        def rows() -> Fetched:
            width = self.entries_per_token
            parts = [part.view(tokens, width * part.shape[1]) for part in pending.wait()]
            return parts[0] if len(parts) == 1 else (parts[0], parts[1])

        return rows

    def _local_scales(self, layer: int, scale: Tensor, rows: int, per_rank: int) -> Tensor:
        """Return this rank's scales; those cut from a whole table are a copy, or the table could never be freed."""
        ranks = group_size(self.group)
        if scale.dim() != 2 or scale.shape[1] != self.num_sf_packs:
            raise ValueError(
                f"write: sfs[{layer}]: expected [rows, {self.num_sf_packs}]; found {list(scale.shape)}. "
                "Pack the scale bytes of a row into words first."
            )
        if scale.shape[0] == per_rank:
            return scale.contiguous()
        if scale.shape[0] not in (rows, per_rank * ranks):
            raise ValueError(
                f"write: sfs[{layer}]: expected {per_rank} rows (this rank's), {rows} or {per_rank * ranks} (all); "
                f"found {scale.shape[0]}."
            )
        kept, padding = table_rows_of_rank(rows, group_rank(self.group), ranks)
        if scale.shape[0] == per_rank * ranks:
            begin = group_rank(self.group) * per_rank
            return scale[begin : begin + per_rank].clone()
        filling = torch.full((padding, scale.shape[1] * scale.element_size()), _SCALE_ONE, dtype=torch.uint8)
        return torch.cat((scale[kept], filling.view(scale.dtype).to(scale.device)))


def _rows_per_rank(rows: int, ranks: int) -> int:
    kept, padding = table_rows_of_rank(rows, 0, ranks)
    return kept.stop - kept.start + padding
