"""A profile within 224 reaches every quantiser: no fp8 number of a forward pass is above it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import port
from port.errors import ConfigError
from port.numerics import NumericProfile
from port.runtime.generate import generate
from tests.test_readme import ROOT

TINY = ROOT / "fixtures" / "tiny_v41"


class Fp8Watch(TorchDispatchMode):
    """Notes the largest number that a conversion to e4m3 gave."""

    def __init__(self) -> None:
        super().__init__()
        self.largest = 0.0
        self.conversions = 0

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        # Without gradients `to` is not taken apart into the copy that it makes.
        converts = func.overloadpacket in (torch.ops.aten._to_copy, torch.ops.aten.to)
        if converts and result.dtype == torch.float8_e4m3fn and result.numel():
            self.conversions += 1
            self.largest = max(self.largest, result.to(torch.float32).abs().max().item())
        return result


def largest_fp8(profile: str) -> Fp8Watch:
    text_model = port.open_text_model(TINY, profile=profile)
    with Fp8Watch() as watch:
        generate(text_model, [tuple(range(3, 43))], max_tokens=3)
    return watch


@pytest.mark.parametrize("profile", ["bf16", "D"])
def test_no_quantiser_passes_the_range_of_the_profile(profile: str) -> None:
    watch = largest_fp8(f"{profile}@224")
    assert watch.conversions > 50
    assert 200 < watch.largest <= 224


def test_without_a_range_the_watch_sees_all_of_e4m3() -> None:
    assert largest_fp8("D").largest > 400


def test_names_may_carry_a_range() -> None:
    profile = NumericProfile.named("D@224")
    assert profile.differences(NumericProfile.named("D")) == {
        "fp8_max": (224.0, 448.0),
        "weight_fp8_max": (240.0, 448.0),
    }
    assert NumericProfile.named("D@448") == NumericProfile.named("D")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("bf16@", "expected a number after '@', as in bf16@224; found ''"),
        ("bf16@half", "found 'half'"),
        ("bf16@500", "fp8_max: expected a number above 0 and at most 448; found 500.0"),
        ("bf61@224", "Did you mean 'bf16'"),
    ],
)
def test_a_range_that_cannot_be_used_is_refused(name: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        NumericProfile.named(name)
