"""Where results are rounded, as a value: one field per choice, so that two runs can differ in exactly one of them.

The model is one function; its known implementations differ only in these points. Profile R rounds where DeepSeek's own
`inference/model.py` does, profile D where deepinfer 0.1.0's kernels do. The float32 presets are profile R with
roundings left out: they show the architecture without the noise of narrow numbers.
"""

import dataclasses
import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from port.errors import ConfigError

WEIGHT_FP8_MAX = 240.0
"""Largest finite number of trn2's e4m3 (documented)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NumericProfile:
    """One choice per rounding point. "activation" always means the dtype in `activation`.

    Attributes:
        activation: dtype of every result handed from one operation to the next.
        gemm_operands: dtype in which operands enter a matrix product. Sums are float32 either way; bfloat16 products
            are exact in float32, so "float32" costs time on a device and nothing in accuracy.
        act_quant: whether inputs of FP8 and FP4 linears are quantised per row and 32 channels.
        fp8_max: largest magnitude of a quantised activation or cache element, and of the e4m3 scales of a cache; 448 is
            all of e4m3, devices with a smaller e4m3 use less.
        weight_fp8_max: largest magnitude of a stored FP8 weight; with less than 448, tiles above it are halved when
            they are loaded, and their scales doubled.
        kv_quant: whether window keys, compressed entries, index queries and index keys take their stored precision.
        attention_probabilities: dtype of the weights in the product with the keys; the denominator is never rounded.
        wo_a_input: whether the grouped output projection sees its input as it is or FP8-quantised.
        ffn_product: whether silu(gate) * up * weight is rounded to the activation dtype before it is quantised.
        moe_sum: order in which expert outputs are added in float32.
        index_score: rounding per head and of the sum, or of the sum only.
        index_weights: head weights scaled by (head width * heads) ** -0.5, or as projected (the order is the same).
        fp4_kv_scale: compressed entries are divided by their scale or multiplied by its float32 reciprocal.
        hc_mix: precision of the hyper-connection mixing product; "tf32" rounds the matrix to 10 fraction bits.
        engram_rows: table rows pass through the activation dtype and the linear's quantiser, or enter as stored.
        lm_head: operands of the last product, float32 or bfloat16 (the result is float32).
    """

    activation: Literal["float32", "bfloat16"]
    gemm_operands: Literal["float32", "bfloat16"] = "float32"
    act_quant: Literal["none", "fp8"] = "none"
    fp8_max: float = 448.0
    weight_fp8_max: float = 448.0
    kv_quant: Literal["none", "stored"] = "none"
    attention_probabilities: Literal["float32", "activation"] = "activation"
    wo_a_input: Literal["activation", "fp8"] = "activation"
    ffn_product: Literal["activation", "float32"] = "activation"
    moe_sum: Literal["expert_order", "shared_then_slots"] = "expert_order"
    index_score: Literal["per_head", "sum_only"] = "per_head"
    index_weights: Literal["scaled", "unscaled"] = "scaled"
    fp4_kv_scale: Literal["divide", "reciprocal"] = "divide"
    hc_mix: Literal["float32", "tf32"] = "float32"
    engram_rows: Literal["requantized", "stored"] = "requantized"
    lm_head: Literal["float32", "bfloat16"] = "float32"

    def __post_init__(self) -> None:
        problems = []
        for spec in dataclasses.fields(self):
            value, allowed = getattr(self, spec.name), get_args(spec.type)
            if allowed and value not in allowed:
                problems.append(f"{spec.name}: expected one of {', '.join(allowed)}; found {value!r}")
        if not 0 < self.fp8_max <= 448:
            problems.append(f"fp8_max: expected a number above 0 and at most 448; found {self.fp8_max!r}")
        if not 224 <= self.weight_fp8_max <= 448:
            problems.append(f"weight_fp8_max: expected a number from 224 to 448; found {self.weight_fp8_max!r}")
        if problems:
            raise ConfigError("the numeric profile cannot be used: " + "; ".join(problems))

    @classmethod
    def named(cls, name: str) -> "NumericProfile":
        """Return a preset: "fp32", "fp32kv", "fp32q", "bf16" (also called "R") or "D"; "bf16@224" is one within 224.

        Raises:
            ConfigError: no preset of this name; the message lists them and the nearest one. Or no number after "@".
        """
        name, at, limit = name.partition("@")
        if name in PRESETS and at:
            try:
                fp8_max = float(limit)
            except ValueError:
                raise ConfigError(
                    f"numeric profile: expected a number after '@', as in {name}@224; found {limit!r}."
                ) from None
            return PRESETS[name].within(fp8_max)
        if name in PRESETS:
            return PRESETS[name]
        nearest = difflib.get_close_matches(name, PRESETS, n=1)
        hint = f" Did you mean {nearest[0]!r}?" if nearest else ""
        raise ConfigError(f"numeric profile: expected one of {', '.join(PRESETS)}; found {name!r}.{hint}")

    def within(self, fp8_max: float) -> "NumericProfile":
        """Return this profile for a device whose e4m3 is shorter.

        Args:
            fp8_max: largest magnitude of quantised activations and cache elements. Below 448, stored weights are kept
                within 240, trn2's largest number (documented).

        Raises:
            ConfigError: not above 0, or above 448.
        """
        weights = 448.0 if fp8_max == 448 else WEIGHT_FP8_MAX
        return dataclasses.replace(self, fp8_max=fp8_max, weight_fp8_max=weights)

    @classmethod
    def from_dict(cls, data: Mapping[str, object]) -> "NumericProfile":
        """Return the profile written by `to_dict`.

        Raises:
            ConfigError: a key that is no field, or a value that is no choice.
        """
        known = {spec.name for spec in dataclasses.fields(cls)}
        unknown = sorted(set(data) - known)
        if unknown:
            raise ConfigError(f"numeric profile: expected keys among {', '.join(sorted(known))}; found {unknown}.")
        if "activation" not in data:
            raise ConfigError("numeric profile: expected the key 'activation'; it is missing.")
        return cls(**data)  # pyright: ignore[reportArgumentType]

    def to_dict(self) -> dict[str, str | float]:
        """Return every choice by field name."""
        return dataclasses.asdict(self)

    def differences(self, other: "NumericProfile") -> dict[str, tuple[str | float, str | float]]:
        """Return the fields in which two profiles differ, with this one's value first."""
        mine, theirs = self.to_dict(), other.to_dict()
        return {name: (mine[name], theirs[name]) for name in mine if mine[name] != theirs[name]}


_R = NumericProfile(activation="bfloat16", act_quant="fp8", kv_quant="stored")
PRESETS: Mapping[str, NumericProfile] = {
    "fp32": NumericProfile(activation="float32"),
    "fp32kv": NumericProfile(activation="float32", kv_quant="stored"),
    "fp32q": NumericProfile(activation="float32", act_quant="fp8", kv_quant="stored"),
    "bf16": _R,
    "R": _R,
    "D": NumericProfile(
        activation="bfloat16",
        act_quant="fp8",
        kv_quant="stored",
        wo_a_input="fp8",
        ffn_product="float32",
        moe_sum="shared_then_slots",
        index_score="sum_only",
        index_weights="unscaled",
        fp4_kv_scale="reciprocal",
        hc_mix="tf32",
        engram_rows="stored",
        lm_head="bfloat16",
    ),
}
"""The presets by name. `fp32*` differ from profile R in activation dtype and in which quantisers run."""
