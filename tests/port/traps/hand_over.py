"""Traps of what one sub-layer hands to the next through the hyper-connections."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from port.kernels.hyper_connections import mixing_values
from port.model.block import Block
from port.model.transformer import Transformer
from tests.port.tiny import BASE
from tests.port.traps.mutation import (
    Trap,
    replace_method,
    rewrite_method,
    wrap_function,
)
from tests.port.traps.runs import (
    TOKENS,
    alike,
    one_sequence_batch,
    taps_of,
    tiny,
)


def sub_layers_hand_over_one_late() -> None:
    text_model = tiny()
    layers, taps = text_model.model.layers, taps_of(text_model)

    def collapse_weights(stream: Tensor, block: Block, part: str) -> Tensor:
        """The first mix of a sub-layer, from one statistic over all streams together."""
        flat = stream.flatten(1)
        mix = flat @ block.get_parameter(f"hc_{part}_fn").T / flat.square().mean(dim=-1, keepdim=True).sqrt()
        scale, base = block.get_parameter(f"hc_{part}_scale"), block.get_parameter(f"hc_{part}_base")
        return torch.sigmoid(mix[:, : BASE.hc_mult] * scale[0] + base[: BASE.hc_mult]) + BASE.hc_eps

    def entering(block: Block, part: str, stream: Tensor, pre: Tensor) -> Tensor:
        return getattr(block, f"{part}_norm")((pre.unsqueeze(-1) * stream).sum(dim=1))

    stream = taps["layers.0.engram.out"]
    copy_0 = torch.zeros(len(TOKENS), BASE.hc_mult)
    copy_0[:, 0] = 1
    alike(taps["layers.0.attn.in"], entering(layers[0], "attn", stream, copy_0))
    pre = collapse_weights(stream, layers[0], "attn")
    stream = taps["layers.0.attn.stream"]
    alike(taps["layers.0.ffn.in"], entering(layers[0], "ffn", stream, pre))
    pre = collapse_weights(stream, layers[0], "ffn")
    alike(taps["layers.1.attn.in"], entering(layers[1], "attn", taps["layers.1.engram.out"], pre))


def plant_collapsed_statistics(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(right, stream, weight, **options):
        return right(stream.mean(dim=1, keepdim=True).expand_as(stream), weight, **options)

    wrap_function(monkeypatch, mixing_values, wrong)


def mixing_of_a_small_stream_uses_rms_norm_eps() -> None:
    block = tiny().model.layers[2]
    stream = torch.randn(4, BASE.hc_mult, BASE.hidden_size, generator=torch.Generator().manual_seed(0))
    pre = torch.zeros(4, BASE.hc_mult)
    state = tiny().model.begin(one_sequence_batch(4)).replace(stream=stream, pre=pre)
    small = state.replace(stream=stream * 2.0**-16)
    for found, expected in zip(block._enter("attn", small)[2], block._enter("attn", state)[2], strict=True):
        alike(found.flatten(1), expected.flatten(1))


def mixing_has_no_norm_weight_of_its_own() -> None:
    assert not [name for name in tiny().model.state_dict() if "hc_" in name and "norm" in name]
    sub_layers_hand_over_one_late()


def plant_weighted_mixing(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Block._enter

    def wrong(self, part, state):
        stream, pre, _ = right(self, part, state)
        norm = getattr(self, f"{part}_norm").weight.float()
        _, _, mixes = right(self, part, state.replace(stream=stream * norm))
        return stream, pre, mixes

    replace_method(monkeypatch, Block, "_enter", wrong)


HAND_OVER_TRAPS = (
    Trap(
        number=2,
        name="sub_layers_read_with_the_weights_of_the_one_before",
        check=sub_layers_hand_over_one_late,
        plant=rewrite_method(
            Block, "_enter", ("return state.stream, state.pre, mixes", "return state.stream, mixes[0], mixes")
        ),
        golden=True,
    ),
    Trap(
        number=2,
        name="mixes_come_from_the_uncollapsed_streams",
        check=sub_layers_hand_over_one_late,
        plant=plant_collapsed_statistics,
        golden=True,
    ),
    Trap(
        number=2,
        name="first_input_is_copy_0",
        check=sub_layers_hand_over_one_late,
        plant=rewrite_method(Transformer, "_embed", ("pre[:, 0] = 1.0", "pre[:] = 1.0 / streams")),
    ),
    Trap(
        number=5,
        name="mixing_uses_rms_norm_eps",
        check=mixing_of_a_small_stream_uses_rms_norm_eps,
        plant=rewrite_method(Block, "_enter", ("eps=config.rms_norm_eps", "eps=config.hc_eps")),
    ),
    Trap(
        number=5,
        name="mixing_has_no_norm_weight_of_its_own",
        check=mixing_has_no_norm_weight_of_its_own,
        plant=plant_weighted_mixing,
        golden=True,
    ),
)
