"""Runs of the small random model, and batches without a model, that the checks of the traps look at."""

from __future__ import annotations

import functools

from torch import Tensor

from port.model.taps import RecordingTap
from port.runtime.cache_layout import CacheLayout
from port.runtime.decode_inputs import build_decode
from port.runtime.prefill_inputs import build_prefill
from port.runtime.sequence import Sequence
from port.runtime.text_model import TextModel
from port.verify_rules import row_errors
from tests.port.golden import prefill_logits, run_chunks
from tests.port.tiny import random_ids, tiny_model

TOLERANCE = 1e-4
TOKENS = random_ids(60)


@functools.cache
def _tiny(profile: str) -> TextModel:
    return tiny_model(profile)


def tiny(profile: str = "fp32") -> TextModel:
    """Return the small model without the rotation tables that an earlier run made."""
    text_model = _tiny(profile)
    text_model.model._rotations = None
    return text_model


def taps_of(text_model: TextModel, token_ids: tuple[int, ...] = TOKENS) -> dict[str, Tensor]:
    tap = RecordingTap()
    prefill_logits(text_model, token_ids, tap)
    return tap.tensors


def alike(found: Tensor, expected: Tensor) -> None:
    assert float(row_errors(expected, found).max()) <= TOLERANCE


def one_sequence_batch(tokens: int, *, start: int = 0):
    """A prefill batch of one sequence, built without a model."""
    layout = CacheLayout(window=4, backtracking=1, ratios=(1, 2))
    sequence = Sequence(token_ids=tuple(range(start + tokens)), block_table=(1, 2), state_id=1, cached=start)
    return build_prefill(layout, [sequence])


def decode_batch(*, position: int):
    layout = CacheLayout(window=4, backtracking=1, ratios=(1, 2))
    tokens = tuple(range(position + 1))
    return build_decode(layout, [Sequence(token_ids=tokens, block_table=(1,), state_id=1, cached=position)])


def chunks_equal_one_prefill(chunks: list[int], profile: str = "fp32") -> None:
    text_model = tiny(profile)
    whole = prefill_logits(text_model, TOKENS)
    cache = text_model.cache_for([len(TOKENS)])
    found, _ = run_chunks(text_model, cache, cache.admit(TOKENS), chunks)
    alike(found, whole)
