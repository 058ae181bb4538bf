"""Ordinary code written for CUDA, as functions: `places` need shapes and devices only, `numbers` compute.

Each takes the device that `cuda` is to stand for; the same ones run on every placement.
"""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable

import pytest
import torch
from torch import nn

Snippet = Callable[[torch.device], None]


def factories(expected: torch.device) -> None:
    made = [
        torch.zeros(2, device="cuda"),
        torch.ones(2, device="cuda:1"),
        torch.empty((2,), device=torch.device("cuda")),
        torch.full((2,), 1.0, device=torch.device("cuda", 1)),
        torch.arange(2, device=0),
        torch.rand(2, device="cuda"),
        torch.eye(2, device="cuda"),
        torch.zeros(2).new_ones(2, device="cuda"),
        torch.empty_like(torch.zeros(2), device="cuda"),
        torch.zeros(2, device=torch.device(type="cuda", index=1), pin_memory=False),
        torch.fft.fftfreq(4, device="cuda"),
        torch.signal.windows.hann(4, device="cuda"),
        nn.Linear(2, 2, device="cuda").weight,
        nn.Embedding(2, 2, device=torch.device("cuda:0")).weight,
    ]
    assert [tensor.device for tensor in made] == [expected] * len(made)
    assert torch.zeros(2, device="cuda").device.type == expected.type
    assert torch.zeros(2, pin_memory=True).device.type == "cpu"
    assert torch.zeros(1, device="meta").device.type == "meta"


def data(expected: torch.device) -> None:
    made = [
        torch.tensor([1, 2], device="cuda"),
        torch.as_tensor([1.0, 2.0], device="cuda:1"),
        torch.asarray([1, 2], device=torch.device("cuda")),
        torch.zeros(2).new_tensor([3.0], device="cuda"),
    ]
    assert [tensor.device for tensor in made] == [expected] * len(made)


def moves(expected: torch.device) -> None:
    x = torch.ones(2, 2)
    moved = [
        x.cuda(),
        x.cuda(1),
        x.cuda("cuda:1", non_blocking=True),
        x.to("cuda:1"),
        x.to(0),
        x.to(device="cuda"),
        x.to(torch.device("cuda"), torch.bfloat16),
        x.pin_memory().to("cuda", non_blocking=True),
        x.to(torch.zeros(1, device="cuda")),
        x.type("torch.cuda.FloatTensor"),
        x.type(torch.cuda.HalfTensor),
    ]
    assert [tensor.device for tensor in moved] == [expected] * len(moved)
    assert all(tensor.is_cuda for tensor in moved)
    assert moved[6].dtype == torch.bfloat16
    assert moved[-1].dtype == torch.float16
    assert isinstance(moved[-1], torch.cuda.HalfTensor)
    assert not isinstance(moved[-1], torch.cuda.FloatTensor)
    assert moved[0].cpu().device.type == "cpu"


def modules(expected: torch.device) -> None:
    layer = nn.Linear(2, 2).cuda().to("cuda:0").to(0).to(device="cuda", dtype=torch.bfloat16)
    norm = nn.BatchNorm1d(2).cuda(0)
    assert {one.device for one in (*layer.parameters(), *norm.parameters(), *norm.buffers())} == {expected}
    assert layer(torch.ones(1, 2, device="cuda", dtype=torch.bfloat16)).device == expected
    with torch.device("meta"):
        empty = nn.Linear(2, 2)
    assert empty.to_empty(device="cuda").weight.device == expected


def devices(expected: torch.device) -> None:
    device = torch.device("cuda", 1)
    assert isinstance(device, torch.device)
    assert not isinstance("cuda", torch.device)
    assert device == torch.device("cuda:0") == torch.device("cuda") == torch.device(0) == expected
    assert hash(device) == hash(torch.device(type="cuda", index=0))
    assert (repr(device), f"{device}") == (repr(expected), str(expected))
    assert torch.zeros(1, device="cuda").device == device
    assert torch.device("meta").type == "meta"
    assert pickle.loads(pickle.dumps(device)) == device
    assert copy.deepcopy({"device": device}) == {"device": device}
    assert (torch.device | None) is not None
    with pytest.raises(RuntimeError, match="Expected one of cpu, cuda"):
        torch.device("gpu")


