"""A sampling step: parameters, what may be drawn, what is reported."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from port.environment import ENV
from port.runtime.sampler import Sampler, SamplerInputs
from port.runtime.sampling_params import SamplingParams, seed_tensor

V = 70


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(ENV, "_source", {})
    ENV.rearm_all()
    yield
    ENV.rearm_all()


def logits(rows: int, seed: int = 0) -> Tensor:
    return torch.randn(rows, V, generator=torch.Generator().manual_seed(seed)) * 2


def inputs(*params: SamplingParams, **more) -> SamplerInputs:
    return SamplerInputs.of_requests(params, [5 + row for row in range(len(params))], **more)


def test_defaults_are_the_contracts() -> None:
    params = SamplingParams(seq_seed=-1)
    assert (params.temperature, params.top_p, params.top_k, params.max_tokens) == (1.0, 1.0, -1, 16)
    assert params.seq_seed == (1 << 64) - 1


def test_a_cold_request_is_greedy_in_the_contracts_form() -> None:
    params = SamplingParams(temperature=1e-6, top_p=0.5, top_k=3, max_tokens=0)
    assert (params.temperature, params.top_p, params.top_k, params.max_tokens) == (1e-5, 1.0, -1, 1)
    assert params.is_greedy


def test_requests_without_a_seed_have_one_of_their_own() -> None:
    assert SamplingParams().seq_seed != SamplingParams().seq_seed


def test_values_outside_their_range_are_told_at_once() -> None:
    with pytest.raises(
        ValueError, match=r"temperature: expected at least 0; found -1; top_p: .* found 0; top_k: .* found 0"
    ):
        SamplingParams(temperature=-1, top_p=0, top_k=0)


def test_seeds_travel_as_words() -> None:
    seeds = [0, (1 << 64) - 1, 0x0123456789ABCDEF]
    words = seed_tensor(seeds, "cpu")
    assert torch.equal(words.flatten().view(torch.uint64), torch.tensor(seeds, dtype=torch.uint64))


def test_greedy_requests_take_the_best_token_with_its_probability() -> None:
    x = logits(3)
    found = Sampler()(x, inputs(*[SamplingParams.greedy()] * 3))
    assert found.token_ids.tolist() == x.argmax(dim=1).tolist()
    assert found.token_logprobs.tolist() == [0.0, 0.0, 0.0]
    assert found.topk_token_ids is None
    assert found.sum_smaller_probs is None


def test_top_logprobs_are_those_of_the_filtered_distribution() -> None:
    x = logits(2)
    found = Sampler(compute_sum_smaller_probs=True)(
        x, inputs(SamplingParams(top_logprobs=4, temperature=0.7, seq_seed=1), SamplingParams(top_k=2, seq_seed=2))
    )
    expected = (x[0] / 0.7).log_softmax(0).topk(4)
    assert torch.allclose(found.topk_logprobs[0], expected.values, atol=1e-5)
    assert found.topk_token_ids[0].tolist() == expected.indices.tolist()
    assert found.topk_logprobs[1, 2:].tolist() == [-9999.0, -9999.0]
    best_two = x[1].topk(2)
    assert torch.allclose(found.topk_logprobs[1, :2], best_two.values.log_softmax(0), atol=1e-5)
    for row in range(2):
        own = (found.topk_token_ids[row] == found.token_ids[row]).nonzero()
        if len(own):
            assert torch.allclose(found.token_logprobs[row], found.topk_logprobs[row, own[0, 0]])
    assert bool((found.sum_smaller_probs > 0).all())


def test_listed_tokens_are_never_produced() -> None:
    x = logits(1)
    best = int(x.argmax())
    ENV.set("DEEPINFER_DECODE_TOKEN_BLACKLIST", f"{best}")
    found = Sampler()(x, inputs(SamplingParams.greedy()))
    assert found.token_ids.tolist() == x.topk(2).indices[0, 1:].tolist()


def test_a_text_may_be_kept_from_ending_with_its_first_token() -> None:
    x = logits(2)
    x[:, 7] = 50
    params = SamplingParams(temperature=0, first_n_token_no_eos=1)
    first = Sampler()(x, inputs(params, SamplingParams.greedy(), eos_token_ids=[7]))
    assert first.token_ids[0] != 7
    assert first.token_ids[1] == 7
    later = Sampler()(x, inputs(params, params, eos_token_ids=[7], produced=[1, 0]))
    assert (later.token_ids == 7).tolist() == [True, False]


def test_structured_output_allows_only_its_tokens() -> None:
    x = logits(3)
    mask = torch.zeros(1, 3, dtype=torch.int32)
    mask[0, 1] = 1 << 5  # token 37
    some = SamplerInputs.of_requests([SamplingParams.greedy()] * 3, [1, 1, 1])
    found = Sampler()(
        x,
        SamplerInputs(
            temperatures=some.temperatures,
            top_ps=some.top_ps,
            top_ks=some.top_ks,
            seq_seeds=some.seq_seeds,
            sample_positions=some.sample_positions,
            bitmask=mask,
            bitmask_rows=torch.tensor([1], dtype=torch.int32),
        ),
    )
    best = x.argmax(dim=1).tolist()
    assert found.token_ids.tolist() == [best[0], 37, best[2]]


def test_golden_tokens_go_before_what_is_drawn_and_report_their_own_probability() -> None:
    x = logits(1)
    params = SamplingParams(golden_token_ids=(-1, 9), seq_seed=3)
    free = Sampler()(x, inputs(params))
    forced = Sampler()(x, inputs(params, produced=[1]))
    assert free.token_ids[0] != 9
    assert forced.token_ids.tolist() == [9]
    assert torch.allclose(forced.token_logprobs[0], x[0].log_softmax(0)[9], atol=1e-5)
    assert Sampler()(x, inputs(params, produced=[2])).token_ids.tolist() == free.token_ids.tolist()


def test_among_the_best_only() -> None:
    x = logits(64)
    params = [SamplingParams(temperature=5.0, seq_seed=row, top_logprobs=3) for row in range(64)]
    found = Sampler(force_topk=3)(x, inputs(*params))
    allowed = x.topk(3).indices
    assert bool((allowed == found.token_ids.unsqueeze(1)).any(dim=1).all())
    assert found.topk_token_ids.tolist() == allowed.tolist()
    expected = (x.topk(3).values / 5).log_softmax(1)
    assert torch.allclose(found.topk_logprobs, expected, atol=1e-5)
    place = (allowed == found.token_ids.unsqueeze(1)).float().argmax(dim=1, keepdim=True)
    assert torch.allclose(found.token_logprobs, expected.gather(1, place).squeeze(1), atol=1e-5)


def test_prompt_logprobs_in_pieces_are_those_at_once() -> None:
    x = logits(11)
    tokens = torch.randint(0, V, (11,), generator=torch.Generator().manual_seed(1), dtype=torch.int32)
    params = SamplingParams(temperature=0.8, top_k=30)
    asked: list[tuple[int, int]] = []

    def logits_of(begin: int, end: int) -> Tensor:
        asked.append((begin, end))
        return x[begin:end]

    pieces = Sampler().prompt_logprobs(logits_of, tokens, params, max_rows=4)
    whole = Sampler().prompt_logprobs(lambda begin, end: x[begin:end], tokens, params)
    assert asked == [(0, 4), (4, 8), (8, 11)]
    assert torch.equal(pieces, whole)
    kept = x.topk(30).values[:, -1:]
    expected = torch.where(x >= kept, x / 0.8, -torch.inf).log_softmax(1).gather(1, tokens.long().unsqueeze(1))
    assert torch.allclose(whole, expected.squeeze(1).clamp(min=-9999), atol=1e-5)
    assert Sampler().prompt_logprobs(logits_of, tokens[:0], params).shape == (0,)


def test_draft_tokens_are_refused_with_the_way_out() -> None:
    ENV.set("DEEPINFER_USE_NEXTN_DECODE", "5")
    with pytest.raises(NotImplementedError, match="DEEPINFER_USE_NEXTN_DECODE=0"):
        Sampler()


def test_inputs_of_other_rows_are_refused() -> None:
    with pytest.raises(ValueError, match="expected 1 rows of logits; found 2"):
        Sampler()(logits(2), inputs(SamplingParams.greedy()))
