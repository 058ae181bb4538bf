"""Engram: a lookup of n-gram rows, projected to one key per stream and one value, gated into the streams."""

import torch
from torch import Tensor, nn

from port.config import ModelConfig
from port.kernels.dequantize import dequantize_fp8_tiles
from port.kernels.engram_gate import add_gated, engram_gate
from port.kernels.gather import gather_table_rows
from port.model.precision import Precision
from port.model.taps import Tap
from port.model.weights import Linear, meta_parameter
from port.runtime.engram_hash import prime_table


class EngramTable(nn.Module):
    """Rows of FP8 with one scale per row and 32 columns (the dense linears have one per 32 x 32 tile)."""

    def __init__(self, rows: int, width: int) -> None:
        super().__init__()
        self.weight = meta_parameter(rows, width, dtype=torch.float8_e4m3fn)
        self.scale = meta_parameter(rows, width // 32, dtype=torch.float8_e8m0fnu)

    def forward(self, row_ids: Tensor, dtype: torch.dtype) -> Tensor:
        """Return rows int32 (T, columns) side by side, (T, columns * width) in `dtype`."""
        tokens = row_ids.shape[0]
        rows = gather_table_rows(self.weight, row_ids.flatten())
        scales = gather_table_rows(self.scale, row_ids.flatten())
        return dequantize_fp8_tiles(rows, scales, block=(1, 32), out_dtype=dtype).view(tokens, -1)


class Engram(nn.Module):
    """The lookup of one layer."""

    def __init__(self, config: ModelConfig, layer: int, precision: Precision) -> None:
        super().__init__()
        streams, width = config.hc_mult, config.hidden_size
        columns = (config.engram_max_ngram_size - 1) * config.engram_n_heads
        self.q_weight = meta_parameter(streams, width, dtype=torch.bfloat16)
        self.k_weight = meta_parameter(streams, width, dtype=torch.bfloat16)
        self.wkv = Linear((streams + 1) * width, columns * config.engram_head_dim, stored="fp8")
        self.embed = EngramTable(_table_rows(config, layer), config.engram_head_dim)
        self.config = config
        self.precision = precision
        self._prefix = f"layers.{layer}.engram"

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
