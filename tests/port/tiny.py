"""A small model with random weights whose every size differs from the golden ones, so that no number is built in.

Three residual streams, six heads of 96, three output groups, Engram before the very first layer, ratios that begin at
layer 1, a vocabulary of 397. Large enough that the indexers leave entries out and the candidate blocks bind.
"""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import torch
from torch import nn

from port.config import ModelConfig, QuantizationConfig, RopeScaling
from port.kernels.quantize import quantize_fp4_rows, quantize_fp8_tiles
from port.model.engram import EngramTable
from port.model.transformer import Transformer
from port.model.weights import Linear
from port.numerics import NumericProfile
from port.runtime.engram_hash import EngramHash, prime_table
from port.runtime.text_model import TextModel

VOCABULARY = 397
COMPRESSED_VOCABULARY = 250

BASE = ModelConfig(
    architectures=("DeepseekV41ForCausalLM",),
    model_type="deepseek_v41",
    dtype="bfloat16",
    quantization=QuantizationConfig(),
    bos_token_id=0,
    eos_token_id=1,
    pad_token_id=2,
    image_token_id=VOCABULARY - 1,
    vocab_size=VOCABULARY,
    hidden_size=96,
    num_hidden_layers=7,
    num_attention_heads=6,
    num_key_value_heads=1,
    head_dim=96,
    qk_rope_head_dim=24,
    q_lora_rank=160,
    o_lora_rank=32,
    o_groups=3,
    swiglu_limit=10.0,
    rms_norm_eps=1e-20,
    max_position_embeddings=1024,
    rope_theta=10000.0,
    compress_rope_theta=40000.0,
    rope_scaling=RopeScaling(
        rope_type="yarn", factor=8.0, beta_fast=32.0, beta_slow=1.0, original_max_position_embeddings=48
    ),
    moe_intermediate_size=64,
    n_routed_experts=10,
    n_shared_experts=2,
    num_experts_per_tok=3,
    routed_scaling_factor=2.5,
    sliding_window=11,
    compress_ratios=(0, 2, 2, 2, 1, 1, 1, 0),
    num_nextn_predict_layers=1,
    kv_source_layer_ids=(1, 3, 4),
    index_source_layer_ids=(1, 3, 4, 6),
    index_n_heads=5,
    index_head_dim=64,
    index_topk=7,
    candidate_source_layer_id=4,
    candidate_topk_blocks=3,
    candidate_block_size=5,
    hc_mult=3,
    hc_sinkhorn_iters=20,
    hc_eps=1e-6,
    engram_layer_ids=(0, 1),
    engram_max_ngram_size=4,
    engram_vocab_size=53,
    engram_n_heads=3,
    engram_head_dim=32,
    engram_compressed_vocab_size=COMPRESSED_VOCABULARY,
)


def tiny_config(**changes) -> ModelConfig:
    """Return the configuration with some values replaced."""
    return dataclasses.replace(BASE, **changes)


def token_map() -> np.ndarray:
    """Return a compression map in which several tokens share an id."""
    return np.arange(VOCABULARY) * 7 % COMPRESSED_VOCABULARY


def tiny_model(
    profile: str | NumericProfile = "fp32", *, seed: int = 0, config: ModelConfig = BASE, **options
) -> TextModel:
    """Return the model with random weights; it has neither checkpoint nor tokenizer."""
    named = NumericProfile.named(profile) if isinstance(profile, str) else profile
    model = Transformer(config, profile=named, **options)
    fill_randomly(model, seed)
    engram = EngramHash.from_config(config, token_map()) if config.engram_layer_ids else None
    return TextModel(checkpoint=None, model=model, tokenizer=None, engram=engram)  # type: ignore[arg-type]


def fill_randomly(model: Transformer, seed: int) -> None:
    """Put random numbers of a sensible size in place of every weight on `meta`."""
    for name, tensor in _random_weights(model.config, seed).items():
        owner, _, leaf = name.rpartition(".")
        setattr(model.get_submodule(owner), leaf, _parameter(tensor))
    for module in model.modules():
        if isinstance(module, Linear) and model.weight_form == "dequantized":
            module.make_dense(model.precision.operands)


@functools.lru_cache(maxsize=4)
def _random_weights(config: ModelConfig, seed: int) -> dict[str, torch.Tensor]:
    """Return weights by name; models share them, so a test that changes one must copy it first."""
    model = Transformer(config, profile=NumericProfile.named("fp32"))
    generator = torch.Generator().manual_seed(seed)
    for name, module in model.named_modules():
        for leaf, parameter in list(module.named_parameters(recurse=False)):
            if leaf == "scale" and isinstance(module, Linear | EngramTable):
                continue
            random = torch.randn(_numbers_shape(module, parameter), generator=generator)
            _fill(module, name, leaf, parameter, random)
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def _numbers_shape(module: nn.Module, parameter: torch.Tensor) -> tuple[int, ...]:
    rows = tuple(parameter.shape)
    packed = isinstance(module, Linear) and module.stored == "fp4"
    return (rows[0], rows[1] * 2) if packed else rows


def _fill(module: nn.Module, name: str, leaf: str, parameter: torch.Tensor, random: torch.Tensor) -> None:
    if isinstance(module, EngramTable):
        values, scale = quantize_fp8_tiles(random * torch.exp2(random[:, :1].round()), block=(1, 32))
        module.scale = _parameter(scale)
    elif isinstance(module, Linear) and module.stored != "bf16":
        weight = random / random.shape[1] ** 0.5
        values, scale = quantize_fp8_tiles(weight) if module.stored == "fp8" else quantize_fp4_rows(weight)
        module.scale = _parameter(scale)
    elif isinstance(module, Linear) or leaf.endswith("_fn"):
        values = random / random.shape[1] ** 0.5 * (2.0 if leaf.endswith("_fn") else 1.0)
    elif name.endswith("norm") or leaf in ("q_weight", "k_weight"):
        values = 1.0 + 0.2 * random
    elif leaf == "weight" and name.endswith("gate"):
        values = random / random.shape[1] ** 0.5 * 2.0
    else:
        # Embedding rows, sinks, mixing scales and bases; the bias for image tokens must never be used.
        values = random * {"bias": 0.2, "bias_vl": 50.0}.get(leaf, 1.0)
    setattr(module, leaf, _parameter(values.to(parameter.dtype)))


def _parameter(tensor: torch.Tensor) -> nn.Parameter:
    return nn.Parameter(tensor, requires_grad=False)


def random_ids(count: int, *, seed: int = 0, vocabulary: int = VOCABULARY) -> tuple[int, ...]:
    """Return token ids without the image token."""
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(0, vocabulary - 1, (count,), generator=generator).tolist())


def engram_rows(config: ModelConfig = BASE) -> tuple[int, ...]:
    """Return the table rows of every Engram layer."""
    return tuple(int(total) for total in prime_table(config).sum(axis=(1, 2)))
