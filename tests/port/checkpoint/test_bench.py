"""The benchmark of the reader runs to its end and prints every figure; what the figures are is no test's business."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import bench.checkpoint
from tests.port.checkpoint.test_writer import FIXTURE


def test_every_figure_is_printed_beside_its_peer_or_target(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench.checkpoint, "ROWS", 512)
    monkeypatch.setattr(bench.checkpoint, "ROUNDS", 1)
    monkeypatch.setattr(bench.checkpoint, "_NAMES", bench.checkpoint._NAMES[:2])
    monkeypatch.setattr(bench.checkpoint, "SHARDS", 3)
    pieces = {"rows": (slice(64, 128), slice(None)), "columns": (slice(None), slice(512, 1024))}
    monkeypatch.setattr(bench.checkpoint, "_PIECES", pieces)
    config = json.loads((FIXTURE / "config.json").read_text(encoding="utf-8"))
    monkeypatch.setattr(bench.checkpoint, "_large_config", lambda: config)
    lines: list[str] = []
    bench.checkpoint.main(lines.append)
    for line, subject in zip(lines, ("cold", "cold", "warm", "warm"), strict=False):
        assert line.startswith(subject)
    assert all("times" in line or "left out" in line for line in lines[:4])
    assert all("target: at most 64" in line for line in lines[4:6])
    assert lines[6].startswith("inventory of 3 shards, 852 tensors")


def test_a_slice_raises_the_peak_by_no_more_than_itself_and_64_mib(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench.checkpoint, "_NAMES", bench.checkpoint._NAMES[:2])
    bench.checkpoint._write_matrices(tmp_path)
    for piece in ("rows", "columns"):
        figures = bench.checkpoint.measure_peak(tmp_path, piece)
        assert figures["slice_bytes"] == 4 << 20
        assert figures["peak_bytes"] <= figures["slice_bytes"] + bench.checkpoint.SPARE_BYTES
