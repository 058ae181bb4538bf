"""One sampling step: from the logits of some rows to their tokens and what is reported of them.

Text basic mode: one row per request, no drafts. The order of the steps is the contract's: black list, end of text,
structured output, top-k space, filter and draw, golden tokens, look-ups. Everything before the return stays on the
device and has static shapes.
Source: deepinfer 0.1.0 sampler, described in the runtime contracts, sections 10.1, 10.2 and 10.6.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as SequenceType
from dataclasses import dataclass

import torch
from torch import Tensor

from port.environment import ENV
from port.kernels.sampling import (
    LOWEST_LOGPROB,
    filtered_logprobs,
    forbid_tokens,
    sample_rows,
    sum_smaller_probs,
    token_logprobs,
)
from port.kernels.sampling_rows import look_up_key, mask_tokens
from port.kernels.topk import top_columns
from port.runtime.sampling_params import SamplingParams, seed_tensor

PROMPT_ROWS = 8192
"""Rows whose prompt log-probabilities are computed at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerInputs:
    """What a step needs beside the logits; N rows, one per request.

    Attributes:
        temperatures, top_ps: float32 (N,).
        top_ks: int32 (N,), -1 for all.
        seq_seeds: int32 words (N, 2), the low one first.
        sample_positions: int32 (N,), position of the token that is drawn: the length of what is known.
        max_top_logprobs: most likely tokens to report, 0 for none.
        eos_suppression_rows: bool (N,), rows that may not end now; None for none.
        eos_token_ids: int32 (K,), tokens that end a text; with `eos_suppression_rows`.
        golden_output: int32 (N,), tokens to take whatever is drawn, -1 where the draw decides; None for none.
        bitmask: int32 (M, ceil(V / 32)), tokens that structured output allows; None for none.
        bitmask_rows: int32 (M,), the row each mask is for.
    """

    temperatures: Tensor
    top_ps: Tensor
    top_ks: Tensor
    seq_seeds: Tensor
    sample_positions: Tensor
    max_top_logprobs: int = 0
    eos_suppression_rows: Tensor | None = None
    eos_token_ids: Tensor | None = None
    golden_output: Tensor | None = None
    bitmask: Tensor | None = None
    bitmask_rows: Tensor | None = None

    @classmethod
    def of_requests(
        cls,
        params: SequenceType[SamplingParams],
        lengths: SequenceType[int],
        *,
        produced: SequenceType[int] | None = None,
        eos_token_ids: SequenceType[int] = (),
        device: torch.device | str = "cpu",
    ) -> SamplerInputs:
        """Return the inputs of a step.

        Args:
            params: one per request.
            lengths: known tokens of each request.
            produced: tokens each request has been given so far; 0 when None.
            eos_token_ids: tokens that end a text.
            device: where the logits are.
        """
        done = [0] * len(params) if produced is None else list(produced)
        golden = [
            one.golden_token_ids[count]
            if one.golden_token_ids is not None and count < len(one.golden_token_ids)
            else -1
            for one, count in zip(params, done, strict=True)
        ]
        no_end = [count < one.first_n_token_no_eos for one, count in zip(params, done, strict=True)]
        suppress = any(no_end) and len(eos_token_ids) > 0

        def tensor(values: SequenceType[float], dtype: torch.dtype) -> Tensor:
            return torch.tensor(list(values), dtype=dtype, device=device)

        return cls(
            temperatures=tensor([one.temperature for one in params], torch.float32),
            top_ps=tensor([one.top_p for one in params], torch.float32),
            top_ks=tensor([one.top_k for one in params], torch.int32),
            seq_seeds=seed_tensor([one.seq_seed or 0 for one in params], device),
            sample_positions=tensor(lengths, torch.int32),
            max_top_logprobs=max((one.top_logprobs for one in params), default=0),
            eos_suppression_rows=tensor(no_end, torch.bool) if suppress else None,
            eos_token_ids=tensor(eos_token_ids, torch.int32) if suppress else None,
            golden_output=tensor(golden, torch.int32) if any(token >= 0 for token in golden) else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledInfo:
    """The tokens of a step and what is reported of them.

    Attributes:
        token_ids: int32 (N,).
        token_logprobs: float32 (N,), at least -9999.
        topk_logprobs: float32 (N, max_top_logprobs), in descending order; None where none were asked for.
        topk_token_ids: int32, same shape.
        sum_smaller_probs: float32 (N,); None unless `DEEPINFER_COMPUTE_SUM_SMALLER_PROBS` is set.
    """

    token_ids: Tensor
    token_logprobs: Tensor
    topk_logprobs: Tensor | None = None
    topk_token_ids: Tensor | None = None
    sum_smaller_probs: Tensor | None = None


class Sampler:
    """Draws tokens; what it takes from the environment is read when it is made.

    Args:
        blacklist: tokens never produced; None asks `DEEPINFER_DECODE_TOKEN_BLACKLIST`.
        force_topk: sample among the best only, 0 for all; None asks `DEEPINFER_SAMPLER_FORCE_TOPK`.
        compute_sum_smaller_probs: None asks `DEEPINFER_COMPUTE_SUM_SMALLER_PROBS`.

    Raises:
        NotImplementedError: the environment asks for draft tokens.
    """

    def __init__(
        self,
        *,
        blacklist: SequenceType[int] | None = None,
        force_topk: int | None = None,
        compute_sum_smaller_probs: bool | None = None,
    ) -> None:
        if ENV.DEEPINFER_USE_NEXTN_DECODE:
            raise NotImplementedError(
                "the sampler verifies no draft tokens on Neuron; set DEEPINFER_USE_NEXTN_DECODE=0."
            )
        self._blacklist = tuple(ENV.DEEPINFER_DECODE_TOKEN_BLACKLIST if blacklist is None else blacklist)
        self._force_topk = ENV.DEEPINFER_SAMPLER_FORCE_TOPK if force_topk is None else force_topk
        self._cdf = (
            ENV.DEEPINFER_COMPUTE_SUM_SMALLER_PROBS if compute_sum_smaller_probs is None else compute_sum_smaller_probs
        )

    def __call__(self, logit_NV: Tensor, inputs: SamplerInputs) -> SampledInfo:
        """Return the tokens of a step.

        Args:
            logit_NV: float32 (N, V).
            inputs: of the same rows, on the same device.

        Raises:
            ValueError: another number of rows than the inputs have.
        """
        rows, columns = logit_NV.shape
        if inputs.temperatures.shape[0] != rows:
            raise ValueError(f"sampler: expected {inputs.temperatures.shape[0]} rows of logits; found {rows}.")
        logit_NV = self._allowed(logit_NV, inputs)
        ids_NK: Tensor | None = None
        if 0 < self._force_topk < columns:
            logit_NV, ids_NK = top_columns(logit_NV, self._force_topk)
        logprobs, drawn = sample_rows(
            logit_NV,
            inputs.temperatures,
            inputs.top_ps,
            inputs.top_ks,
            inputs.seq_seeds,
            inputs.sample_positions,
        )
        tokens = drawn if ids_NK is None else ids_NK.gather(1, drawn.long().unsqueeze(1)).squeeze(1)
        if inputs.golden_output is not None:
            tokens = torch.where(inputs.golden_output >= 0, inputs.golden_output, tokens)
        top_logprobs, top_ids = self._reported(logprobs, ids_NK, inputs.max_top_logprobs)
        return SampledInfo(
            token_ids=tokens,
            token_logprobs=_logprob_of(logprobs, ids_NK, tokens),
            topk_logprobs=top_logprobs,
            topk_token_ids=top_ids,
            sum_smaller_probs=sum_smaller_probs(logprobs, drawn) if self._cdf else None,
        )

    def prompt_logprobs(
        self,
        logits_of: Callable[[int, int], Tensor],
        next_token_ids: Tensor,
        params: SamplingParams,
        *,
        max_rows: int = PROMPT_ROWS,
    ) -> Tensor:
        """Return the log-probability of each prompt token given those before it, as sampling would see it.

        Args:
            logits_of: gives the logits of prompt rows from `begin` to `end`, float32 (end - begin, V).
            next_token_ids: int32 (T,), the token after each of the rows.
            params: temperature, top-p and top-k of the request.
            max_rows: rows of logits held at a time.

        Returns:
            float32 (T,), at least -9999.
        """
        pieces = []
        for begin in range(0, next_token_ids.shape[0], max_rows):
            tokens = next_token_ids[begin : begin + max_rows]
            count = tokens.shape[0]
            logit_TV = logits_of(begin, begin + count)
            logit_TV = self._without_listed(logit_TV)
            temperature = logit_TV.new_full((count,), params.temperature)
            top_p = logit_TV.new_full((count,), params.top_p)
            top_k = torch.full((count,), params.top_k, dtype=torch.int32, device=logit_TV.device)
            pieces.append(token_logprobs(filtered_logprobs(logit_TV, temperature, top_p, top_k), tokens))
        return torch.cat(pieces) if pieces else torch.zeros(0, device=next_token_ids.device)

    def _allowed(self, logit_NV: Tensor, inputs: SamplerInputs) -> Tensor:
        logit_NV = self._without_listed(logit_NV)
        if inputs.eos_suppression_rows is not None and inputs.eos_token_ids is not None:
            logit_NV = forbid_tokens(logit_NV, inputs.eos_token_ids, inputs.eos_suppression_rows)
        if inputs.bitmask is not None and inputs.bitmask_rows is not None:
            number = torch.arange(inputs.bitmask.shape[0], dtype=torch.int32, device=logit_NV.device)
            logit_NV = mask_tokens(logit_NV, inputs.bitmask, number, inputs.bitmask_rows)
        return logit_NV

    def _without_listed(self, logit_NV: Tensor) -> Tensor:
        if not self._blacklist:
            return logit_NV
        listed = torch.tensor(self._blacklist, dtype=torch.int32, device=logit_NV.device)
        return forbid_tokens(logit_NV, listed)

    def _reported(self, logprobs: Tensor, ids_NK: Tensor | None, count: int) -> tuple[Tensor | None, Tensor | None]:
        if not count:
            return None, None
        values, columns = top_columns(logprobs, min(count, logprobs.shape[1]))
        ids = columns if ids_NK is None else ids_NK.gather(1, columns.long())
        return values.clamp(min=LOWEST_LOGPROB), ids


def _logprob_of(logprobs: Tensor, ids_NK: Tensor | None, tokens: Tensor) -> Tensor:
    if ids_NK is None:
        return token_logprobs(logprobs, tokens)
    return look_up_key(ids_NK, logprobs, tokens).clamp(min=LOWEST_LOGPROB)
