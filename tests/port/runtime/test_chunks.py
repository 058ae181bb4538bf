"""However a text is cut into chunks, batches and decode steps, its logits are those of one prefill.

Both models: golden A, and the small one that shares no size with it (Engram on layer 0, three streams, odd vocabulary).
"""

from __future__ import annotations

import pytest
import torch

from port.kernels import attention, index_selection
from port.runtime.decode_inputs import build_decode
from port.runtime.prefill_inputs import build_prefill
from port.verify_rules import row_errors
from tests.port.golden import ROW_TOLERANCE, model_a, prefill_logits, prompt_ids, run_chunks
from tests.port.tiny import random_ids, tiny_config, tiny_model

MODELS = {"golden A": (model_a, prompt_ids("len70")), "tiny": (tiny_model, random_ids(70))}
both_models = pytest.mark.parametrize("name", MODELS)


def parts(name):
    make, ids = MODELS[name]
    return make(), ids


def alike(found, expected):
    assert found.shape == expected.shape
    assert float(row_errors(expected, found).max()) <= ROW_TOLERANCE


CHUNKINGS = {
    "ones": [1] * 70,
    "odd": [3, 5, 7, 9, 11, 13, 15, 7],
    "one first": [1, 69],
    "one last": [69, 1],
    "window": [16, 16, 16, 16, 6],
    "window and one": [17, 17, 17, 17, 2],
}


@both_models
@pytest.mark.parametrize("chunks", CHUNKINGS.values(), ids=CHUNKINGS)
def test_chunks_equal_one_prefill(name, chunks):
    text_model, ids = parts(name)
    cache = text_model.cache_for([len(ids)])
    found, sequence = run_chunks(text_model, cache, cache.admit(ids), chunks)
    alike(found, prefill_logits(text_model, ids))
    assert sequence.pending == 0


@both_models
@pytest.mark.parametrize("prefilled", [1, 50])
def test_decode_equals_one_prefill(name, prefilled):
    text_model, ids = parts(name)
    cache = text_model.cache_for([len(ids)])
    _, sequence = run_chunks(text_model, cache, cache.admit(ids[:prefilled], max_tokens=len(ids)), [prefilled])
    rows = []
    for token in ids[prefilled:]:
        found, (sequence,) = decode(text_model, cache, [sequence], [token])
        rows.append(found)
    alike(torch.cat(rows), prefill_logits(text_model, ids)[prefilled:])


@torch.inference_mode()
def decode(text_model, cache, sequences, tokens, **options):
    """Run one token of each sequence; return the logits and the sequences afterwards."""
    fed = [sequence.with_token(token) for sequence, token in zip(sequences, tokens, strict=True)]
    batch = build_decode(cache.layout, fed, engram=text_model.engram, **options)
    return text_model.model(batch, cache), [sequence.advanced(1) for sequence in fed]


LENGTHS = (1, 2, 17, 30, 61)


@both_models
def test_a_batch_of_prefills_equals_each_alone(name):
    text_model, ids = parts(name)
    prompts = [tuple(reversed(ids))[:length] for length in LENGTHS]
    cache = text_model.cache_for(LENGTHS)
    sequences = [cache.admit(prompt) for prompt in prompts]
    with torch.inference_mode():
        found = text_model.model(build_prefill(cache.layout, sequences, engram=text_model.engram), cache)
    alike(found, torch.cat([prefill_logits(text_model, prompt) for prompt in prompts]))


@both_models
def test_a_batch_of_chunks_at_different_positions_equals_each_alone(name):
    text_model, ids = parts(name)
    prompts = [ids[:20], tuple(reversed(ids))[:45], ids[10:40]]
    cache = text_model.cache_for([len(prompt) for prompt in prompts])
    sequences = [cache.admit(prompt) for prompt in prompts]
    found = [[], [], []]
    for lengths in ([3, 20, 1], [9, 5, 28], [8, 20, 1]):
        batch = build_prefill(cache.layout, sequences, engram=text_model.engram, chunk_lens=lengths)
        with torch.inference_mode():
            pieces = text_model.model(batch, cache).split(lengths)
        sequences = [sequence.advanced(length) for sequence, length in zip(sequences, lengths, strict=True)]
        for rows, piece in zip(found, pieces, strict=True):
            rows.append(piece)
    for rows, prompt in zip(found, prompts, strict=True):
        alike(torch.cat(rows), prefill_logits(text_model, prompt))


@both_models
@pytest.mark.parametrize("padded_rows", [None, 8])
def test_a_batched_decode_of_different_lengths_equals_each_alone(name, padded_rows):
    text_model, ids = parts(name)
    steps = 6
    prompts = [tuple(reversed(ids))[: length + steps] for length in LENGTHS]
    cache = text_model.cache_for([len(prompt) for prompt in prompts])
    sequences = []
    for prompt in prompts:
        admitted = cache.admit(prompt[:-steps], max_tokens=steps)
        sequences.append(run_chunks(text_model, cache, admitted, [len(prompt) - steps])[1])
    wholes = [prefill_logits(text_model, prompt)[-steps:] for prompt in prompts]
    for step in range(steps):
        tokens = [prompt[len(prompt) - steps + step] for prompt in prompts]
        found, sequences = decode(text_model, cache, sequences, tokens, rows=padded_rows)
        alike(found[: len(prompts)], torch.stack([whole[step] for whole in wholes]))
        assert bool(found.isfinite().all()), "padding rows too"


