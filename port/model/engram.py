"""The Engram lookup of one layer: rows of hashed n-grams, made a key per stream and a value, added by a gate."""

import torch
from torch import Tensor, nn

from port.config import ModelConfig
from port.kernels.dequantize import dequantize_fp8_tiles
from port.kernels.engram_gate import add_gated, engram_gate
from port.kernels.gather import gather_table_rows
from port.model.precision import Precision
from port.model.taps import Tap
from port.model.weights import Linear, meta_parameter


class EngramTable(nn.Module):
    """Rows in FP8 with one power-of-two scale per row and 32 columns."""

    def __init__(self, rows: int, width: int) -> None:
        super().__init__()
        self.weight = meta_parameter(rows, width, dtype=torch.float8_e4m3fn)
        self.scale = meta_parameter(rows, width // 32, dtype=torch.float8_e8m0fnu)

    def forward(self, row_ids: Tensor, *, out_dtype: torch.dtype) -> Tensor:
        """Return rows as numbers, (T, columns * width) in `out_dtype`, exactly; row ids are int32 (T, columns)."""
        codes = gather_table_rows(self.weight, row_ids).flatten(0, 1)
        scales = gather_table_rows(self.scale, row_ids).flatten(0, 1)
        rows = dequantize_fp8_tiles(codes, scales, block=(1, 32), out_dtype=out_dtype)
        return rows.view(row_ids.shape[0], -1)


class Engram(nn.Module):
    """One Engram layer. Names are the checkpoint's."""

    def __init__(self, config: ModelConfig, layer: int, rows: int, precision: Precision) -> None:
        super().__init__()
        streams, width = config.hc_mult, config.hidden_size
        columns = (config.engram_max_ngram_size - 1) * config.engram_n_heads
        self.q_weight = meta_parameter(streams, width, dtype=torch.bfloat16)
        self.k_weight = meta_parameter(streams, width, dtype=torch.bfloat16)
        self.wkv = Linear((streams + 1) * width, columns * config.engram_head_dim, stored="fp8")
        self.embed = EngramTable(rows, config.engram_head_dim)
        self.config = config
        self.precision = precision
        self._prefix = f"layers.{layer}.engram"

    def forward(self, stream: Tensor, row_ids: Tensor, tap: Tap) -> Tensor:
        """Return the streams with the lookup added.

        Args:
            stream: (T, M, D).
            row_ids: int32 (T, columns), from `port/runtime/engram_hash.py`.
            tap: see `port/model/taps.py`.
        """
        precision, streams = self.precision, self.config.hc_mult
        rows = precision.engram_rows(self.embed(row_ids, out_dtype=precision.activation))
        projected = self.wkv(rows, operands=precision.operands, out_dtype=precision.activation)
        keys, value = projected.split((streams * stream.shape[-1], stream.shape[-1]), dim=-1)
        keys = keys.unflatten(-1, (streams, -1))
        gate = engram_gate(stream, keys, self.q_weight, self.k_weight, eps=self.config.rms_norm_eps)
        gate = tap(f"{self._prefix}.gate", gate)
        return tap(f"{self._prefix}.out", add_gated(stream, gate, value))
