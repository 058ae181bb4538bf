"""The golden data the tests of the port read: the committed part of configuration A, and what is made from it."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor

from port.numerics import NumericProfile
from port.runtime.cache_engine import CacheEngine
from port.runtime.prefill_inputs import build_prefill
from port.runtime.sequence import Sequence
from port.runtime.text_model import TextModel, open_text_model

GOLDEN_A = Path(__file__).resolve().parents[2] / "fixtures" / "golden_A"
CHECKPOINT_A = GOLDEN_A / "checkpoint"

ROW_TOLERANCE = 1e-4
"""Relative L2 of a logits row in mode fp32, from the golden README; two independent implementations agree to 1e-6."""


@functools.cache
def model_a(profile: str | NumericProfile = "fp32") -> TextModel:
    """Return the loaded model of golden A. Shared by tests, which must leave it as it is."""
    return open_text_model(CHECKPOINT_A, profile=profile)


def fresh_model_a(profile: str = "fp32", **options) -> TextModel:
    """Return a model of golden A that the test may change."""
    return open_text_model(CHECKPOINT_A, profile=profile, **options)


@functools.cache
def units() -> dict[str, Tensor]:
    """Return the unit vectors: quantisers, hyper-connections, rotary tables."""
    return load_file(GOLDEN_A / "units.safetensors")


@functools.cache
def prompt_ids(name: str) -> tuple[int, ...]:
    """Return the token ids of a golden prompt."""
    body = json.loads((GOLDEN_A / "golden.json").read_text(encoding="utf-8"))
    return tuple(body["prompts"][name]["token_ids"])


def golden_tensor(key: str, *, file: str = "fp32") -> Tensor:
    """Return one golden tensor, such as `len70.logits`."""
    with safe_open(GOLDEN_A / f"{file}.safetensors", "pt") as data:
        return data.get_tensor(key)


@torch.inference_mode()
def prefill_logits(text_model: TextModel, token_ids: tuple[int, ...], *tap) -> Tensor:
    """Return the logits of every position of one prompt, run at once, float32 (T, V)."""
    cache = text_model.cache_for([len(token_ids)])
    sequence = cache.admit(token_ids)
    return text_model.model(build_prefill(cache.layout, [sequence], engram=text_model.engram), cache, *tap)


@torch.inference_mode()
def run_chunks(
    text_model: TextModel, cache: CacheEngine, sequence: Sequence, chunks: list[int]
) -> tuple[Tensor, Sequence]:
    """Prefill a sequence chunk by chunk; return the logits of all its rows and the sequence afterwards."""
    pieces = []
    for length in chunks:
        batch = build_prefill(cache.layout, [sequence], engram=text_model.engram, chunk_lens=[length])
        pieces.append(text_model.model(batch, cache))
        sequence = sequence.advanced(length)
    return torch.cat(pieces), sequence