def test_several_pending_tokens_decode_in_one_step():
    """Speculation: with room to take tokens back, a step may run several tokens of one sequence."""
    text_model, ids = tiny_model(), random_ids(40)
    cache = type(text_model.cache_for([1])).for_lengths(
        text_model.config, [40], profile=text_model.model.precision.profile, backtracking=4
    )
    _, sequence = run_chunks(text_model, cache, cache.admit(ids[:25], max_tokens=15), [25])
    rows = []
    for begin, end in ((25, 28), (28, 29), (29, 33), (33, 37), (37, 40)):
        for token in ids[begin:end]:
            sequence = sequence.with_token(token)
        with torch.inference_mode():
            rows.append(text_model.model(build_decode(cache.layout, [sequence], engram=text_model.engram), cache))
        sequence = sequence.advanced(end - begin)
    alike(torch.cat(rows), prefill_logits(text_model, ids)[25:])


@pytest.mark.parametrize("taken_back", [1, 3])
def test_rejected_tokens_can_be_taken_back(taken_back):
    text_model, ids = tiny_model(), random_ids(40)
    cache = type(text_model.cache_for([1])).for_lengths(
        text_model.config, [40], profile=text_model.model.precision.profile, backtracking=4
    )
    _, sequence = run_chunks(text_model, cache, cache.admit(ids[:30], max_tokens=10), [30])
    wrong = [(token + 1) % 300 for token in ids[30 : 30 + taken_back]]
    for token in wrong:
        _, (sequence,) = decode(text_model, cache, [sequence], [token])
    # Lengths shrink; nothing in the cache is undone.
    sequence = type(sequence)(
        token_ids=ids[:30], block_table=sequence.block_table, state_id=sequence.state_id, cached=30
    )
    rows = []
    for token in ids[30:]:
        found, (sequence,) = decode(text_model, cache, [sequence], [token])
        rows.append(found)
    alike(torch.cat(rows), prefill_logits(text_model, ids)[30:])


def test_a_text_of_several_blocks_equals_one_prefill():
    text_model, ids = tiny_model(), random_ids(300)
    cache = text_model.cache_for([300])
    # Blocks in another order than their numbers.
    sequence = cache.admit(ids)
    sequence = type(sequence)(token_ids=ids, block_table=sequence.block_table[::-1], state_id=sequence.state_id)
    found, sequence = run_chunks(text_model, cache, sequence, [100, 29, 161])
    rows = [found]
    for token in ids[290:]:
        sequence = type(sequence)(
            token_ids=ids[: sequence.cached], block_table=sequence.block_table, state_id=1, cached=sequence.cached
        )
        found, (sequence,) = decode(text_model, cache, [sequence], [token])
        rows.append(found)
    alike(torch.cat(rows), prefill_logits(text_model, ids))


def test_work_done_in_pieces_is_the_work_done_at_once(monkeypatch):
    text_model, ids = tiny_model(), random_ids(70)
    whole = prefill_logits(text_model, ids)
    monkeypatch.setattr(attention, "MAX_GATHERED_ELEMENTS", 96 * 40)
    monkeypatch.setattr(index_selection, "MAX_SCORE_ELEMENTS", 5 * 70 * 3)
    alike(prefill_logits(text_model, ids), whole)


@pytest.mark.parametrize(
    "changes",
    [
        {"rope_scaling": None},
        {"engram_layer_ids": ()},
        {"candidate_source_layer_id": None},
        {
            "compress_ratios": (0,) * 8,
            "kv_source_layer_ids": (),
            "index_source_layer_ids": (),
            "candidate_source_layer_id": None,
        },
        {
            "compress_ratios": (4, 4, 4, 4, 1, 1, 1, 0),
            "kv_source_layer_ids": (0, 4),
            "index_source_layer_ids": (0, 2, 4, 6),
        },
        {"sliding_window": 1},
        {"index_topk": 1, "candidate_topk_blocks": 1},
        {"num_experts_per_tok": 10},
        {"qk_rope_head_dim": 64},
        {"hc_mult": 1},
    ],
    ids=lambda changes: ",".join(changes),
)
def test_other_shapes_of_the_architecture_run_and_agree(changes):
    if "kv_source_layer_ids" in changes:
        changes = {**changes, "index_k_source_layer_ids": ()}
    text_model, ids = tiny_model(config=tiny_config(**changes)), random_ids(45)
    whole = prefill_logits(text_model, ids)
    assert bool(whole.isfinite().all())
    cache = text_model.cache_for([45])
    found, sequence = run_chunks(text_model, cache, cache.admit(ids[:41], max_tokens=4), [7, 1, 33])
    rows = [found]
    for token in ids[41:]:
        found, (sequence,) = decode(text_model, cache, [sequence], [token])
        rows.append(found)
    alike(torch.cat(rows), whole)
