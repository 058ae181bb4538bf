"""Which tensors a checkpoint of a configuration must hold: name, stored dtype and shape, from the configuration alone.

| written as | weight | scale |
|---|---|---|
| plain | BF16 or F32 [..] | none |
| fp8 | F8_E4M3 [N, K] | F8_E8M0 [ceil(N/32), ceil(K/32)], one per 32 x 32 tile |
| fp4 (routed experts) | I8 [N, K/2], two codes a byte | F8_E8M0 [N, K/32], one per row and 32 columns |
| table (Engram) | F8_E4M3 [rows, K] | F8_E8M0 [rows, K/32], one per row and 32 columns |

The draft layers (`mtp.*`) and the vision tower are listed too, though only the text model runs. The widths of
`aligner.*` are inferred, not read from a released header.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Literal, get_args

from port.checkpoint.dtypes import STORED_DTYPES
from port.checkpoint.families import Family, family_of
from port.config import ModelConfig
from port.config_rules import QUANTIZATION_GROUP
from port.engram_primes import engram_table_rows
from port.schedule import LayerSchedule

Part = Literal["text", "draft", "vision"]
PARTS: tuple[Part, ...] = get_args(Part)


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """One tensor a checkpoint must hold.

    Attributes:
        name: without `model.` prefix.
        dtype: as a header spells it.
        shape: stored shape; the last axis of packed FP4 counts bytes.
        part: which part of the model needs it.
        scale_of: for a scale, the name of its weight; else None.
        scale: for a quantised weight, the name of its scale; else None.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    part: Part = "text"
    scale_of: str | None = None
    scale: str | None = None

    @property
    def nbytes(self) -> int:
        """Bytes stored."""
        return prod(self.shape) * STORED_DTYPES[self.dtype].bits // 8

    @property
    def family(self) -> Family:
        """Part of the model, as inventories name it."""
        return family_of(self.name)

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


def tensor_table(config: ModelConfig, parts: Iterable[Part] = PARTS) -> dict[str, TensorSpec]:
    """Return every tensor a checkpoint of `config` must hold, by name, in model order.

    Args:
        config: of the checkpoint.
        parts: which parts to list; a part the configuration does not declare has no tensors.
    """
    makers = {"text": _text, "draft": _draft, "vision": _vision}
    wanted = tuple(parts)
    return {spec.name: spec for part in PARTS if part in wanted for spec in makers[part](config)}


def declared_parts(config: ModelConfig) -> tuple[Part, ...]:
    """Return the parts a configuration declares: text always, the draft and the vision tower where they have layers."""
    found: list[Part] = ["text"]
    if config.num_nextn_predict_layers:
        found.append("draft")
    if _vision_size(config, "num_hidden_layers"):
        found.append("vision")
    return tuple(found)


def _text(config: ModelConfig) -> Iterator[TensorSpec]:
    width = config.hidden_size
    table_rows = dict(zip(config.engram_layer_ids, _table_rows(config), strict=True))
    yield _plain("embed.weight", "BF16", config.vocab_size, width)
    for role in LayerSchedule.from_config(config).roles:
        at = f"layers.{role.layer}."
        if role.has_engram:
            yield from _engram(config, at + "engram.", table_rows[role.layer])
        yield from _residual_stream(config, at)
        yield from _attention(config, at + "attn.")
        if role.owns_kv:
            yield from _compressor(config, at + "attn.compressor.", role.ratio)
        if role.owns_index_k:
            yield _plain(at + "attn.indexer.wk.weight", "BF16", config.index_head_dim, config.head_dim)
            yield _plain(at + "attn.indexer.k_norm.weight", "BF16", config.index_head_dim)
        if role.owns_index:
            yield from _fp8(at + "attn.indexer.wq_b", config.index_n_heads * config.index_head_dim, config.q_lora_rank)
            yield _plain(at + "attn.indexer.weights_proj.weight", "BF16", config.index_n_heads, width)
        yield from _feed_forward(config, at + "ffn.", config.n_routed_experts)
    yield _plain("norm.weight", "BF16", width)
    yield _plain("head.weight", "BF16", config.vocab_size, width)