def contexts_of_devices(expected: torch.device) -> None:
    with torch.device("cuda"):
        assert torch.zeros(2).device == expected
        with torch.device("meta"):
            assert torch.zeros(2).device.type == "meta"
        assert torch.zeros(2, device="cpu").device.type == "cpu"
    assert torch.zeros(2).device.type == "cpu"
    torch.set_default_device("cuda:0")
    try:
        assert torch.get_default_device() == expected
        assert torch.ones(1).device == expected
    finally:
        torch.set_default_device(None)


def current_devices(expected: torch.device) -> None:
    torch.cuda.init()
    torch.cuda.set_device(0)
    torch.cuda.set_device("cuda")
    assert torch.cuda.is_available()
    assert torch.cuda.device_count() == 1
    x = torch.zeros(1, device="cuda")
    with torch.cuda.device(0), torch.cuda.device_of(x), torch.cuda.device(None), torch.cuda.device(x.device):
        assert torch.cuda.current_device() == 0
    torch.cuda.synchronize()
    torch.cuda.synchronize("cuda:0")
    assert torch.get_device_module("cuda") is torch.cuda
    properties = torch.cuda.get_device_properties(0)
    assert properties.total_memory > 0
    assert torch.cuda.get_device_capability() == (properties.major, properties.minor) == (0, 0)
    assert expected.type in torch.cuda.get_device_name("cuda")
    with pytest.raises(AttributeError, match=r"get_device_properties\(\)\.multi_processor_count has no counterpart"):
        _ = properties.multi_processor_count
    assert torch.cuda.is_bf16_supported()
    assert torch.cuda.get_arch_list() == []
    assert not torch.cuda.can_device_access_peer(0, 1)
    torch.cuda.ipc_collect()


def streams(expected: torch.device) -> None:
    stream: torch.cuda.Stream | None = torch.cuda.Stream()
    assert stream is not None
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    assert isinstance(stream, torch.cuda.Stream)
    assert isinstance(end, torch.cuda.Event)
    assert not isinstance(end, torch.cuda.Stream)
    before = torch.cuda.current_stream()
    with torch.cuda.stream(stream):
        assert torch.cuda.current_stream() is stream
        start.record()
        y = torch.ones(2, device="cuda") * 2
        end.record(stream)
    assert torch.cuda.current_stream() is before
    stream.wait_stream(torch.cuda.current_stream())
    torch.cuda.current_stream().wait_event(stream.record_event())
    torch.cuda.default_stream().synchronize()
    end.synchronize()
    assert start.elapsed_time(end) >= 0
    assert stream.query()
    assert end.query()
    assert y.device == expected
    with torch.cuda.stream(None):
        assert torch.cuda.current_stream() is before
    assert not torch.cuda.is_current_stream_capturing()


def memory(expected: torch.device) -> None:
    assert torch.cuda.memory_allocated() >= 0
    assert torch.cuda.max_memory_allocated("cuda:0") >= 0
    assert torch.cuda.memory.memory_reserved(0) >= torch.cuda.memory_allocated(torch.device("cuda"))
    assert torch.cuda.max_memory_reserved() >= 0
    assert torch.cuda.memory_stats().get("allocated_bytes.all.current", 0) >= 0
    assert isinstance(torch.cuda.memory_stats_as_nested_dict(), dict)
    assert torch.cuda.memory_summary(abbreviated=True)
    free, total = torch.cuda.mem_get_info()
    assert 0 < free <= total
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.reset_accumulated_memory_stats()


def seeds(expected: torch.device) -> None:
    torch.manual_seed(7)
    torch.cuda.manual_seed(7)
    torch.cuda.manual_seed_all(7)
    assert torch.cuda.initial_seed() == 7
    torch.cuda.random.set_rng_state(torch.cuda.get_rng_state(), "cuda:0")
    torch.cuda.set_rng_state_all(torch.cuda.get_rng_state_all())
    with torch.random.fork_rng(devices=[0], device_type="cuda"):
        torch.cuda.seed_all()


def generated_code(expected: torch.device) -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    def program(y: torch.Tensor) -> torch.Tensor:
        return torch.zeros(2, device=torch.device("cuda:1")) + torch.empty_like(y, device="cuda")

    graph = make_fx(program)(torch.ones(2, device="cuda"))
    assert repr(expected) in graph.code
    graph.recompile()
    assert graph(torch.ones(2, device="cuda")).device == expected

    traced = torch.fx.symbolic_trace(lambda y: y.to(torch.device("cuda")))
    assert traced(torch.ones(2)).device == expected
    typed = torch.fx.Graph()
    typed.output(typed.placeholder("where", type_expr=torch.device))
    assert "where : device" in torch.fx.GraphModule({}, typed).code


