"""Generation, greedy or sampled: one prefill of all prompts, then decode steps for those that still run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from collections.abc import Sequence as SequenceType
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from port.runtime.cache_engine import CacheEngine
from port.runtime.decode_inputs import build_decode
from port.runtime.prefill_inputs import build_prefill
from port.runtime.sampler import Sampler, SamplerInputs
from port.runtime.sampling_params import SamplingParams
from port.runtime.sequence import Sequence
from port.runtime.text_model import TextModel
from port.runtime.turns import Turns

Progress = Callable[[int, int], None]
"""Called with (steps done, steps at most)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """What one prompt was continued with.

    Attributes:
        prompt_token_ids: the prompt.
        token_ids: the continuation, the stop token included.
        finish_reason: "length", "stop" (a stop token came) or "interrupted".
    """

    prompt_token_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    finish_reason: Literal["length", "stop", "interrupted"]


@torch.inference_mode()
def generate(
    text_model: TextModel,
    prompts: SequenceType[SequenceType[int]],
    *,
    max_tokens: int,
    stop_token_ids: SequenceType[int] = (),
    prefill_chunk: int | None = None,
    sampling: SamplingParams | None = None,
    progress: Progress | None = None,
) -> tuple[Generation, ...]:
    """Return a continuation of each prompt, greedy unless asked otherwise. Ctrl-C ends it early and keeps what is done.

    Args:
        text_model: a loaded model.
        prompts: token ids, at least one each. Where ranks share the model every rank calls this with prompts of its
            own, or with none at all; Ctrl-C then ends it without a result.
        max_tokens: tokens to add to each prompt, at least 1.
        stop_token_ids: tokens that end a sequence.
        prefill_chunk: tokens of each prompt run at a time; all when None.
        sampling: how tokens are drawn; prompt i has its seed + i, so that equal prompts differ. `max_tokens` counts,
            not the one in it. Greedy when None: the first of the most likely tokens.
        progress: called after every forward pass.

    Raises:
        ValueError: no prompt, an empty prompt, a token id outside the vocabulary, or a count below 1.
    """
    _check(text_model, prompts, max_tokens, prefill_chunk)
    turns = Turns(text_model.model)
    if not prompts:
        turns.finish()
        return ()
    cache = text_model.cache_for([len(prompt) + max_tokens for prompt in prompts])
    sequences = {number: cache.admit(tuple(prompt), max_tokens=max_tokens) for number, prompt in enumerate(prompts)}
    produced: dict[int, list[int]] = {number: [] for number in sequences}
    reasons: dict[int, Literal["length", "stop", "interrupted"]] = {}
    try:
        logits = _prefill(text_model, turns, cache, sequences, prefill_chunk)
        for step in range(max_tokens):
            tokens = _choose(logits, sequences, sampling, produced, stop_token_ids)
            for token, number in zip(tokens, list(sequences), strict=True):
                produced[number].append(token)
                sequences[number] = sequences[number].with_token(token)
                if token in stop_token_ids or step + 1 == max_tokens:
                    reasons[number] = "stop" if token in stop_token_ids else "length"
                    cache.release(sequences.pop(number))
            if progress is not None:
                progress(step + 1, max_tokens)
            if not sequences:
                break
            batch = build_decode(cache.layout, list(sequences.values()), engram=text_model.engram)
            logits = turns.forward(batch, cache)
            sequences = {number: sequence.advanced(1) for number, sequence in sequences.items()}
        turns.finish()
    except KeyboardInterrupt:
        if turns.is_shared:
            raise  # an exchange may be half done, and the other ranks wait for the rest of it
        for number in sequences:
            reasons[number] = "interrupted"
    return tuple(
        Generation(
            prompt_token_ids=tuple(prompt),
            token_ids=tuple(produced[number]),
            finish_reason=reasons.get(number, "interrupted"),
        )
        for number, prompt in enumerate(prompts)
    )


def _choose(
    logits: Tensor,
    sequences: dict[int, Sequence],
    sampling: SamplingParams | None,
    produced: dict[int, list[int]],
    stop_token_ids: SequenceType[int],
) -> list[int]:
    """Return the next token of each running sequence."""
    if sampling is None:
        return logits.argmax(dim=-1).tolist()
    seed = sampling.seq_seed or 0
    inputs = SamplerInputs.of_requests(
        [dataclasses.replace(sampling, seq_seed=seed + number) for number in sequences],
        [len(sequence) for sequence in sequences.values()],
        produced=[len(produced[number]) for number in sequences],
        eos_token_ids=stop_token_ids,
        device=logits.device,
    )
    return Sampler()(logits, inputs).token_ids.tolist()


def _prefill(
    text_model: TextModel,
    turns: Turns,
    cache: CacheEngine,
    sequences: dict[int, Sequence],
    prefill_chunk: int | None,
) -> Tensor:
    """Run all prompts and return the logits after the last token of each, (prompts, V); `sequences` are advanced."""
    last: dict[int, Tensor] = {}
    while running := {number: sequence for number, sequence in sequences.items() if sequence.pending}:
        lengths = [min(sequence.pending, prefill_chunk or sequence.pending) for sequence in running.values()]
        batch = build_prefill(
            cache.layout, list(running.values()), engram=text_model.engram, chunk_lens=lengths, logits="last"
        )
        logits = turns.forward(batch, cache)
        for row, (number, length) in enumerate(zip(running, lengths, strict=True)):
            sequences[number] = sequences[number].advanced(length)
            last[number] = logits[row]
    return torch.stack([last[number] for number in sequences])


def _check(
    text_model: TextModel, prompts: SequenceType[SequenceType[int]], max_tokens: int, prefill_chunk: int | None
) -> None:
    problems = []
    if not prompts and not Turns(text_model.model).is_shared:
        problems.append("expected at least one prompt; found none")
    vocabulary = text_model.config.vocab_size
    for number, prompt in enumerate(prompts):
        outside = [token for token in prompt if not 0 <= token < vocabulary]
        if not prompt:
            problems.append(f"prompt {number}: expected at least one token id; found none")
        elif outside:
            problems.append(f"prompt {number}: expected token ids from 0 to {vocabulary - 1}; found {outside[:5]}")
    for name, value in (("max_tokens", max_tokens), ("prefill_chunk", prefill_chunk)):
        if value is not None and value < 1:
            problems.append(f"{name}: expected at least 1; found {value}")
    if problems:
        raise ValueError("generate: " + "; ".join(problems) + ".")