def _draft(config: ModelConfig) -> Iterator[TensorSpec]:
    stages, width, rank = config.num_nextn_predict_layers, config.hidden_size, config.dspark_markov_rank
    for stage in range(stages):
        at = f"mtp.{stage}."
        if stage == 0:
            yield from _fp8(at + "main_proj", width, len(config.dspark_target_layer_ids) * width, part="draft")
            yield _plain(at + "main_norm.weight", "BF16", width, part="draft")
        yield from _residual_stream(config, at, part="draft")
        yield from _attention(config, at + "attn.", part="draft")
        yield from _feed_forward(config, at + "ffn.", config.dspark_n_routed_experts, part="draft")
        if stage == stages - 1:
            yield _plain(at + "norm.weight", "BF16", width, part="draft")
            yield _plain(at + "markov_head.embed.weight", "BF16", config.vocab_size, rank, part="draft")
            yield _plain(at + "markov_head.head.weight", "BF16", config.vocab_size, rank, part="draft")
            yield _plain(at + "confidence_head.proj.weight", "BF16", 1, width + rank, part="draft")


def _vision(config: ModelConfig) -> Iterator[TensorSpec]:
    blocks = _vision_size(config, "num_hidden_layers")
    if not blocks:
        return
    width, inner = _vision_size(config, "hidden_size"), _vision_size(config, "intermediate_size")
    patch, ratio = _vision_size(config, "patch_size"), _vision_size(config, "downsample_ratio")
    for name in ("image_start", "image_end", "image_newline"):
        yield _plain(name, "BF16", config.hidden_size, part="vision")
    yield from _with_bias("vision.patch_embed.proj", width, 3 * patch * patch)
    for block in range(blocks):
        at = f"vision.blocks.{block}."
        yield _plain(at + "norm1.weight", "BF16", width, part="vision")
        yield from _with_bias(at + "attn.wqkv", 3 * width, width)
        yield from _with_bias(at + "attn.wo", width, width)
        yield _plain(at + "norm2.weight", "BF16", width, part="vision")
        yield _plain(at + "mlp.w1.weight", "BF16", 2 * inner, width, part="vision")
        yield _plain(at + "mlp.w2.weight", "BF16", width, inner, part="vision")
    yield _plain("vision.norm.weight", "BF16", width, part="vision")
    yield from _with_bias("aligner.w1", config.hidden_size, ratio * ratio * width)
    yield from _with_bias("aligner.w2", config.hidden_size, config.hidden_size)


def _residual_stream(config: ModelConfig, at: str, *, part: Part = "text") -> Iterator[TensorSpec]:
    streams = config.hc_mult
    mixes = (2 + streams) * streams
    for side in ("attn", "ffn"):
        yield _plain(f"{at}{side}_norm.weight", "BF16", config.hidden_size, part=part)
        yield _plain(f"{at}hc_{side}_fn", "F32", mixes, streams * config.hidden_size, part=part)
        yield _plain(f"{at}hc_{side}_base", "F32", mixes, part=part)
        yield _plain(f"{at}hc_{side}_scale", "F32", 3, part=part)


