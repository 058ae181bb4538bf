"""With every expert run, nothing depends on data: fake tensors pass through, decode compiles in one graph, and the
number of operations does not grow with the tokens.

With only the experts hit (`moe="hit"`) a step reads the chosen ids on the host; that needs real numbers, and is why a
device runs `moe="all"`.
"""

from __future__ import annotations

import pytest
import torch
from torch._dynamo.testing import CompileCounter
from torch._subclasses.fake_tensor import DynamicOutputShapeException, FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from port.runtime.decode_inputs import build_decode
from port.runtime.prefill_inputs import build_prefill
from tests.port.golden import run_chunks
from tests.port.tiny import VOCABULARY, random_ids, tiny_config, tiny_model

SMALL = tiny_config(
    num_hidden_layers=3,
    compress_ratios=(0, 2, 1, 0),
    kv_source_layer_ids=(1, 2),
    index_k_source_layer_ids=(),
    index_source_layer_ids=(1, 2),
    candidate_source_layer_id=2,
    n_routed_experts=2,
    num_experts_per_tok=1,
    engram_layer_ids=(0,),
    hc_sinkhorn_iters=2,
)
"""One layer of every kind, small enough to be traced in seconds."""


class OperationCount(TorchDispatchMode):
    """Counts every operation that reaches a backend."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += 1
        return func(*args, **(kwargs or {}))


def prefilled(text_model, tokens, *, room=12):
    ids = random_ids(tokens)
    cache = text_model.cache_for([tokens + room])
    _, sequence = run_chunks(text_model, cache, cache.admit(ids, max_tokens=room), [tokens])
    return cache, sequence


@pytest.mark.parametrize(("profile", "weights"), [("fp32", "dequantized"), ("bf16", "stored"), ("D", "stored")])
def test_shapes_alone_run_through_prefill_and_decode(profile, weights):
    text_model = tiny_model(profile, moe="all", weights=weights, config=SMALL)
    ids = random_ids(30)
    cache = text_model.cache_for([31])
    sequence = cache.admit(ids, max_tokens=1)
    prefill = build_prefill(cache.layout, [sequence], engram=text_model.engram)
    decode = build_decode(cache.layout, [sequence.advanced(30).with_token(5)], engram=text_model.engram, rows=4)
    for batch, rows in ((prefill, 30), (decode, 4)):
        with torch.no_grad(), FakeTensorMode(allow_non_fake_inputs=True) as mode:
            logits = text_model.model(batch.map(mode.from_tensor), cache)
        assert isinstance(logits, FakeTensor)
        assert tuple(logits.shape) == (rows, VOCABULARY)
        assert logits.dtype == torch.float32


def test_experts_hit_need_numbers():
    text_model = tiny_model(moe="hit", config=SMALL)
    cache, sequence = prefilled(text_model, 5)
    batch = build_decode(cache.layout, [sequence.with_token(5)], engram=text_model.engram)
    with (
        torch.no_grad(),
        FakeTensorMode(allow_non_fake_inputs=True) as mode,
        pytest.raises(DynamicOutputShapeException),
    ):
        text_model.model(batch.map(mode.from_tensor), cache)


@pytest.mark.filterwarnings("default")  # Dynamo's own deprecations are not ours to fail on
def test_decode_compiles_as_one_graph_and_keeps_its_bits():
    text_model = tiny_model(moe="all", config=SMALL)
    cache, sequence = prefilled(text_model, 20)
    counter = CompileCounter()
    torch._dynamo.reset()
    compiled = torch.compile(text_model.model, fullgraph=True, backend=counter)
    try:
        for step in range(6):
            sequence = sequence.with_token(3 + step)
            batch = build_decode(cache.layout, [sequence], engram=text_model.engram)
            with torch.inference_mode():
                expected = text_model.model(batch, cache)
                assert torch.equal(compiled(batch, cache), expected)
            sequence = sequence.advanced(1)
    finally:
        torch._dynamo.reset()
    assert counter.frame_count == 1, "positions of one table width share a graph"


@pytest.mark.parametrize("build", ["prefill", "decode"])
def test_operations_do_not_grow_with_tokens(build):
    text_model = tiny_model(moe="all", config=SMALL)
    counts = set()
    for rows in (20, 200):  # both above the 8 rows to which a product is padded
        cache = text_model.cache_for([3] * rows if build == "decode" else [rows])
        if build == "decode":
            sequences = [cache.admit((3, 4), max_tokens=1).advanced(1) for _ in range(rows)]
            batch = build_decode(cache.layout, sequences, engram=text_model.engram)
        else:
            batch = build_prefill(cache.layout, [cache.admit(random_ids(rows))], engram=text_model.engram)
        assert batch.total_q == rows
        text_model.model.rotations(batch)
        with torch.inference_mode(), OperationCount() as operations:
            text_model.model(batch, cache)
        counts.add(operations.count)
    assert len(counts) == 1, counts


def test_experts_not_hit_are_not_run():
    text_model = tiny_model(moe="hit", config=tiny_config(n_routed_experts=10, num_experts_per_tok=1))
    calls = []
    for layer in text_model.model.layers:
        for number, expert in enumerate(layer.ffn.experts):
            expert.forward = counted(expert.forward, calls, number)
    cache = text_model.cache_for([1])
    with torch.inference_mode():
        text_model.model(build_prefill(cache.layout, [cache.admit((5,))], engram=text_model.engram), cache)
    assert len(calls) == 7, "one expert in each of seven layers"


def counted(function, calls, number):
    def call(*arguments):
        calls.append(number)
        return function(*arguments)

    return call
