"""A numeric profile is a value: named, written, read back, and compared field by field."""

import json

import pytest

from port.errors import ConfigError
from port.numerics import PRESETS, NumericProfile


@pytest.mark.parametrize("name", PRESETS)
def test_presets_round_trip_through_json(name):
    profile = NumericProfile.named(name)
    assert NumericProfile.from_dict(json.loads(json.dumps(profile.to_dict()))) == profile


def test_golden_modes_differ_in_the_documented_switches_only():
    fp32, fp32kv = NumericProfile.named("fp32"), NumericProfile.named("fp32kv")
    assert fp32.differences(fp32kv) == {"kv_quant": ("none", "stored")}
    assert fp32kv.differences(NumericProfile.named("fp32q")) == {"act_quant": ("none", "fp8")}
    assert NumericProfile.named("fp32q").differences(NumericProfile.named("bf16")) == {
        "activation": ("float32", "bfloat16")
    }
    assert NumericProfile.named("R") is NumericProfile.named("bf16")


def test_the_deepinfer_profile_differs_in_every_point_of_the_table():
    assert set(NumericProfile.named("R").differences(NumericProfile.named("D"))) == {
        "wo_a_input",
        "ffn_product",
        "moe_sum",
        "index_score",
        "index_weights",
        "fp4_kv_scale",
        "hc_mix",
        "engram_rows",
        "lm_head",
    }


def test_a_smaller_fp8_range_is_a_value():
    profile = NumericProfile.from_dict(NumericProfile.named("bf16").to_dict() | {"fp8_max": 224.0})
    assert profile.fp8_max == 224.0


def test_unknown_names_and_values_are_refused():
    with pytest.raises(ConfigError, match="Did you mean 'fp32kv'"):
        NumericProfile.named("fp32vk")
    with pytest.raises(ConfigError, match="moe_sum: expected one of expert_order, shared_then_slots; found 'sorted'"):
        NumericProfile.from_dict({"activation": "float32", "moe_sum": "sorted"})
    with pytest.raises(ConfigError, match="'flavour'"):
        NumericProfile.from_dict({"activation": "float32", "flavour": 1})
    with pytest.raises(ConfigError, match="at most 448; found 500"):
        NumericProfile(activation="float32", fp8_max=500.0)