def _attention(config: ModelConfig, at: str, *, part: Part = "text") -> Iterator[TensorSpec]:
    width, heads, latent = config.hidden_size, config.num_attention_heads, config.q_lora_rank
    grouped = config.o_groups * config.o_lora_rank
    yield _plain(at + "attn_sink", "F32", heads, part=part)
    yield from _fp8(at + "wq_a", latent, width, part=part)
    yield _plain(at + "q_norm.weight", "BF16", latent, part=part)
    yield from _fp8(at + "wq_b", heads * config.head_dim, latent, part=part)
    yield from _fp8(at + "wkv", config.head_dim, width, part=part)
    yield _plain(at + "kv_norm.weight", "BF16", config.head_dim, part=part)
    yield from _fp8(at + "wo_a", grouped, heads * config.head_dim // config.o_groups, part=part)
    yield from _fp8(at + "wo_b", width, grouped, part=part)


def _compressor(config: ModelConfig, at: str, ratio: int) -> Iterator[TensorSpec]:
    yield _plain(at + "wkv.weight", "BF16", config.head_dim, config.hidden_size)
    if ratio > 1:
        yield _plain(at + "wgate.weight", "BF16", config.head_dim, config.hidden_size)
    yield _plain(at + "norm.weight", "BF16", config.head_dim)


def _feed_forward(config: ModelConfig, at: str, experts: int, *, part: Part = "text") -> Iterator[TensorSpec]:
    width, inner = config.hidden_size, config.moe_intermediate_size
    yield _plain(at + "gate.weight", "BF16", experts, width, part=part)
    yield _plain(at + "gate.bias", "F32", experts, part=part)
    yield _plain(at + "gate.bias_vl", "F32", experts, part=part)
    shared = config.n_shared_experts * inner
    yield from _fp8(at + "shared_experts.w1", shared, width, part=part)
    yield from _fp8(at + "shared_experts.w2", width, shared, part=part)
    yield from _fp8(at + "shared_experts.w3", shared, width, part=part)
    for expert in range(experts):
        yield from _fp4(f"{at}experts.{expert}.w1", inner, width, part=part)
        yield from _fp4(f"{at}experts.{expert}.w2", width, inner, part=part)
        yield from _fp4(f"{at}experts.{expert}.w3", inner, width, part=part)


def _engram(config: ModelConfig, at: str, rows: int) -> Iterator[TensorSpec]:
    streams, width, head = config.hc_mult, config.hidden_size, config.engram_head_dim
    looked_up = (config.engram_max_ngram_size - 1) * config.engram_n_heads * head
    yield _plain(at + "q_weight", "BF16", streams, width)
    yield _plain(at + "k_weight", "BF16", streams, width)
    yield from _fp8(at + "wkv", (streams + 1) * width, looked_up)
    yield from _pair(at + "embed", "F8_E4M3", (rows, head), (rows, _groups(head)), "text")


def _table_rows(config: ModelConfig) -> tuple[int, ...]:
    return config.engram_num_embeddings or engram_table_rows(config)


def _plain(name: str, dtype: str, *shape: int, part: Part = "text") -> TensorSpec:
    return TensorSpec(name=name, dtype=dtype, shape=shape, part=part)


def _with_bias(stem: str, rows: int, columns: int) -> Iterator[TensorSpec]:
    yield _plain(stem + ".weight", "BF16", rows, columns, part="vision")
    yield _plain(stem + ".bias", "BF16", rows, part="vision")


def _fp8(stem: str, rows: int, columns: int, *, part: Part = "text") -> Iterator[TensorSpec]:
    return _pair(stem, "F8_E4M3", (rows, columns), (_groups(rows), _groups(columns)), part)


def _fp4(stem: str, rows: int, columns: int, *, part: Part = "text") -> Iterator[TensorSpec]:
    return _pair(stem, "I8", (rows, columns // 2), (rows, _groups(columns)), part)


def _pair(stem: str, dtype: str, shape: tuple[int, int], scale: tuple[int, int], part: Part) -> Iterator[TensorSpec]:
    weight_name, scale_name = stem + ".weight", stem + ".scale"
    yield TensorSpec(name=weight_name, dtype=dtype, shape=shape, part=part, scale=scale_name)
    yield TensorSpec(name=scale_name, dtype="F8_E8M0", shape=scale, part=part, scale_of=weight_name)


def _groups(size: int) -> int:
    return -(-size // QUANTIZATION_GROUP)


def _vision_size(config: ModelConfig, key: str) -> int:
    """Return a number of the vision configuration, 0 where it is absent or no number."""
    value = (config.vision or _NO_VISION).get(key)
    return value if isinstance(value, int) and value > 0 else 0


_NO_VISION: Mapping[str, object] = {}