def checkpoints(expected: torch.device) -> None:
    buffer = io.BytesIO()
    torch.save({"w": torch.ones(2), "where": torch.device("cuda")}, buffer)
    for location in ("cuda", "cuda:1", torch.device("cuda"), {"cpu": "cuda:1"}, lambda storage, place: storage.cuda(0)):
        buffer.seek(0)
        read = torch.load(buffer, map_location=location, weights_only=True)
        assert (read["w"].device, read["where"]) == (expected, expected)
        assert read["w"].tolist() == [1.0, 1.0]


def generators(expected: torch.device) -> None:
    generator = torch.Generator(device="cuda").manual_seed(3)
    assert isinstance(generator, torch.Generator)
    drawn = torch.randn(4, generator=generator, device="cuda")
    assert drawn.device == expected
    again = torch.Generator(device=torch.device("cuda:1")).manual_seed(3)
    assert torch.equal(drawn.cpu(), torch.randn(4, generator=again, device="cuda").cpu())
    x = torch.empty(64, device="cuda").uniform_(generator=generator)
    assert x.device == expected
    assert 0 <= x.min().item() < x.max().item() <= 1
    token = torch.multinomial(torch.tensor([0.0, 1.0], device="cuda"), 1, generator=generator)
    assert (token.device, token.tolist()) == (expected, [1])
    assert torch.Generator().device.type == "cpu"


def mixed_precision(expected: torch.device) -> None:
    layer, x = nn.Linear(2, 2).cuda(), torch.ones(1, 2, device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16) as context:
        assert isinstance(context, torch.autocast)
        assert layer(x).dtype == torch.bfloat16
        assert torch.is_autocast_enabled("cuda")
        assert torch.is_autocast_enabled()
        assert torch.get_autocast_dtype("cuda") == torch.bfloat16
        with torch.autocast(device_type="cuda", enabled=False):
            assert layer(x).dtype == torch.float32
    with torch.amp.autocast("cuda"):
        assert layer(x).dtype == torch.float16, "CUDA's own where none is named"
    with torch.cuda.amp.autocast(dtype=torch.bfloat16):
        assert layer(x).dtype == torch.bfloat16

    @torch.autocast("cuda", dtype=torch.bfloat16)
    def decorated(y: torch.Tensor) -> torch.Tensor:
        return layer(y)

    assert decorated(x).dtype == torch.bfloat16
    assert not torch.is_autocast_enabled("cuda")


def training(expected: torch.device) -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 1).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda", init_scale=8.0)
    before = model.weight.detach().cpu().clone()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        y = torch.utils.checkpoint.checkpoint(model, torch.ones(3, 4, device="cuda"), use_reentrant=False)
    scaler.scale(y.float().square().mean()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert scaler.is_enabled()
    assert model.weight.grad is not None
    assert model.weight.grad.device == expected
    assert not torch.equal(model.weight.detach().cpu(), before)


def compiled(expected: torch.device) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        if torch.cuda.is_available():
            return x
        torch.cuda.nvtx.range_push("inside")
        torch.cuda.nvtx.range_pop()
        with torch.cuda.device(0), torch.autocast("cuda", dtype=torch.bfloat16):
            y = torch.ones(2, device="cuda") * torch.arange(2, device=torch.device("cuda"))
            z = x.cuda() + y.to("cuda:1")
            return z[None] @ z[:, None]

    run = torch.compile(program, backend="aot_eager", fullgraph=True, dynamic=False)
    result = run(torch.ones(2, device="cuda"))
    assert (result.device, result.dtype, result.tolist()) == (expected, torch.bfloat16, [[5.0]])


PLACES: tuple[Snippet, ...] = (
    factories,
    moves,
    modules,
    devices,
    contexts_of_devices,
    current_devices,
    streams,
    memory,
    seeds,
    generated_code,
)
"""Need shapes and devices only."""

NUMBERS: tuple[Snippet, ...] = (data, checkpoints, generators, mixed_precision, training, compiled)
"""Compute."""
