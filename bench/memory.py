"""What observing memory costs: beside a plain run, and beside torch's own profiler with `profile_memory=True`.

Two programs: many small operations, where the cost per operation shows, and large products, where it should vanish. The
figures of all three are checked against each other in the same run.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from workbench.probes.allocator_run import run_with_allocator
from workbench.probes.memory import record_memory

_ROUNDS = 3
_CHECKPOINT = Path(__file__).parents[1] / "fixtures" / "golden_A" / "checkpoint"


class _Small(nn.Module):
    """2,000 operations on a few bytes each."""

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(500):
            x = (x * 2).relu().sum(-1, keepdim=True) + x
        return x


def _large() -> nn.Module:
    layers = [part for _ in range(6) for part in (nn.Linear(1024, 1024), nn.GELU())]
    return nn.Sequential(*layers).eval()


def main(out: Callable[[str], None]) -> None:
    """Print seconds and ratios; an AssertionError where two ways of counting disagree."""
    torch.manual_seed(0)
    programs: tuple[tuple[str, nn.Module, Tensor], ...] = (
        ("2,000 small operations", _Small(), torch.randn(8, 16)),
        ("6 products of 1024 x 1024", _large(), torch.randn(256, 1024)),
    )
    for name, model, x in programs:
        with torch.no_grad():
            _compare(name, lambda model=model, x=x: model(x), model, x, out)
    _dry(out)


def _compare(name: str, plain: Callable[[], object], model: nn.Module, x: Tensor, out: Callable[[str], None]) -> None:
    base = _median(plain)
    observed = _median(lambda: record_memory(model, (x,), allocator=False))
    both = _median(lambda: record_memory(model, (x,)))
    peer = _median(lambda: _profiled(plain))
    out(f"   {name}: plain {base * 1e3:.2f} ms")
    for what, seconds in (
        ("torch.profiler(profile_memory=True), events read", peer),
        ("record_memory, tensors", observed),
        ("record_memory, tensors and allocator", both),
    ):
        out(f"     {what:<50} {seconds * 1e3:9.2f} ms  {seconds / base:7.1f} x plain  {seconds / peer:5.2f} x peer")
    findings = record_memory(model, (x,))
    assert findings.allocator_peak is not None, "a plain model is counted both ways"
    ours, theirs = findings.allocator_peak.peak_bytes_above_baseline, _profiled(plain)
    assert ours == theirs, f"peak: expected {theirs} bytes, as the profiler says; recorded {ours}"
    out(f"     the same peak in both: {ours:,} bytes")


def _profiled(call: Callable[[], object]) -> int:
    """Return the peak as torch's profiler has it: the run, its events read, their highest sum."""
    live = peak = 0
    for event in run_with_allocator(call).events:
        live += event.nbytes
        peak = max(peak, live)
    return peak


def _dry(out: Callable[[str], None]) -> None:
    """Print what computing a decode step of a configuration costs beside running its shapes without a look."""
    from workbench.devices.dry import DryDevice
    from workbench.subjects.config_model import RankModel, open_rank_model

    device = DryDevice()
    call = open_rank_model(RankModel(config=_CHECKPOINT / "config.json", tokens=16), device)

    def shapes() -> None:
        with device.active():
            call.function(*call.args)

    with torch.no_grad():
        base = _median(shapes, 2)
        recorded = _median(lambda: record_memory(call.function, call.args, module=call.module, device=device), 2)
    out(f"   decode step of a tiny configuration on shapes: {base:.2f} s, recorded {recorded:.2f} s")
    out(f"     {recorded / base:.2f} x the shapes alone")


def _median(call: Callable[[], object], rounds: int = _ROUNDS) -> float:
    call()
    seconds: list[float] = []
    for _ in range(rounds):
        began = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)
