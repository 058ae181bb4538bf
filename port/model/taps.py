"""Taps: a function called at every named intermediate, which may look at it or put another tensor in its place.

    def tap(name: str, tensor: Tensor) -> Tensor: ...

Names, with `{n}` for the layer:

| name | tensor |
|---|---|
| `embed.out` | streams after the embedding, (T, M, D) |
| `layers.{n}.engram.gate` | float32 (T, M) |
| `layers.{n}.engram.out` | streams after the lookup, (T, M, D) |
| `layers.{n}.attn.in` | normalised input, (T, D) |
| `layers.{n}.attn.q` | queries after rotation, (T, heads, head_dim) |
| `layers.{n}.attn.kv` | window keys as cached, (T, head_dim) |
| `layers.{n}.attn.compressed` | new compressed entries as cached, (C, head_dim); owners only |
| `layers.{n}.attn.index_key` | new index keys as cached, (C, index_head_dim); owners only |
| `layers.{n}.attn.index_query` | (T, index heads, index_head_dim) |
| `layers.{n}.attn.index_weights` | (T, index heads) |
| `layers.{n}.attn.index_score` | float32 (T, entries), -inf = not visible, before the candidate mask |
| `layers.{n}.attn.candidate_blocks` | bool (T, blocks); the publishing layer only |
| `layers.{n}.attn.index_topk` | int32 (T, index_topk), ascending, -1 = none |
| `layers.{n}.attn.heads` | attention output after the inverse rotation, (T, heads, head_dim) |
| `layers.{n}.attn.out` | (T, D) |
| `layers.{n}.attn.stream`, `layers.{n}.attn.pre` | streams and collapse weights after the sub-layer |
| `layers.{n}.ffn.in` | normalised input, (T, D) |
| `layers.{n}.ffn.router_logits` | float32 (T, experts) |
| `layers.{n}.ffn.router_ids`, `layers.{n}.ffn.router_weights` | int64 and float32 (T, experts per token) |
| `layers.{n}.ffn.out` | (T, D) |
| `layers.{n}.out` | streams after the layer, (T, M, D) |
| `layers.{n}.pre` | float32 (T, M), collapse weights handed to the next layer |
| `norm.out` | (T, D) |
| `logits` | float32 (T, vocabulary) |
"""

from collections.abc import Iterable, Mapping
from typing import Protocol

from torch import Tensor


class Tap(Protocol):
    """Looks at an intermediate; what it returns takes the intermediate's place."""

    def __call__(self, name: str, tensor: Tensor) -> Tensor:
        """Return `tensor`, or a tensor of the same shape and dtype."""
        ...


def identity_tap(name: str, tensor: Tensor) -> Tensor:
    """Return the tensor: the tap of an undisturbed run."""
    return tensor


class RecordingTap:
    """Keeps a copy of the intermediates whose names were asked for.

    Args:
        names: what to keep; None for everything.

    Attributes:
        tensors: copies by name. A name met twice keeps the newer tensor.
    """

    def __init__(self, names: Iterable[str] | None = None) -> None:
        self._names = None if names is None else frozenset(names)
        self.tensors: dict[str, Tensor] = {}

    def __call__(self, name: str, tensor: Tensor) -> Tensor:
        """Return `tensor`, after keeping a copy where its name was asked for."""
        if self._names is None or name in self._names:
            self.tensors[name] = tensor.detach().clone()
        return tensor


GOLDEN_LAYER_KEYS: Mapping[str, str] = {
    "out": "layers.{n}.out",
    "pre_mix": "layers.{n}.pre",
    "attn_in": "layers.{n}.attn.in",
    "attn_out": "layers.{n}.attn.out",
    "ffn_in": "layers.{n}.ffn.in",
    "ffn_out": "layers.{n}.ffn.out",
    "router_weights": "layers.{n}.ffn.router_weights",
    "index_score": "layers.{n}.attn.index_score",
    "engram_gate": "layers.{n}.engram.gate",
    "post_engram": "layers.{n}.engram.out",
}
"""Tap name of each per-layer key of a golden trace (`<prompt>.L<n>.<key>`)."""

GOLDEN_MODEL_KEYS: Mapping[str, str] = {"logits": "logits", "final_norm": "norm.out"}
"""Tap name of each golden key that belongs to no layer (`<prompt>.<key>`)."""


def tap_name(golden_key: str) -> str:
    """Return the tap name of a golden key without its prompt, for example `L3.attn_out` or `index_topk.L4`.

    Raises:
        ValueError: a key that no tap produces.
    """
    if golden_key in GOLDEN_MODEL_KEYS:
        return GOLDEN_MODEL_KEYS[golden_key]
    layer, _, key = golden_key.partition(".")
    if layer[:1] == "L" and layer[1:].isdigit() and key in GOLDEN_LAYER_KEYS:
        return GOLDEN_LAYER_KEYS[key].format(n=layer[1:])
    if layer == "index_topk" and key[:1] == "L" and key[1:].isdigit():
        return f"layers.{key[1:]}.attn.index_topk"
    known = [*GOLDEN_MODEL_KEYS, *(f"L<n>.{name}" for name in GOLDEN_LAYER_KEYS), "index_topk.L<n>"]
    raise ValueError(f"golden key: expected one of {', '.join(known)}; found {golden_key!r}.")
