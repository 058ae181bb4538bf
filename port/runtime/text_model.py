"""A checkpoint made runnable: its model, its tokenizer and its Engram hash functions in one value."""

from __future__ import annotations

from collections.abc import Sequence as SequenceType
from dataclasses import dataclass
from pathlib import Path

import torch

from port.checkpoint.index import Checkpoint, open_checkpoint
from port.checkpoint.loader import LoadReport
from port.collectives.parallel import Parallel
from port.config import ModelConfig
from port.model.experts import ExpertLoop
from port.model.transformer import Transformer
from port.model.weights import WeightForm
from port.numerics import NumericProfile
from port.runtime.cache_engine import CacheEngine
from port.runtime.engram_hash import EngramHash
from port.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class TextModel:
    """Everything a forward pass of one checkpoint needs.

    Attributes:
        checkpoint: where the weights come from.
        model: the modules; on `meta` where nothing was loaded.
        tokenizer: of the same folder.
        engram: hash functions; None for a model without Engram layers.
        load_report: what became of every tensor; None where weights are loaded per step.
    """

    checkpoint: Checkpoint
    model: Transformer
    tokenizer: Tokenizer
    engram: EngramHash | None
    load_report: LoadReport | None = None

    @property
    def config(self) -> ModelConfig:
        """Configuration of the model."""
        return self.model.config

    def cache_for(self, lengths: SequenceType[int]) -> CacheEngine:
        """Return a cache for sequences of these final lengths, on the model's device."""
        return CacheEngine.for_lengths(
            self.config, lengths, profile=self.model.precision.profile, device=self.model.device
        )


def open_text_model(
    path: str | Path,
    *,
    profile: str | NumericProfile = "fp32",
    device: torch.device | str = "cpu",
    moe: ExpertLoop = "hit",
    weights: WeightForm = "dequantized",
    load: bool = True,
    parallel: Parallel | None = None,
) -> TextModel:
    """Return the model of a checkpoint folder.

    Args:
        path: folder in the released layout.
        profile: name of a numeric profile, or one.
        device: where weights go.
        moe: see `Transformer`.
        weights: see `Transformer`.
        load: read all weights now; otherwise load them per step with `model.load`.
        parallel: this rank's share of experts and Engram tables, see `port/collectives/parallel.py`; only its slices
            are read. None for everything.

    Raises:
        CheckpointError: the folder is no sound checkpoint.
        ConfigError: its config.json or the profile's name cannot be used.
    """
    checkpoint = open_checkpoint(path)
    config = checkpoint.model_config()
    named = NumericProfile.named(profile) if isinstance(profile, str) else profile
    tokenizer = Tokenizer.from_checkpoint(checkpoint.path, config)
    engram = EngramHash.from_config(config, tokenizer.compression_map()) if config.engram_layer_ids else None
    model = Transformer(config, profile=named, device=device, moe=moe, weights=weights, parallel=parallel)
    report = model.load(checkpoint) if load else None
    return TextModel(checkpoint=checkpoint, model=model, tokenizer=tokenizer, engram=engram, load_report=report)
