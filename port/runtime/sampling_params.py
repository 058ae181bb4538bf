"""What a request asks of the sampler, with the contract's names, defaults and rules."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

import torch

from port.kernels.sampling import GREEDY_TEMPERATURE

_SEED_RANGE = 1 << 64
_MOST_TOP_LOGPROBS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How the tokens of one request are drawn.

    Attributes:
        temperature: at least 0; below 1e-5 the request is greedy.
        top_p: above 0 and at most 1: share of the probability that is kept.
        top_k: tokens kept, -1 for all.
        ignore_eos: go on after the end of text.
        max_tokens: tokens to add; 0 becomes 1.
        prompt_logprobs: report the log-probability of every prompt token, too.
        top_logprobs: most likely tokens to report with each token, 0 to 1000.
        first_n_token_no_eos: 1 keeps the end of text out of the first token.
        golden_token_ids: tokens to produce whatever is drawn, -1 where the draw decides; None for no such list.
        seq_seed: of the draws, taken modulo 2^64; a random one when None.

    Raises:
        ValueError: every value outside its range, in one message.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    ignore_eos: bool = False
    max_tokens: int = 16
    prompt_logprobs: bool = False
    top_logprobs: int = 0
    first_n_token_no_eos: int = 0
    golden_token_ids: tuple[int, ...] | None = None
    seq_seed: int | None = None

    def __post_init__(self) -> None:
        rules = (
            ("temperature", self.temperature >= 0, "at least 0"),
            ("top_p", 0 < self.top_p <= 1, "above 0 and at most 1"),
            ("top_k", self.top_k == -1 or self.top_k >= 1, "-1 or at least 1"),
            ("max_tokens", self.max_tokens >= 0, "at least 0"),
            ("top_logprobs", 0 <= self.top_logprobs <= _MOST_TOP_LOGPROBS, f"0 to {_MOST_TOP_LOGPROBS}"),
            ("first_n_token_no_eos", self.first_n_token_no_eos in (0, 1), "0 or 1"),
        )
        problems = [
            f"{name}: expected {words}; found {getattr(self, name)!r}" for name, holds, words in rules if not holds
        ]
        if problems:
            raise ValueError("sampling parameters: " + "; ".join(problems) + ".")
        if self.temperature < GREEDY_TEMPERATURE:
            for name, value in (("temperature", GREEDY_TEMPERATURE), ("top_p", 1.0), ("top_k", -1)):
                object.__setattr__(self, name, value)
        object.__setattr__(self, "max_tokens", max(self.max_tokens, 1))
        seed = secrets.randbits(64) if self.seq_seed is None else self.seq_seed % _SEED_RANGE
        object.__setattr__(self, "seq_seed", seed)

    @classmethod
    def greedy(cls, *, max_tokens: int = 16, ignore_eos: bool = False) -> SamplingParams:
        """Return parameters that always take the most likely token; the seed only decides between equal ones."""
        return cls(temperature=0.0, max_tokens=max_tokens, ignore_eos=ignore_eos, seq_seed=0)

    @property
    def is_greedy(self) -> bool:
        """Whether the most likely token is taken."""
        return self.temperature == GREEDY_TEMPERATURE


def seed_tensor(seeds: list[int], device: torch.device | str) -> torch.Tensor:
    """Return seeds as int32 words (N, 2), the low one first: a device has no 64-bit integers."""
    words = [word - (1 << 32) if word >> 31 else word for seed in seeds for word in (seed & 0xFFFFFFFF, seed >> 32)]
    return torch.tensor(words, dtype=torch.int32, device=device).view(-1, 2)
