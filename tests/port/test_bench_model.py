"""The model benchmark runs, says a line per model and batch, and measures the same numbers both ways."""

from __future__ import annotations

import pytest
import torch

from bench import model as bench_model
from tests.port.golden import model_a


@pytest.fixture
def short(monkeypatch):
    for name, value in {"PROMPT_TOKENS": 8, "DECODE_STEPS": 2, "SLOW_TOKENS": 3, "REPEATS": 1}.items():
        monkeypatch.setattr(bench_model, name, value)
    only_a = {"A": bench_model.checkpoints()["A"]}
    monkeypatch.setattr(bench_model, "checkpoints", lambda: only_a)


def test_every_model_and_batch_has_a_line_of_positive_figures(short):
    lines = []
    bench_model.main(lines.append)
    rows = [line.split() for line in lines if line.startswith("A ")]
    assert [row[1] for row in rows] == ["1", "4"]
    assert all(float(figure.rstrip("x")) > 0 for row in rows for figure in row[2:])
    assert max(map(len, lines)) <= 100


def test_the_decode_that_is_timed_is_a_real_one(short):
    with torch.inference_mode():
        _, cache, sequences = bench_model.prefill_once(model_a(), 2)
        after = bench_model.step(model_a(), cache, [sequence.with_token(3) for sequence in sequences])
    assert [(sequence.cached, sequence.pending) for sequence in after] == [(9, 0), (9, 0)]
