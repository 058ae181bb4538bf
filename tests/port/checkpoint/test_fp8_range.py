"""Weights loaded for a device with a shorter e4m3: the same numbers, no code above the limit, every change counted."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from port.checkpoint.fp8_range import Fp8RangeReport, limit_fp8_weight
from port.checkpoint.index import open_checkpoint
from port.checkpoint.loader import load_tensors
from port.errors import CheckpointError
from port.kernels.dequantize import dequantize_fp8_tiles
from port.kernels.quantize import quantize_fp8_tiles
from port.model.transformer import Transformer
from port.numerics import NumericProfile
from tests.test_readme import ROOT

TINY = ROOT / "fixtures" / "tiny_v41"
FP8 = torch.float8_e4m3fn


def loaded(profile: str) -> Transformer:
    checkpoint = open_checkpoint(TINY)
    model = Transformer(checkpoint.model_config(), profile=NumericProfile.named(profile), weights="stored")
    model.report = model.load(checkpoint)  # pyright: ignore[reportAttributeAccessIssue]
    return model


def numbers(weight: Tensor, scale: Tensor) -> Tensor:
    block = (32, 32) if scale.shape[0] == -(-weight.shape[0] // 32) else (1, 32)
    return dequantize_fp8_tiles(weight, scale, block=block)


def test_a_model_within_224_has_the_same_weights_in_codes_up_to_240() -> None:
    stored, limited = loaded("bf16").state_dict(), loaded("bf16@224").state_dict()
    assert set(stored) == set(limited)
    above, rounded, seen = 0, 0, 0
    for name, tensor in stored.items():
        if tensor.dtype != FP8:
            if not name.endswith(".scale") or stored[name.removesuffix("scale") + "weight"].dtype != FP8:
                assert torch.equal(tensor.view(torch.uint8), limited[name].view(torch.uint8)), name
            continue
        scale = name.removesuffix("weight") + "scale"
        above += int((tensor.float().abs() > 240).sum())
        assert limited[name].float().abs().max() <= 240, name
        before, after = numbers(tensor, stored[scale]), numbers(limited[name], limited[scale])
        rounded += int((before != after).sum())
        assert (before - after).abs().max() <= before.abs().max() * 2.0**-17, name
        seen += tensor.numel()
    report = loaded("bf16@224").report
    assert isinstance(report.fp8_range, Fp8RangeReport)
    assert report.fp8_range.limit == 240
    assert report.fp8_range.elements == seen
    assert report.fp8_range.elements_rounded == rounded
    assert above > 0, "the fixture must have something to halve"
    assert "of their tile's largest" in str(report)
    assert loaded("bf16").report.fp8_range is None


@pytest.mark.parametrize("block", [(32, 32), (1, 32)])
def test_what_is_counted_is_what_changed(block: tuple[int, int]) -> None:
    values = torch.randn(70, 100, generator=torch.Generator().manual_seed(3))
    values[:, ::7] *= 1e-4
    weight, scale = quantize_fp8_tiles(values, block=block)
    old_weight, old_scale = weight.clone(), scale.clone()
    report = limit_fp8_weight("some.weight", weight, scale, limit=240.0)
    old, new = numbers(old_weight, old_scale), numbers(weight, scale)
    assert report.elements_rounded == int((old != new).sum()) > 0
    assert report.largest_change == (old - new).abs().max().item()
    assert report.tiles_halved == int((old_scale.view(torch.uint8) != scale.view(torch.uint8)).sum()) > 0
    assert (report.tensors, report.tensors_changed) == (1, 1)
    assert report.largest_change_of_tile <= 2.0**-9 / 240


def test_a_second_pass_changes_nothing() -> None:
    weight, scale = quantize_fp8_tiles(torch.randn(64, 64, generator=torch.Generator().manual_seed(4)))
    limit_fp8_weight("some.weight", weight, scale, limit=240.0)
    again = limit_fp8_weight("some.weight", weight, scale, limit=240.0)
    assert (again.tiles_halved, again.tensors_changed, again.elements_rounded) == (0, 0, 0)


def test_a_scale_that_cannot_be_doubled_names_the_weight() -> None:
    weight, scale = torch.full((40, 32), 448.0).to(FP8), torch.full((2, 1), 254, dtype=torch.uint8)
    with pytest.raises(CheckpointError, match=r"some\.weight, rows 0 to 39: tile \[0, 0\]: .* found 254"):
        limit_fp8_weight("some.weight", weight, scale.view(torch.float8_e8m0fnu), limit=240.0)
    assert scale.tolist() == [[254], [254]]


def test_scales_of_another_shape_are_refused() -> None:
    with pytest.raises(CheckpointError, match=r"some\.weight: expected scales per 32 x 32 tile .* found \[3, 1\]"):
        limit_fp8_weight(
            "some.weight", torch.zeros(64, 32).to(FP8), torch.zeros(3, 1).to(torch.float8_e8m0fnu), limit=240.0
        )


def test_a_weight_is_not_limited_without_its_scale() -> None:
    checkpoint = open_checkpoint(TINY)
    name = "layers.0.attn.wq_a.weight"
    entry = checkpoint.entries[name]
    wanted = {name: torch.empty(entry.shape, dtype=FP8, device="meta")}
    with pytest.raises(CheckpointError, match=r"wq_a\.weight: expected its scale among the tensors to load"):
        load_tensors(checkpoint, wanted, whole=False, fp8_limit=240.0)
