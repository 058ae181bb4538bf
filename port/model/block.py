"""One layer: an optional Engram lookup, attention, and experts, each a step of its own.

Hyper-connections hand over one sub-layer late: a sub-layer's input is the collapse of the streams with the weights
that the *previous* sub-layer computed, while the weights it computes itself go to the next one.
"""

import torch
from torch import Tensor, nn

from port.collectives.parallel import Parallel
from port.config import ModelConfig
from port.kernels.hyper_connections import collapse_streams, combine_streams, mixing_values, split_mixing
from port.model.attention import Attention
from port.model.engram import Engram
from port.model.expert_share import ExpertShare
from port.model.experts import ExpertLoop, MoE
from port.model.forward_state import ForwardState
from port.model.precision import Precision
from port.model.rotary import RotationTable
from port.model.taps import Tap
from port.model.weights import RMSNorm, meta_parameter
from port.runtime.cache_engine import KVCache
from port.runtime.input_metadata import InputMetadata
from port.schedule import LayerRole


class Block(nn.Module):
    """One layer. Names are the checkpoint's."""

    def __init__(
        self,
        config: ModelConfig,
        role: LayerRole,
        precision: Precision,
        loop: ExpertLoop,
        parallel: Parallel | None = None,
        share: ExpertShare | None = None,
    ) -> None:
        super().__init__()
        streams, width = config.hc_mult, config.hidden_size
        mixes = (2 + streams) * streams
        for part in ("attn", "ffn"):
            self.register_parameter(f"hc_{part}_fn", meta_parameter(mixes, streams * width, dtype=torch.float32))
            self.register_parameter(f"hc_{part}_base", meta_parameter(mixes, dtype=torch.float32))
            self.register_parameter(f"hc_{part}_scale", meta_parameter(3, dtype=torch.float32))
        if role.has_engram:
            self.engram = Engram(config, role.layer, precision, parallel, static=loop == "all")
        self.attn_norm = RMSNorm(width, eps=config.rms_norm_eps)
        self.attn = Attention(config, role, precision)
        self.ffn_norm = RMSNorm(width, eps=config.rms_norm_eps)
        self.ffn = MoE(config, role.layer, precision, loop, share)
        self.config = config
        self.role = role
        self.precision = precision
        self._prefix = f"layers.{role.layer}"

    def engram_step(self, state: ForwardState, batch: InputMetadata, tap: Tap) -> ForwardState:
        """Return the state after the Engram lookup, which comes before anything else in the layer."""
        assert state.stream is not None, "the embedding step comes first"
        return state.replace(stream=self.engram(state.stream, batch.engram_row_ids[str(self.role.layer)], tap))

    def attention_step(
        self, state: ForwardState, batch: InputMetadata, cache: KVCache, rotations: RotationTable, tap: Tap
    ) -> ForwardState:
        """Return the state after attention and its hyper-connection."""
        stream, pre, (next_pre, post, comb) = self._enter("attn", state)
        y = tap(f"{self._prefix}.attn.in", self.attn_norm(collapse_streams(stream, pre)))
        output, state = self.attn(y, state, batch, cache, rotations, tap)
        stream = tap(f"{self._prefix}.attn.stream", combine_streams(output, stream, post, comb))
        return state.replace(stream=stream, pre=tap(f"{self._prefix}.attn.pre", next_pre))

    def ffn_step(self, state: ForwardState, batch: InputMetadata, tap: Tap) -> ForwardState:
        """Return the state after the experts and their hyper-connection: the end of the layer."""
        stream, pre, (next_pre, post, comb) = self._enter("ffn", state)
        y = tap(f"{self._prefix}.ffn.in", self.ffn_norm(collapse_streams(stream, pre)))
        output = self.ffn(y, batch.valid_token_mask, tap)
        stream = tap(f"{self._prefix}.out", combine_streams(output, stream, post, comb))
        return state.replace(stream=stream, pre=tap(f"{self._prefix}.pre", next_pre))

    def _enter(self, part: str, state: ForwardState) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor, Tensor]]:
        """Return the streams, the weights to collapse them with now, and this sub-layer's own mixes."""
        assert state.stream is not None, "the embedding step comes first"
        assert state.pre is not None, "the embedding step hands over the first collapse weights"
        config = self.config
        mix = mixing_values(
            state.stream,
            self.get_parameter(f"hc_{part}_fn"),
            eps=config.rms_norm_eps,
            tf32=self.precision.profile.hc_mix == "tf32",
        )
        mixes = split_mixing(
            mix,
            self.get_parameter(f"hc_{part}_scale"),
            self.get_parameter(f"hc_{part}_base"),
            streams=config.hc_mult,
            eps=config.hc_eps,
            iterations=config.hc_sinkhorn_iters,
        )
        return state.stream, state.pre, mixes
