"""What must hold between the values of a model configuration. Each rule returns sentences; none stops at the first.

Only rules of the architecture live here. Limits of one engine (rotary width 64, head width 512, candidate blocks of 8
or 16) do not: small models break them on purpose.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from port.config import ModelConfig

QUANTIZATION_GROUP = 32
TOKENS_PER_BLOCK = 128


def config_problems(config: "ModelConfig") -> list[str]:
    """Return one sentence per broken rule, in a stable order; empty when the configuration can be run."""
    return [
        *_fixed_value_problems(config),
        *_positive_problems(config),
        *_width_problems(config),
        *_rope_problems(config),
        *_source_problems(config),
        *_candidate_problems(config),
        *_engram_problems(config),
    ]


def source_of(layer: int, sources: tuple[int, ...]) -> int | None:
    """Return the largest source id that is not above `layer`, or None when every source comes later."""
    return max((source for source in sources if source <= layer), default=None)


def _fixed_value_problems(config: "ModelConfig") -> Iterator[str]:
    accepted = {
        "architectures": (("DeepseekV41ForCausalLM",),),
        "model_type": ("deepseek_v41",),
        "dtype": ("bfloat16",),
        "num_key_value_heads": (1,),
        "hidden_act": ("silu",),
        "attention_bias": (False,),
        "attention_dropout": (0.0,),
        "tie_word_embeddings": (False,),
        "scoring_func": ("sqrtsoftplus",),
        "topk_method": ("noaux_tc",),
        "norm_topk_prob": (True,),
        "hc_shifted": (True,),
        "tokenizer_compatibility": ("release", "native"),
        "dspark_target_attn_input": (True,),
    }
    for name, values in accepted.items():
        found = getattr(config, name)
        if found not in values:
            yield f"{name}: expected {' or '.join(repr(value) for value in values)}; found {found!r}"
    stored = {
        "quant_method": "fp8",
        "activation_scheme": "dynamic",
        "weight_block_size": (32, 32),
        "scale_fmt": "ue8m0",
        "expert_dtype": "fp4",
    }
    for name, value in stored.items():
        found = getattr(config.quantization, name)
        if found != value:
            yield f"quantization_config.{name}: expected {value!r}; found {found!r}"


def _positive_problems(config: "ModelConfig") -> Iterator[str]:
    for name in (
        "vocab_size",
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "head_dim",
        "qk_rope_head_dim",
        "q_lora_rank",
        "o_lora_rank",
        "o_groups",
        "max_position_embeddings",
        "moe_intermediate_size",
        "n_routed_experts",
        "n_shared_experts",
        "num_experts_per_tok",
        "sliding_window",
        "hc_mult",
        "hc_sinkhorn_iters",
        "rope_theta",
        "compress_rope_theta",
        "swiglu_limit",
    ):
        if getattr(config, name) <= 0:
            yield f"{name}: expected a positive number; found {getattr(config, name)!r}"
    if config.rms_norm_eps < 0 or config.hc_eps < 0:
        yield f"rms_norm_eps, hc_eps: expected numbers not below 0; found {config.rms_norm_eps!r}, {config.hc_eps!r}"
    if config.num_nextn_predict_layers < 0:
        yield f"num_nextn_predict_layers: expected 0 or more; found {config.num_nextn_predict_layers!r}"
    if config.num_experts_per_tok > config.n_routed_experts:
        yield (
            f"num_experts_per_tok: expected at most n_routed_experts ({config.n_routed_experts}); "
            f"found {config.num_experts_per_tok}"
        )


def _width_problems(config: "ModelConfig") -> Iterator[str]:
    widths = {
        "hidden_size": config.hidden_size,
        "head_dim": config.head_dim,
        "q_lora_rank": config.q_lora_rank,
        "moe_intermediate_size": config.moe_intermediate_size,
        "o_groups * o_lora_rank": config.o_groups * config.o_lora_rank,
    }
    if any(ratio > 0 for ratio in config.compress_ratios):
        widths["index_head_dim"] = config.index_head_dim
    if config.engram_layer_ids:
        widths["engram_head_dim"] = config.engram_head_dim
    for name, width in widths.items():
        if width % QUANTIZATION_GROUP or width <= 0:
            yield f"{name}: expected a multiple of {QUANTIZATION_GROUP}, the channels that share a scale; found {width}"
    if config.o_groups > 0 and config.num_attention_heads % config.o_groups:
        yield (
            f"num_attention_heads: expected a multiple of o_groups ({config.o_groups}); "
            f"found {config.num_attention_heads}"
        )


def _rope_problems(config: "ModelConfig") -> Iterator[str]:
    width = config.qk_rope_head_dim
    if width % 2:
        yield f"qk_rope_head_dim: expected an even number (pairs are rotated); found {width}"
    if width > config.head_dim:
        yield f"qk_rope_head_dim: expected at most head_dim ({config.head_dim}); found {width}"
    compressed = any(ratio > 0 for ratio in config.compress_ratios)
    if compressed and width > config.index_head_dim:
        yield f"qk_rope_head_dim: expected at most index_head_dim ({config.index_head_dim}); found {width}"
    scaling = config.rope_scaling
    if scaling is None:
        return
    if scaling.rope_type != "yarn":
        yield f"rope_scaling.rope_type: expected 'yarn'; found {scaling.rope_type!r}"
    for name in ("factor", "beta_fast", "beta_slow", "original_max_position_embeddings"):
        if getattr(scaling, name) <= 0:
            yield f"rope_scaling.{name}: expected a positive number; found {getattr(scaling, name)!r}"


def _source_problems(config: "ModelConfig") -> Iterator[str]:
    ratios, layers = config.compress_ratios, config.num_hidden_layers
    expected = layers + config.num_nextn_predict_layers
    if len(ratios) != expected:
        yield (
            f"compress_ratios: expected {expected} entries (num_hidden_layers {layers} + num_nextn_predict_layers "
            f"{config.num_nextn_predict_layers}); found {len(ratios)}"
        )
        return
    for layer, ratio in enumerate(ratios):
        if ratio < 0 or (ratio > 0 and TOKENS_PER_BLOCK % ratio):
            yield f"compress_ratios[{layer}]: expected 0 or a divisor of {TOKENS_PER_BLOCK}; found {ratio}"
        if layer >= layers and ratio != 0:
            yield f"compress_ratios[{layer}]: expected 0 for a draft layer; found {ratio}"
    lists = ("kv_source_layer_ids", "index_k_source_layer_ids", "index_source_layer_ids")
    well_formed = True
    for name in lists:
        sources = getattr(config, name)
        if list(sources) != sorted(set(sources)) or any(not 0 <= source < layers for source in sources):
            well_formed = False
            yield f"{name}: expected ascending layer ids from 0 to {layers - 1}; found {list(sources)}"
            continue
        for source in sources:
            if ratios[source] == 0:
                yield f"{name}: expected layers with a ratio above 0; layer {source} has ratio 0"
    if not well_formed:
        return
    for coarse, fine in (lists[:2], lists[1:]):
        missing = sorted(set(getattr(config, coarse)) - set(getattr(config, fine)))
        if missing:
            yield f"{fine}: expected to contain every layer of {coarse}; layers {missing} are missing"
    without_latent = sorted(set(config.index_k_source_layer_ids) - set(config.kv_source_layer_ids))
    if without_latent:
        yield (
            f"index_k_source_layer_ids: expected layers of kv_source_layer_ids, whose compressor gives the latent an "
            f"index key is made from; layers {without_latent} have none"
        )
    for layer in range(layers):
        if ratios[layer] == 0:
            continue
        for name in lists:
            source = source_of(layer, getattr(config, name))
            if source is None:
                yield f"{name}: expected a source at or before layer {layer} of ratio {ratios[layer]}; there is none"
            elif ratios[source] != ratios[layer]:
                yield (
                    f"{name}: layer {layer} has ratio {ratios[layer]} and would read from layer {source} "
                    f"with ratio {ratios[source]}; a source and its readers need the same ratio"
                )
    if any(ratio > 0 for ratio in ratios):
        for name in ("index_n_heads", "index_topk"):
            if getattr(config, name) <= 0:
                yield f"{name}: expected a positive number; found {getattr(config, name)!r}"


def _candidate_problems(config: "ModelConfig") -> Iterator[str]:
    source = config.candidate_source_layer_id
    if source is None:
        return
    if source not in config.index_source_layer_ids:
        yield (
            f"candidate_source_layer_id: expected one of index_source_layer_ids "
            f"{list(config.index_source_layer_ids)}; found {source}"
        )
    if config.candidate_block_size <= 0 or config.candidate_topk_blocks <= 0:
        yield (
            f"candidate_topk_blocks, candidate_block_size: expected positive numbers; found "
            f"{config.candidate_topk_blocks}, {config.candidate_block_size}"
        )
    elif config.candidate_topk_blocks * config.candidate_block_size < config.index_topk:
        yield (
            f"candidate_topk_blocks * candidate_block_size: expected at least index_topk ({config.index_topk}); "
            f"found {config.candidate_topk_blocks} * {config.candidate_block_size}"
        )
    keys = source_of(source, config.index_k_source_layer_ids)
    for layer in config.index_source_layer_ids:
        others = source_of(layer, config.index_k_source_layer_ids)
        if layer > source and others != keys:
            yield (
                f"candidate_source_layer_id: layer {layer} selects inside the blocks of layer {source} and would have "
                f"to score the same entries; it scores those of layer {others}, not of layer {keys}"
            )


def _engram_problems(config: "ModelConfig") -> Iterator[str]:
    layers = config.engram_layer_ids
    if not layers:
        return
    if len(set(layers)) != len(layers) or any(not 0 <= layer < config.num_hidden_layers for layer in layers):
        yield (
            f"engram_layer_ids: expected different layer ids from 0 to {config.num_hidden_layers - 1}; "
            f"found {list(layers)}"
        )
    if config.engram_num_embeddings and len(config.engram_num_embeddings) != len(layers):
        yield (
            f"engram_num_embeddings: expected one number per Engram layer ({len(layers)}); "
            f"found {len(config.engram_num_embeddings)}"
        )
    if config.engram_max_ngram_size < 2:
        yield f"engram_max_ngram_size: expected 2 or more; found {config.engram_max_ngram_size}"
    for name in ("engram_vocab_size", "engram_n_heads", "engram_compressed_vocab_size"):
        if getattr(config, name) <= 0:
            yield f"{name}: expected a positive number; found {getattr(config, name)!r}"
