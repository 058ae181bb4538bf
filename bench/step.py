"""What stepping costs beside the plain forward pass of the same model on the same tokens, in the same run.

Stepping looks at every intermediate (figures and a digest of each, and a journal line); comparing also runs a second
side twice a step, once fed by itself and once fed the reference's input. The peer does none of this.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from port.runtime.prefill_inputs import build_prefill
from port.runtime.text_model import open_text_model
from workbench.plan import Inputs, Placement, Plan
from workbench.session import Session

TOKENS = 128
REPEATS = 3

_CHECKPOINT = Path(__file__).resolve().parents[1] / "fixtures" / "golden_A" / "checkpoint"


def main(out: Callable[[str], None]) -> None:
    """Print milliseconds of a prefill, plain and stepped, and what a step adds."""
    ids = _token_ids()
    plain = _plain_s(ids)
    out(f"stepping a prefill of {TOKENS} tokens, tiny model A, {torch.get_num_threads()} threads, median of {REPEATS}")
    out(f"  {'plain forward pass':<44}{plain * 1e3:>9.1f} ms")
    same, other = Placement(), Placement(profile="bf16")
    for words, candidate, on_disk in (
        ("stepped, every intermediate looked at", None, False),
        ("the same, journal on disk", None, True),
        ("two sides compared (fp32, fp32)", same, False),
        ("two sides compared (fp32, bf16)", other, False),
    ):
        steps, seconds = _stepped_s(ids, candidate, on_disk=on_disk)
        out(f"  {words:<44}{seconds * 1e3:>9.1f} ms{seconds / plain:>8.1f}x{seconds / steps * 1e3:>9.2f} ms a step")


def _token_ids() -> tuple[int, ...]:
    generator = torch.Generator().manual_seed(0)
    return tuple(torch.randint(3, 300, (TOKENS,), generator=generator).tolist())


@torch.inference_mode()
def _plain_s(ids: tuple[int, ...]) -> float:
    text_model = open_text_model(_CHECKPOINT)

    def once() -> float:
        cache = text_model.cache_for([TOKENS])
        batch = build_prefill(cache.layout, [cache.admit(ids)], engram=text_model.engram, logits="last")
        began = time.perf_counter()
        text_model.model(batch, cache)
        return time.perf_counter() - began

    once()  # makes the rotation tables
    return statistics.median(once() for _ in range(REPEATS))


def _stepped_s(ids: tuple[int, ...], candidate: Placement | None, *, on_disk: bool) -> tuple[int, float]:
    plan = Plan(checkpoint=str(_CHECKPOINT), inputs=Inputs(token_ids=(ids,)), candidate=candidate)
    seconds: list[float] = []
    steps = 0
    for _ in range(REPEATS):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "run.wbj") if on_disk else None
            with Session(plan, path=path) as session:
                began = time.perf_counter()
                steps = len(session.run(until="prefill", stop_at="never").steps)
                seconds.append(time.perf_counter() - began)
    return steps, statistics.median(seconds)
