"""Tokens a second of the tiny golden models on this host, beside the plain way to do the same in the same run.

Two peers, each with the same model and the same tokens: a prefill that feeds one token at a time, as a decode loop
does, and the expert loop that runs every expert on every row. The ratios are what to look at; the tokens a second are
those of models with 128 channels.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

from port.model.experts import ExpertLoop
from port.runtime.cache_engine import CacheEngine
from port.runtime.decode_inputs import build_decode
from port.runtime.prefill_inputs import build_prefill
from port.runtime.sequence import Sequence
from port.runtime.text_model import TextModel, open_text_model

PROMPT_TOKENS = 128
DECODE_STEPS = 16
SLOW_TOKENS = 32
"""Tokens of a prompt that the token-by-token peer runs; its cost hardly grows with the position."""
REPEATS = 3

_ROOT = Path(__file__).resolve().parents[1]


def checkpoints() -> dict[str, Path]:
    """Return the golden checkpoints at hand: A is committed, B lies in the hand-over folder beside the checkout."""
    found = {"A": _ROOT / "fixtures" / "golden_A" / "checkpoint"}
    handed_over = _ROOT.parent / "shared" / "golden" / "B" / "checkpoint"
    return found | ({"B": handed_over} if handed_over.is_dir() else {})


def prompts(text_model: TextModel, batch: int) -> list[tuple[int, ...]]:
    """Return prompts of random tokens, the same in every run."""
    generator = torch.Generator().manual_seed(0)
    highest = text_model.config.vocab_size - 1  # the last id is the image token
    return [tuple(torch.randint(3, highest, (PROMPT_TOKENS,), generator=generator).tolist()) for _ in range(batch)]


def prefill_once(text_model: TextModel, batch: int) -> tuple[float, CacheEngine, list[Sequence]]:
    """Prefill a batch at once; return the seconds, the cache and the sequences afterwards."""
    texts = prompts(text_model, batch)
    cache = text_model.cache_for([PROMPT_TOKENS + DECODE_STEPS] * batch)
    sequences = [cache.admit(text, max_tokens=DECODE_STEPS) for text in texts]
    begin = time.perf_counter()
    text_model.model(build_prefill(cache.layout, sequences, engram=text_model.engram, logits="last"), cache)
    elapsed = time.perf_counter() - begin
    return elapsed, cache, [sequence.advanced(PROMPT_TOKENS) for sequence in sequences]


def token_by_token(text_model: TextModel, batch: int) -> float:
    """Return the seconds the first `SLOW_TOKENS` tokens of a prefill take when every one is a decode step."""
    cache = text_model.cache_for([SLOW_TOKENS] * batch)
    texts = prompts(text_model, batch)
    sequences = [cache.admit(text[:1], max_tokens=SLOW_TOKENS - 1) for text in texts]
    begin = time.perf_counter()
    for position in range(SLOW_TOKENS):
        if position:
            sequences = [one.with_token(text[position]) for one, text in zip(sequences, texts, strict=True)]
        sequences = step(text_model, cache, sequences)
    return time.perf_counter() - begin


def decode(text_model: TextModel, batch: int) -> float:
    """Return the seconds of `DECODE_STEPS` decode steps after a prefill."""
    _, cache, sequences = prefill_once(text_model, batch)
    begin = time.perf_counter()
    for number in range(DECODE_STEPS):
        sequences = step(text_model, cache, [sequence.with_token(3 + number) for sequence in sequences])
    return time.perf_counter() - begin


def step(text_model: TextModel, cache: CacheEngine, sequences: list[Sequence]) -> list[Sequence]:
    """Run one decode step."""
    text_model.model(build_decode(cache.layout, sequences, engram=text_model.engram), cache)
    return [sequence.advanced(1) for sequence in sequences]


def median(measure: Callable[[], float], repeats: int = REPEATS) -> float:
    """Return the median of some measurements."""
    return statistics.median(measure() for _ in range(repeats))


@torch.inference_mode()
def main(out: Callable[[str], None]) -> None:
    """Print one table: tokens a second by model and batch, and the ratios to the two peers."""
    out(f"text model, fp32, {torch.get_num_threads()} threads; prompts of {PROMPT_TOKENS} tokens, median of {REPEATS}")
    out(f"{'':<7}{'':>6}{'tokens/s':>19}{'token by token':>26}{'hit against all experts':>26}")
    out(
        f"{'model':<7}{'batch':>6}{'prefill':>10}{'decode':>9}{'tokens/s':>14}{'prefill is':>12}"
        f"{'prefill is':>14}{'decode is':>12}"
    )
    for name, path in checkpoints().items():
        models = {loop: open_text_model(path, moe=loop) for loop in _LOOPS}
        for batch in (1, 4):
            prefill_once(models["hit"], batch)  # the first run makes the rotation tables
            prefill_once(models["all"], batch)
            seconds = {
                loop: (
                    median(lambda model=model, n=batch: prefill_once(model, n)[0]),
                    median(lambda model=model, n=batch: decode(model, n)),
                )
                for loop, model in models.items()
            }
            prompt_tokens, steps = batch * PROMPT_TOKENS, batch * DECODE_STEPS
            slow_rate = batch * SLOW_TOKENS / token_by_token(models["hit"], batch)
            prefill_s, decode_s = seconds["hit"]
            out(
                f"{name:<7}{batch:>6}{prompt_tokens / prefill_s:>10.0f}{steps / decode_s:>9.0f}"
                f"{slow_rate:>14.0f}{prompt_tokens / prefill_s / slow_rate:>11.1f}x"
                f"{seconds['all'][0] / prefill_s:>13.2f}x{seconds['all'][1] / decode_s:>11.2f}x"
            )


_LOOPS: tuple[ExpertLoop, ...] = ("hit", "all")
