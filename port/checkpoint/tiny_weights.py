"""Random weights for small test checkpoints: the same numbers from the same seed, on any machine and NumPy version.

Numbers come from raw generator output (a guaranteed stream) as sums of twelve uniform parts, which is near enough to
normal; no library's own normal distribution is trusted to stay as it is. Sizes are such that a random model behaves:
activations stay near 1, routers and indexers choose between clearly different scores, and every tile and row of a
quantised weight has a scale of its own, so that a wrong scale shows.
"""

import hashlib
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from port.checkpoint.codecs import encode_fp4, encode_fp8
from port.checkpoint.dtypes import STORED_DTYPES
from port.checkpoint.names import TensorSpec
from port.checkpoint.slices import is_table
from port.config import ModelConfig
from port.config_rules import QUANTIZATION_GROUP

_UNIFORMS = 12
_LEAF_FACTOR: Mapping[str, float] = {
    "bias": 0.2,
    "bias_vl": 50.0,  # whoever adds the image bias to text tokens must notice
}


def tiny_weights(config: ModelConfig, table: Mapping[str, TensorSpec], *, seed: int) -> dict[str, Tensor]:
    """Return random tensors for every entry of a tensor table, as stored.

    Args:
        config: of the checkpoint; head rows of its special tokens are zero, so that greedy decoding never makes them.
        table: of `port.checkpoint.names.tensor_table`.
        seed: of all numbers; each tensor depends on its own name and the seed alone.
    """
    tensors: dict[str, Tensor] = {}
    for name, spec in table.items():
        if spec.scale_of is not None:
            continue
        if spec.scale is None:
            tensors[name] = _plain(config, spec, seed)
        else:
            tensors[name], tensors[spec.scale] = _quantized(spec, table[spec.scale], seed)
    return {name: tensors[name] for name in table}


def random_numbers(seed: int, name: str, *shape: int) -> Tensor:
    """Return nearly normal numbers of variance 1, float32; they depend on `seed` and `name` alone."""
    count = int(np.prod(shape, dtype=np.int64))
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    stream = np.random.PCG64(np.random.SeedSequence(int.from_bytes(digest, "little")))
    raw = stream.random_raw(count * _UNIFORMS // 4)
    parts = raw.astype("<u8").view("<u2").reshape(count, _UNIFORMS).sum(axis=1, dtype=np.int64)
    numbers = (parts - _UNIFORMS * 32767.5) / 65536.0  # exact in float64
    return torch.tensor(numbers, dtype=torch.float32).view(shape)


def _plain(config: ModelConfig, spec: TensorSpec, seed: int) -> Tensor:
    numbers = random_numbers(seed, spec.name, *spec.shape)
    leaf = spec.name.rsplit(".", 1)[-1]
    if leaf in ("q_weight", "k_weight") or (leaf == "weight" and "norm" in spec.name.rsplit(".", 2)[-2]):
        numbers = 1.0 + 0.2 * numbers
    elif leaf.endswith("_fn") or spec.name.endswith("gate.weight"):
        numbers = numbers * (2.0 / spec.shape[-1] ** 0.5)
    elif spec.name in ("embed.weight", "markov_head.embed.weight"):
        pass
    elif leaf == "weight":
        numbers = numbers / spec.shape[-1] ** 0.5
    else:
        numbers = numbers * _LEAF_FACTOR.get(leaf, 1.0)
    if spec.name == "head.weight":
        for token in (config.bos_token_id, config.eos_token_id, config.pad_token_id, config.image_token_id):
            if token is not None and token < spec.shape[0]:
                numbers[token] = 0.0
    dtype = STORED_DTYPES[spec.dtype].torch_dtype
    assert dtype is not None, "weights are stored in dtypes torch has"
    return numbers.to(dtype)


def _quantized(spec: TensorSpec, scale: TensorSpec, seed: int) -> tuple[Tensor, Tensor]:
    packed = spec.dtype == "I8"
    rows, columns = spec.shape[0], spec.shape[1] * (2 if packed else 1)
    block = (1 if packed or is_table(spec.name) else QUANTIZATION_GROUP, QUANTIZATION_GROUP)
    steps = random_numbers(seed, scale.name, *scale.shape).clamp(-2, 2).round()
    spread = torch.exp2(steps).repeat_interleave(block[0], dim=0)[:rows].repeat_interleave(block[1], dim=1)[:, :columns]
    numbers = random_numbers(seed, spec.name, rows, columns) * spread
    if not is_table(spec.name):
        numbers = numbers / (1.5 * columns**0.5)  # the spread of the scales makes rows longer
    encoded = encode_fp4(numbers) if packed else encode_fp8(numbers, block=block)
    weight = encoded.weight.view(torch.int8) if packed else encoded.weight
    assert tuple(weight.shape) == spec.shape, f"{spec.name} is encoded as {spec.shape}"
    assert tuple(encoded.scale.shape) == scale.shape, f"{scale.name} is encoded as {scale.shape}"
    return weight, encoded.scale
