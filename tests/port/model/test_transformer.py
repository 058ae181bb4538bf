"""The model is its checkpoint: same names, shapes and dtypes; every weight counts; forms of it give the same bits."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from port.checkpoint.index import open_checkpoint
from port.errors import CheckpointError
from port.model.steps import step_program
from port.model.taps import RecordingTap
from port.model.transformer import Transformer
from port.numerics import NumericProfile
from port.runtime.cache_layout import CacheLayout
from port.runtime.decode_inputs import build_decode
from port.runtime.prefill_inputs import build_prefill
from port.runtime.sequence import Sequence
from port.verify_rules import row_errors
from tests.port.golden import (
    CHECKPOINT_A,
    ROW_TOLERANCE,
    fresh_model_a,
    golden_tensor,
    model_a,
    prefill_logits,
    prompt_ids,
    run_chunks,
)
from tests.port.tiny import BASE, random_ids, tiny_config, tiny_model
from tests.shared import shared_path

TAPS_OF_A_SOURCE = {
    *("attn.in", "attn.q", "attn.kv", "attn.compressed", "attn.index_key", "attn.index_query", "attn.index_weights"),
    *("attn.index_score", "attn.candidate_blocks", "attn.index_topk", "attn.heads", "attn.out", "attn.stream"),
    *("attn.pre", "ffn.in", "ffn.router_logits", "ffn.router_ids", "ffn.router_weights", "ffn.out", "out", "pre"),
}
PROFILES = ("fp32", "fp32kv", "fp32q", "bf16", "D")


@pytest.mark.parametrize("name", ["A", "B"])
def test_state_dict_is_the_checkpoint(name):
    checkpoint = open_checkpoint(CHECKPOINT_A if name == "A" else shared_path("golden", name, "checkpoint"))
    model = Transformer(checkpoint.model_config(), profile=NumericProfile.named("fp32"))
    expected = {entry.name: (entry.shape, entry.dtype) for entry in checkpoint.entries.values()}
    names = {torch.bfloat16: "BF16", torch.float32: "F32", torch.float8_e4m3fn: "F8_E4M3"}
    names |= {torch.float8_e8m0fnu: "F8_E8M0", torch.int8: "I8"}
    found = {key: (tuple(tensor.shape), names[tensor.dtype]) for key, tensor in model.state_dict().items()}
    assert found == expected


def test_nothing_has_memory_before_it_is_loaded():
    model = Transformer(BASE, profile=NumericProfile.named("fp32"))
    assert {tensor.device.type for tensor in model.state_dict().values()} == {"meta"}


def test_owners_hold_what_the_schedule_says():
    names = set(Transformer(BASE, profile=NumericProfile.named("fp32")).state_dict())

    def owners(leaf):
        return [layer for layer in range(7) if f"layers.{layer}.{leaf}" in names]

    assert owners("attn.compressor.wkv.weight") == [1, 3, 4]
    assert owners("attn.compressor.wgate.weight") == [1, 3]
    assert owners("attn.indexer.wk.weight") == [1, 3, 4]
    assert owners("attn.indexer.wq_b.weight") == [1, 3, 4, 6]
    assert owners("engram.embed.scale") == [0, 1]
    assert owners("ffn.gate.bias_vl") == list(range(7))


def kinds_of_tensors():
    """One tensor of every kind the checkpoint has, by name without layer and expert number."""
    found = {}
    for name in open_checkpoint(CHECKPOINT_A).entries:
        kind = ".".join("*" if part.isdigit() else part for part in name.split("."))
        found[kind] = name  # the last layer that has it
    return sorted(found.values())


@pytest.mark.parametrize("name", kinds_of_tensors())
def test_every_kind_of_weight_counts(name):
    text_model = fresh_model_a(weights="stored")
    parameter = text_model.model.get_parameter(name)
    with torch.no_grad():
        if parameter.dtype == torch.float8_e8m0fnu:
            # Exponents up by one and two in turn: a plain factor would vanish in a norm.
            parameter.view(torch.uint8).flatten()[::2].add_(2)
        elif parameter.dtype == torch.int8:
            parameter.copy_(parameter.roll(1, dims=1))
        else:
            parameter.copy_(parameter.float().roll(1, dims=-1).to(parameter.dtype))
    error = row_errors(golden_tensor("len200.logits"), prefill_logits(text_model, prompt_ids("len200"))).max()
    if name.endswith("bias_vl"):
        assert error <= ROW_TOLERANCE, "the bias for image tokens has no part in text"
    else:
        assert error > ROW_TOLERANCE


@pytest.mark.parametrize("profile", PROFILES)
def test_hit_experts_and_all_experts_give_the_same_bits(profile):
    ids = random_ids(30)
    hit, every = tiny_model(profile, moe="hit"), tiny_model(profile, moe="all")
    assert torch.equal(prefill_logits(hit, ids), prefill_logits(every, ids))
    for rows in (None, 4):
        assert torch.equal(decode_logits(hit, ids, rows=rows), decode_logits(every, ids, rows=rows))


@pytest.mark.parametrize("profile", PROFILES)
def test_stored_and_dequantized_weights_give_the_same_bits(profile):
    ids = random_ids(30)
    stored, dense = tiny_model(profile, weights="stored"), tiny_model(profile, weights="dequantized")
    assert torch.equal(prefill_logits(stored, ids), prefill_logits(dense, ids))
    assert torch.equal(decode_logits(stored, ids), decode_logits(dense, ids))


def decode_logits(text_model, ids, *, rows=None):
    cache = text_model.cache_for([len(ids)])
    _, sequence = run_chunks(text_model, cache, cache.admit(ids[:-1], max_tokens=1), [len(ids) - 1])
    batch = build_decode(cache.layout, [sequence.with_token(ids[-1])], engram=text_model.engram, rows=rows)
    with torch.inference_mode():
        return text_model.model(batch, cache)[:1]


@pytest.mark.parametrize("profile", PROFILES)
def test_the_same_seed_gives_the_same_bits(profile):
    ids = random_ids(30)
    once = prefill_logits(tiny_model(profile), ids)
    assert torch.equal(prefill_logits(tiny_model(profile), ids), once)
    assert not torch.equal(prefill_logits(tiny_model(profile, seed=1), ids), once)


def test_forward_is_the_loop_over_its_steps():
    text_model = model_a()
    ids = prompt_ids("two_windows_minus1")
    cache = text_model.cache_for([len(ids)])
    batch = build_prefill(cache.layout, [cache.admit(ids)], engram=text_model.engram)
    model = text_model.model
    with torch.inference_mode():
        state = model.begin(batch)
        for step in model.steps():
            state = model.run_step(step, state, batch, cache)
    assert torch.equal(state.logits, prefill_logits(text_model, ids))


def test_program_runs_every_sub_layer_in_order():
    steps = tiny_model().model.steps()
    assert [step.index for step in steps] == list(range(len(steps)))
    assert [step.module for step in steps[:7]] == [
        "embed",
        "layers.0.engram",
        "layers.0.attn",
        "layers.0.ffn",
        "layers.1.engram",
        "layers.1.attn",
        "layers.1.ffn",
    ]
    assert steps[-1].module == "head"
    assert [step.kind for step in steps].count("attention") == 7


def test_every_weight_belongs_to_exactly_one_step():
    model = tiny_model().model
    for name in model.state_dict():
        owners = [
            step.module
            for step in step_program(model.schedule)
            if any(name == weight or name.startswith(weight + ".") for weight in step.weights)
        ]
        assert len(owners) == 1, f"{name}: {owners}"


@pytest.mark.parametrize("weights", ["dequantized", "stored"])
def test_streaming_one_step_at_a_time_gives_the_bits_of_a_resident_model(weights):
    text_model = fresh_model_a(weights=weights, load=False)
    model, ids = text_model.model, prompt_ids("two_windows_minus1")
    cache = text_model.cache_for([len(ids)])
    batch = build_prefill(cache.layout, [cache.admit(ids)], engram=text_model.engram)
    total = 0
    with torch.inference_mode():
        state = model.begin(batch)
        for step in model.steps():
            total += model.load(text_model.checkpoint, step.weights).nbytes
            resident = {name for name, tensor in model.state_dict().items() if not tensor.is_meta}
            assert resident == {name for name in model.state_dict() if belongs(name, step.weights)}
            state = model.run_step(step, state, batch, cache)
            model.unload(step.weights)
    assert all(tensor.is_meta for tensor in model.state_dict().values())
    assert all(module.dense is None for module in model.modules() if hasattr(module, "dense"))
    assert total == sum(entry.nbytes for entry in text_model.checkpoint.entries.values())
    assert torch.equal(state.logits, prefill_logits(model_a(), ids))


def belongs(name, weights):
    return any(name == weight or name.startswith(weight + ".") for weight in weights)


def test_loading_reports_what_does_not_fit_and_changes_nothing():
    checkpoint = open_checkpoint(CHECKPOINT_A)
    model = Transformer(tiny_config(vocab_size=320, hidden_size=128), profile=NumericProfile.named("fp32"))
    with pytest.raises(
        CheckpointError, match=r"layers\.0\.attn\.wq_a\.weight: expected shape \[160, 128\]; found \[64, 128\]"
    ):
        model.load(checkpoint, ["embed", "layers.0.attn"])
    assert model.embed.weight.is_meta
    with pytest.raises(ValueError, match="expected modules or tensors such as"):
        model.load(checkpoint, ["layers.99"])


def test_a_tap_sees_every_intermediate_and_may_replace_it():
    ids = random_ids(12)
    text_model = tiny_model()
    recording = RecordingTap()
    plain = prefill_logits(text_model, ids, recording)
    assert torch.equal(recording.tensors["logits"], plain)
    assert {name[9:] for name in recording.tensors if name.startswith("layers.4.")} == TAPS_OF_A_SOURCE
    chosen = RecordingTap({"layers.3.ffn.out"})
    prefill_logits(text_model, ids, chosen)
    assert set(chosen.tensors) == {"layers.3.ffn.out"}

    def without_layer_3(name, tensor):
        return torch.zeros_like(tensor) if name == "layers.3.ffn.out" else tensor

    assert not torch.equal(prefill_logits(text_model, ids, without_layer_3), plain)


def test_only_the_wanted_rows_reach_the_head():
    text_model, ids = tiny_model(), random_ids(12)
    cache = text_model.cache_for([12])
    batch = build_prefill(cache.layout, [cache.admit(ids)], engram=text_model.engram, logits="last")
    with torch.inference_mode():
        last = text_model.model(batch, cache)
    assert torch.equal(last, prefill_logits(text_model, ids)[-1:])


def test_rotation_tables_grow_with_the_context():
    text_model = tiny_model(config=tiny_config(max_position_embeddings=300))
    model, any_batch = text_model.model, one_row_decode()

    def tables(position):
        return model.rotations(dataclasses.replace(any_batch, max_position=position))

    assert tables(5)["window"].cos.shape[0] == 256
    small = tables(255)
    assert small is tables(0), "made once"
    grown = tables(256)
    assert grown["window"].cos.shape[0] == 300, "not beyond the largest position of the model"
    assert torch.equal(grown["compress"].cos[:256], small["compress"].cos)
    assert tables(400)["window"].cos.shape[0] == 401, "but as far as a batch needs"


def one_row_decode():
    sequence = Sequence(token_ids=(3,), block_table=(1,), state_id=1)
    return build_decode(CacheLayout(window=4, backtracking=1, ratios=(1, 2)), [sequence])
