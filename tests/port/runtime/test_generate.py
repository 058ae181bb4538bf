"""Greedy generation: golden continuations, where it ends, and what an interruption leaves."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from port.runtime import generate as generate_module
from port.runtime.generate import generate
from port.runtime.sampling_params import SamplingParams
from port.runtime.text_model import open_text_model
from tests.port.golden import CHECKPOINT_A, golden_tensor, model_a, prompt_ids

PROMPTS = ("len1", "len3", "window_plus1", "len70")


def golden_tokens(name):
    return tuple(golden_tensor(f"{name}.gen_tokens").tolist())


@pytest.mark.parametrize("chunk", [None, 1, 7])
def test_a_batch_of_prompts_continues_as_the_golden_data_does(chunk):
    found = generate(model_a(), [prompt_ids(name) for name in PROMPTS], max_tokens=16, prefill_chunk=chunk)
    assert [one.token_ids for one in found] == [golden_tokens(name) for name in PROMPTS]
    assert [one.finish_reason for one in found] == ["length"] * len(PROMPTS)
    assert [one.prompt_token_ids for one in found] == [prompt_ids(name) for name in PROMPTS]


def test_a_stop_token_ends_its_own_sequence_only():
    stop = golden_tokens("len3")[4]
    assert stop not in golden_tokens("len1")[:10]
    found = generate(model_a(), [prompt_ids("len1"), prompt_ids("len3")], max_tokens=10, stop_token_ids=(stop,))
    assert [one.finish_reason for one in found] == ["length", "stop"]
    assert found[0].token_ids == golden_tokens("len1")[:10]
    assert found[1].token_ids == golden_tokens("len3")[:5], "the stop token is kept"


def test_one_token_needs_the_prefill_only(monkeypatch):
    monkeypatch.setattr(generate_module, "build_decode", None)
    (found,) = generate(model_a(), [prompt_ids("len3")], max_tokens=1)
    assert found.token_ids == golden_tokens("len3")[:1]


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_an_interruption_keeps_what_there_is(steps):
    def interrupt(done, total):
        assert total == 8
        if done > steps:
            raise KeyboardInterrupt

    found = generate(model_a(), [prompt_ids("len1"), prompt_ids("len3")], max_tokens=8, progress=interrupt)
    assert [one.finish_reason for one in found] == ["interrupted"] * 2
    assert [one.token_ids for one in found] == [golden_tokens(name)[: steps + 1] for name in ("len1", "len3")]


def test_a_finished_sequence_stays_finished_when_the_rest_is_interrupted():
    stop = golden_tokens("len3")[1]

    def interrupt(done, _):
        if done == 4:
            raise KeyboardInterrupt

    found = generate(
        model_a(), [prompt_ids("len1"), prompt_ids("len3")], max_tokens=8, stop_token_ids=(stop,), progress=interrupt
    )
    assert [one.finish_reason for one in found] == ["interrupted", "stop"]


def test_progress_counts_every_pass():
    seen = []
    generate(model_a(), [prompt_ids("len1")], max_tokens=3, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(1, 3), (2, 3), (3, 3)]


def test_all_problems_of_a_request_are_told_at_once():
    with pytest.raises(ValueError, match="expected at least one prompt; found none"):
        generate(model_a(), [], max_tokens=1)
    with pytest.raises(ValueError, match="generate: ") as error:
        generate(model_a(), [(1, 320), (), (3,)], max_tokens=0, prefill_chunk=-1)
    for part in (
        "prompt 0: expected token ids from 0 to 319; found [320]",
        "prompt 1: expected at least one token id; found none",
        "max_tokens: expected at least 1; found 0",
        "prefill_chunk: expected at least 1; found -1",
    ):
        assert part in str(error.value)


def test_generation_leaves_gradients_and_modes_as_they_were():
    generate(model_a(), [prompt_ids("len1")], max_tokens=1)
    assert torch.is_grad_enabled()
    assert not torch.is_inference_mode_enabled()


def test_opening_a_model_says_what_it_cannot_use(tmp_path):
    with pytest.raises(ValueError, match=r"numeric profile: expected one of .*; found 'fp23'. Did you mean 'fp32'"):
        open_text_model(CHECKPOINT_A, profile="fp23")
    with pytest.raises(ValueError, match=str(tmp_path)):
        open_text_model(tmp_path)


def test_sampled_tokens_depend_on_the_seed_and_not_on_the_batch():
    prompt = prompt_ids("len3")
    params = SamplingParams(temperature=1.5, top_p=0.95, seq_seed=11)
    alone = generate(model_a(), [prompt], max_tokens=6, sampling=params)
    again = generate(model_a(), [prompt, prompt, prompt], max_tokens=6, sampling=params)
    other = generate(model_a(), [prompt], max_tokens=6, sampling=dataclasses.replace(params, seq_seed=12))
    assert again[0].token_ids == alone[0].token_ids
    assert again[1].token_ids == other[0].token_ids
    assert len({one.token_ids for one in again}) == 3


def test_greedy_parameters_give_the_greedy_continuation():
    prompt = prompt_ids("len3")
    plain = generate(model_a(), [prompt], max_tokens=4)
    assert generate(model_a(), [prompt], max_tokens=4, sampling=SamplingParams.greedy()) == plain


def test_forced_tokens_are_produced_first():
    params = SamplingParams(golden_token_ids=(5, 6), seq_seed=1)
    (found,) = generate(model_a(), [prompt_ids("len3")], max_tokens=3, sampling=params)
    assert found.token_ids[:2] == (5, 6)
