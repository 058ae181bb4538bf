"""Checks of the model on several ranks: the bits of one rank, whoever holds the experts and the tables."""

from __future__ import annotations

import dataclasses
import functools
import json

import torch
from safetensors.torch import load_file

from port.checkpoint.slices import is_expert, is_table
from port.collectives.parallel import Parallel
from port.model.taps import RecordingTap
from port.runtime.decode_inputs import build_decode
from port.runtime.generate import generate
from port.runtime.prefill_inputs import build_prefill
from port.runtime.text_model import open_text_model
from port.verify import verify
from tests.port.golden import CHECKPOINT_A, GOLDEN_A, model_a, prompt_ids

FORMS = (("fp32", "hit"), ("fp32", "all"), ("bf16", "hit"), ("D", "all"))


@functools.cache
def shared_model(groups, profile="fp32", moe="hit", extra=0):
    parallel = Parallel(groups=groups, max_tokens_per_rank=64, extra_experts=extra)
    return open_text_model(CHECKPOINT_A, profile=profile, moe=moe, parallel=parallel)


@torch.inference_mode()
def run(text_model, ids, *, rows=None):
    """Logits of a prefill and of one padded decode step, and the ids the router chose."""
    cache = text_model.cache_for([len(ids)])
    sequence, tap = cache.admit(ids[:-1], max_tokens=1), RecordingTap()
    prefill = text_model.model(build_prefill(cache.layout, [sequence], engram=text_model.engram), cache, tap)
    sequence = sequence.advanced(len(ids) - 1).with_token(ids[-1])
    decode = text_model.model(build_decode(cache.layout, [sequence], engram=text_model.engram, rows=4), cache, tap)
    return prefill, decode[:1], tap.tensors


def each_rank_reads_its_own_slices_alone(groups, _folder):
    text_model, world = shared_model(groups), groups.layout.world_size
    whole, report = dict(model_a().model.state_dict()), text_model.load_report
    found = dict(text_model.model.state_dict())
    assert set(report.loaded) == set(found)
    assert set(report.loaded) | set(report.elsewhere) == set(whole)
    assert not set(report.loaded) & set(report.elsewhere)
    assert not report.unexpected
    experts = [name for name in whole if is_expert(name)]
    assert len([name for name in found if is_expert(name)]) * world == len(experts)
    for name, tensor in found.items():
        expected = whole[name]
        if is_table(name) and world > 1:
            assert len(tensor) == 512 // world
            begin = groups.rank * len(tensor)
            expected = expected[begin : begin + len(tensor)]
            tensor = tensor[: len(expected)]
        assert torch.equal(tensor.contiguous().view(torch.uint8), expected.contiguous().view(torch.uint8))


def parts_load_by_name_and_give_their_memory_back(groups, _folder):
    parallel = Parallel(groups=groups)
    text_model = open_text_model(CHECKPOINT_A, parallel=parallel, load=False)
    model, whole = text_model.model, model_a().model
    report = model.load(text_model.checkpoint, ["layers.1.engram", "layers.1.ffn"])
    assert not report.elsewhere, "a part is not held against all that is there"
    ids = torch.arange(24, dtype=torch.int32).view(4, 6) * 17
    embed = model.layers[1].engram.embed
    assert torch.equal(embed(ids, torch.float32), whole.layers[1].engram.embed(ids, torch.float32))
    model.unload()
    assert {tensor.device.type for tensor in model.state_dict().values()} == {"meta"}


def golden_checks_pass_with_the_figures_of_one_rank(groups, folder):
    """The process that started the ranks wrote down the figures it found alone."""
    expected = json.loads((folder / "figures.json").read_text())
    prompts = tuple(dict.fromkeys(result["prompt"] for result in expected))
    found = [dataclasses.asdict(result) for result in verify(shared_model(groups), GOLDEN_A, prompts=prompts)]
    assert all(result["passed"] for result in found)
    assert found == expected


def bits_are_those_of_one_rank(groups, _folder, forms=FORMS):
    ids = prompt_ids("two_windows_minus1")
    # Ranks run prompts of their own: other tokens, other lengths.
    ids = ids[groups.rank : len(ids) - 3 * groups.rank]
    for profile, moe in forms:
        alone = open_text_model(CHECKPOINT_A, profile=profile, moe=moe)
        expected, found = run(alone, ids), run(shared_model(groups, profile, moe), ids)
        assert torch.equal(found[0], expected[0]), (profile, moe)
        assert torch.equal(found[1], expected[1]), (profile, moe)
        assert all(torch.equal(found[2][name], tensor) for name, tensor in expected[2].items())


def replicas_of_experts_change_no_bit(groups, _folder):
    ids = prompt_ids("window_plus1")
    text_model, world = shared_model(groups, extra=3), groups.layout.world_size
    assert torch.equal(run(text_model, ids)[0], run(model_a(), ids)[0])
    if world > 1:
        balancer = text_model.model.balancer
        assert balancer.slots.extra == {2: 4, 4: 4}[world]
        # Two passes of every rank: 16 rows, then one decode row, two experts each.
        routed = balancer.expert_count.sum(dim=1)
        torch.distributed.all_reduce(routed, group=groups.expert_host)
        assert routed.tolist() == [2 * 17 * world] * len(routed)


def uneven_and_idle_ranks_generate_what_one_rank_does(groups, _folder):
    prompts = [prompt_ids(name) for name in ("len1", "len3", "window", "two_windows_minus1")]
    share = {0: prompts[2:3], 1: prompts[:2] + prompts[3:], 2: [], 3: prompts[1:2]}[groups.rank]
    for moe in ("hit", "all"):
        tokens = 3 + groups.rank
        found = generate(shared_model(groups, moe=moe), share, max_tokens=tokens, prefill_chunk=9)
        expected = generate(model_a(), share, max_tokens=tokens, prefill_chunk=9) if share else ()
        assert found == expected


def golden_tokens_come_out(groups, _folder):
    golden = load_file(GOLDEN_A / "fp32.safetensors")
    names = ("len3", "window", "window_plus1", "two_windows_minus1")
    name = names[groups.rank]
    (found,) = generate(shared_model(groups), [prompt_ids(name)], max_tokens=16)
    assert list(found.token_ids) == golden[f"{name}.gen_tokens"].tolist()


def other_layouts_have_the_same_bits(groups, folder):
    bits_are_those_of_one_rank(groups, folder, forms=(("bf16@224", "hit"),))


CHECKS = (
    each_rank_reads_its_own_slices_alone,
    parts_load_by_name_and_give_their_memory_back,
    golden_checks_pass_with_the_figures_of_one_rank,
    bits_are_those_of_one_rank,
    replicas_of_experts_change_no_bit,
    uneven_and_idle_ranks_generate_what_one_rank_does,
    golden_tokens_come_out,
)
