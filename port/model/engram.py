"""Engram: a lookup of n-gram rows, projected to one key per stream and one value, gated into the streams."""

import torch
from torch import Tensor, nn

from port.checkpoint.slices import table_rows_of_rank
from port.collectives.parallel import Parallel
from port.collectives.table_lookup import look_up_rows
from port.config import ModelConfig
from port.kernels.dequantize import dequantize_fp8_tiles
from port.kernels.engram_gate import add_gated, engram_gate
from port.kernels.gather import gather_table_rows
from port.model.precision import Precision
from port.model.taps import Tap
from port.model.weights import Linear, meta_parameter
from port.runtime.engram_hash import prime_table


class EngramTable(nn.Module):
    """Rows of FP8 with one scale per row and 32 columns (the dense linears have one per 32 x 32 tile).

    Args:
        rows: of the whole table.
        width: of a row.
        parallel: where ranks share the table, this one holds its own rows and asks the others for theirs.
        max_ids: ids per pair of ranks where shapes are static; None for exact sizes.
    """

    def __init__(self, rows: int, width: int, parallel: Parallel | None = None, *, max_ids: int | None = None) -> None:
        super().__init__()
        self.parallel = parallel if parallel is not None and parallel.engram_ranks > 1 else None
        self.max_ids = max_ids
        if self.parallel is not None:
            kept, padding = table_rows_of_rank(rows, self.parallel.engram_rank, self.parallel.engram_ranks)
            rows = kept.stop - kept.start + padding
        self.weight = meta_parameter(rows, width, dtype=torch.float8_e4m3fn)
        self.scale = meta_parameter(rows, width // 32, dtype=torch.float8_e8m0fnu)

    def forward(self, row_ids: Tensor, dtype: torch.dtype) -> Tensor:
        """Return rows int32 (T, columns) side by side, (T, columns * width) in `dtype`."""
        tokens = row_ids.shape[0]
        if self.parallel is None:
            rows = gather_table_rows(self.weight, row_ids.flatten())
            scales = gather_table_rows(self.scale, row_ids.flatten())
        else:
            group = self.parallel.groups.engram
            pending = look_up_rows(row_ids.flatten(), (self.weight, self.scale), group=group, max_ids=self.max_ids)
            rows, scales = pending.wait()
        return dequantize_fp8_tiles(rows, scales, block=(1, 32), out_dtype=dtype).view(
            tokens, row_ids.shape[1] * rows.shape[1]
        )


class Engram(nn.Module):
    """The lookup of one layer.

    Args:
        config: widths and counts.
        layer: index of the layer.
        precision: roundings.
        parallel: this rank's share of the table; None for all of it.
        static: look rows up with fixed shapes where ranks share the table.
    """

    def __init__(
        self,
        config: ModelConfig,
        layer: int,
        precision: Precision,
        parallel: Parallel | None = None,
        *,
        static: bool = False,
    ) -> None:
        super().__init__()
        streams, width = config.hc_mult, config.hidden_size
        columns = (config.engram_max_ngram_size - 1) * config.engram_n_heads
        self.q_weight = meta_parameter(streams, width, dtype=torch.bfloat16)
        self.k_weight = meta_parameter(streams, width, dtype=torch.bfloat16)
        self.wkv = Linear((streams + 1) * width, columns * config.engram_head_dim, stored="fp8")
        max_ids = parallel.max_tokens_per_rank * columns if parallel is not None and static else None
        self.embed = EngramTable(_table_rows(config, layer), config.engram_head_dim, parallel, max_ids=max_ids)
        self.config = config
        self.precision = precision
        self._columns = columns
        self._prefix = f"layers.{layer}.engram"

    def take_part(self) -> None:
        """Answer the other ranks' lookups of one pass, asking for nothing."""
        device = self.q_weight.device
        self.embed(torch.empty(0, self._columns, dtype=torch.int32, device=device), self.precision.activation)

    def forward(self, stream: Tensor, row_ids: Tensor, tap: Tap) -> Tensor:
        """Return the streams with the gated lookup added, (T, M, D).

        Args:
            stream: (T, M, D).
            row_ids: int32 (T, columns), from `port/runtime/engram_hash.py`.
            tap: see `port/model/taps.py`.
        """
        precision, config = self.precision, self.config
        rows = precision.engram_rows(self.embed(row_ids, precision.activation))
        projected = self.wkv(rows, operands=precision.operands, out_dtype=precision.activation)
        projected = projected.unflatten(-1, (config.hc_mult + 1, config.hidden_size))
        keys, value = projected[:, : config.hc_mult], projected[:, config.hc_mult]
        gate = engram_gate(stream, keys, self.q_weight, self.k_weight, eps=config.rms_norm_eps)
        gate = tap(f"{self._prefix}.gate", gate)
        return tap(f"{self._prefix}.out", add_gated(stream, gate, value))


def _table_rows(config: ModelConfig, layer: int) -> int:
    index = config.engram_layer_ids.index(layer)
    if config.engram_num_embeddings:
        return config.engram_num_embeddings[index]
    return int(prime_table(config)[index].sum())
