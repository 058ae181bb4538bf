"""Stored values are counted as they are: NaN, codes above a device's range, and what halving would do."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from port.checkpoint import open_checkpoint
from port.checkpoint.shard_writer import shard_bytes
from port.checkpoint.values import check_values, find_nonfinite, value_problems


def _report(folder: Path, codes: torch.Tensor, scale: torch.Tensor):
    tensors = {"x.weight": codes.view(torch.float8_e4m3fn), "x.scale": scale.view(torch.float8_e8m0fnu)}
    (folder / "model.safetensors").write_bytes(shard_bytes(tensors))
    checkpoint = open_checkpoint(folder)
    (report,) = check_values(checkpoint)
    return report, value_problems(checkpoint, [report])


def test_nan_from_a_scale_and_from_a_code_are_counted_once_each(tmp_path: Path) -> None:
    codes = torch.full((64, 64), 0x38, dtype=torch.uint8)
    codes[40, 3] = codes[0, 40] = 0xFF
    report, problems = _report(tmp_path, codes, torch.tensor([[127, 255], [127, 127]], dtype=torch.uint8))
    assert report.nan_scale_indices == ((0, 1),)
    assert report.nan_value_indices == ((0, 40), (40, 3))
    assert report.nan_element_count == 32 * 32 + 1
    assert [problem.kind for problem in problems] == ["nan_scale", "nan_value"]


@pytest.mark.parametrize(("small", "exact"), [(0x10, True), (0x0E, True), (0x0F, False)])
def test_halving_is_exact_unless_a_small_odd_code_falls_off_the_grid(small: int, exact: bool, tmp_path: Path) -> None:
    codes = torch.full((32, 32), 0x38, dtype=torch.uint8)
    codes[0, 0], codes[0, 1] = 0x7E, small
    report, (problem,) = _report(tmp_path, codes, torch.tensor([[127]], dtype=torch.uint8))
    assert report.fix is not None
    assert report.fix.exact is exact
    assert (report.max_abs, report.fix.max_abs, report.fix.scale) == (448.0, 224.0, 2.0)
    assert report.above_device_count == 1
    assert ("exact for every value" if exact else "exact but for 1 small codes") in problem.remedy


def test_sound_weights_have_nothing_to_say(tmp_path: Path) -> None:
    report, problems = _report(
        tmp_path, torch.full((32, 32), 0x38, dtype=torch.uint8), torch.tensor([[127]], dtype=torch.uint8)
    )
    assert report.ok
    assert problems == ()


def test_nan_in_plain_floats_is_found_with_its_place(tmp_path: Path) -> None:
    plain = torch.zeros(3, 4)
    plain[2, 1] = float("nan")
    (tmp_path / "model.safetensors").write_bytes(shard_bytes({"norm.weight": plain}))
    checkpoint = open_checkpoint(tmp_path)
    (item,) = find_nonfinite(checkpoint)
    assert (item.name, item.count, item.indices) == ("norm.weight", 1, ((2, 1),))
    (problem,) = value_problems(checkpoint, [], [item])
    assert "1 NaN or infinite at [2, 1]" in problem.found
