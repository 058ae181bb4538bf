"""One layer: optional Engram lookup, attention, feed-forward, each of the last two inside hyper-connections."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from port.config import ModelConfig
from port.kernels.hyper_connections import collapse_streams, combine_streams, mixing_values, split_mixing
from port.model.attention import Attention
from port.model.engram import Engram
from port.model.feed_forward import FeedForward, MoeWalk
from port.model.forward_state import ForwardState
from port.model.precision import Precision
from port.model.rotary import RotationTable
from port.model.taps import Tap
from port.model.weights import RMSNorm, meta_parameter
from port.runtime.cache_engine import KVCache
from port.runtime.input_metadata import InputMetadata
from port.schedule import LayerRole


class Block(nn.Module):
    """One backbone layer. Names are the checkpoint's."""

    def __init__(
        self, config: ModelConfig, role: LayerRole, precision: Precision, walk: MoeWalk, engram_rows: int | None
    ) -> None:
        super().__init__()
        streams, width = config.hc_mult, config.hidden_size
        values = (2 + streams) * streams
        self.attn_norm = RMSNorm(width, eps=config.rms_norm_eps)
        self.ffn_norm = RMSNorm(width, eps=config.rms_norm_eps)
        for part in ("attn", "ffn"):
            setattr(self, f"hc_{part}_fn", meta_parameter(values, streams * width, dtype=torch.float32))
            setattr(self, f"hc_{part}_base", meta_parameter(values, dtype=torch.float32))
            setattr(self, f"hc_{part}_scale", meta_parameter(3, dtype=torch.float32))
        self.attn = Attention(config, role, precision)
        self.ffn = FeedForward(config, role.layer, precision, walk)
        if engram_rows is not None:
            self.engram = Engram(config, role.layer, engram_rows, precision)
        self.config = config
        self.role = role
        self.precision = precision

    def run_engram(self, state: ForwardState, batch: InputMetadata, tap: Tap) -> ForwardState:
        """Return the state with this layer's lookup added to the streams."""
        stream, _ = _streams(state)
        row_ids = batch.engram_row_ids[str(self.role.layer)]
        return state.replace(stream=self.engram(stream, row_ids, tap))

    def run_attention(
        self, state: ForwardState, batch: InputMetadata, cache: KVCache, rotations: RotationTable, tap: Tap
    ) -> ForwardState:
        """Return the state after the attention sub-layer; `cache` takes the new rows."""
        published = state

        def sublayer(y: Tensor) -> Tensor:
            nonlocal published
            out, published = self.attn(y, state, batch, cache, rotations, tap)
            return out

        stream, pre = self._hyper_connected("attn", self.attn_norm, state, sublayer, tap)
        prefix = f"layers.{self.role.layer}.attn"
        return published.replace(stream=tap(f"{prefix}.stream", stream), pre=tap(f"{prefix}.pre", pre))

    def run_ffn(self, state: ForwardState, tap: Tap) -> ForwardState:
        """Return the state after the feed-forward sub-layer, which ends the layer."""
        stream, pre = self._hyper_connected("ffn", self.ffn_norm, state, lambda y: self.ffn(y, tap), tap)
        prefix = f"layers.{self.role.layer}"
        return state.replace(stream=tap(f"{prefix}.out", stream), pre=tap(f"{prefix}.pre", pre))

    def _hyper_connected(
        self, part: str, norm: RMSNorm, state: ForwardState, sublayer: Callable[[Tensor], Tensor], tap: Tap
    ) -> tuple[Tensor, Tensor]:
        """Return the new streams and the collapse weights for the next sub-layer.

        The input is collapsed with the weights of the sub-layer *before* (the shifted hand-off); the mixing values
        come from the whole streams that enter.
        """
        config = self.config
        stream, pre = _streams(state)
        mix = mixing_values(
            stream,
            getattr(self, f"hc_{part}_fn"),
            eps=config.rms_norm_eps,
            tf32=self.precision.profile.hc_mix == "tf32",
        )
        next_pre, post, comb = split_mixing(
            mix,
            getattr(self, f"hc_{part}_scale"),
            getattr(self, f"hc_{part}_base"),
            streams=config.hc_mult,
            eps=config.hc_eps,
            iterations=config.hc_sinkhorn_iters,
        )
        y = tap(f"layers.{self.role.layer}.{part}.in", norm(collapse_streams(stream, pre)))
        return combine_streams(sublayer(y), stream, post, comb), next_pre


def _streams(state: ForwardState) -> tuple[Tensor, Tensor]:
    assert state.stream is not None, "the embedding step comes before every layer"
    assert state.pre is not None, "the embedding step hands on its collapse weights"
    return state.stream, state.pre
