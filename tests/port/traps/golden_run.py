"""One golden prompt through a model of golden A loaded anew, so that a planted fault acts on loading as well."""

from __future__ import annotations

import torch

from port.runtime.decode_inputs import build_decode
from port.verify_rules import row_errors
from tests.port.golden import fresh_model_a, golden_tensor, prompt_ids, run_chunks

PROMPT = "len70"
DECODE_STEPS = 3
"""The second completes a group of two tokens, so that the third may meet what the second left behind."""


@torch.inference_mode()
def golden_error() -> float:
    """Return the worst row error of a prefill and some decode steps against golden A, mode fp32."""
    text_model = fresh_model_a()
    token_ids, fed = prompt_ids(PROMPT), golden_tensor(f"{PROMPT}.gen_tokens").tolist()[:DECODE_STEPS]
    cache = text_model.cache_for([len(token_ids) + len(fed)])
    logits, sequence = run_chunks(text_model, cache, cache.admit(token_ids, max_tokens=len(fed)), [len(token_ids)])
    errors = row_errors(golden_tensor(f"{PROMPT}.logits"), logits)
    for step, token in enumerate(fed, start=1):
        sequence = sequence.with_token(token)
        found = text_model.model(build_decode(cache.layout, [sequence], engram=text_model.engram), cache)
        errors = torch.cat((errors, row_errors(golden_tensor(f"{PROMPT}.gen_logits")[step : step + 1], found)))
        sequence = sequence.advanced(1)
    return float(errors.max())
