"""Names of operations and dtypes as authors write them, brought to the names records carry."""

from __future__ import annotations

import re

_ASIDE = re.compile(r"\(([^()]*)\)")
_OPERATION = re.compile(r"aten::(\w+)")

# What a user calls -> what torch runs for it.
_RUNS: dict[str, frozenset[str]] = {
    "linear": frozenset({"addmm", "mm", "bmm", "baddbmm"}),
    "matmul": frozenset({"mm", "bmm", "mv", "dot", "addmm"}),
    "einsum": frozenset({"bmm", "mm", "mul", "sum"}),
    "to": frozenset({"_to_copy"}),
    "type_as": frozenset({"_to_copy"}),
    "contiguous": frozenset({"clone"}),
    "reshape": frozenset({"clone", "_unsafe_view"}),
    "flatten": frozenset({"clone"}),
    "layer_norm": frozenset({"native_layer_norm"}),
    "rms_norm": frozenset({"_fused_rms_norm", "mul"}),
    "batch_norm": frozenset({"native_batch_norm"}),
    "group_norm": frozenset({"native_group_norm"}),
    "dropout": frozenset({"native_dropout", "bernoulli", "mul"}),
    "embedding": frozenset({"index_select"}),
    "pad": frozenset({"constant_pad_nd"}),
    "conv1d": frozenset({"convolution"}),
    "conv2d": frozenset({"convolution"}),
    "stack": frozenset({"cat"}),
    "square": frozenset({"pow"}),
    "repeat_interleave": frozenset({"index_select", "clone"}),
    "scaled_dot_product_attention": frozenset({"_scaled_dot_product_flash_attention_for_cpu", "bmm"}),
    "one_hot": frozenset({"zeros"}),
    "empty": frozenset({"zeros", "ones", "full", "new_zeros", "new_ones", "new_full", "new_empty"}),
    "empty_strided": frozenset({"_to_copy", "clone"}),
    "empty_like": frozenset({"clone", "zeros_like", "ones_like", "full_like"}),
}
_DTYPES: dict[str, str] = {
    "bool": "bool",
    "fp32": "float32",
    "f32": "float32",
    "float": "float32",
    "fp64": "float64",
    "double": "float64",
    "fp16": "float16",
    "f16": "float16",
    "half": "float16",
    "bf16": "bfloat16",
    "int": "int32",
    "i32": "int32",
    "long": "int64",
    "i64": "int64",
    "fp8": "float8_e4m3fn",
    "u8": "uint8",
}


def operations_in(text: str) -> tuple[list[str], list[str]]:
    """Return the operations a text names, and what stands in brackets in it.

    `aten::addmm (up)` gives `["addmm"]` and `["up"]`; a text that is one bare word names that operation.
    """
    asides = _ASIDE.findall(text)
    names = _OPERATION.findall(text)
    bare = _ASIDE.sub("", text).strip()
    if not names and re.fullmatch(r"\w+", bare):
        names = [bare]
    return names, asides


def same_operation(wanted: str, recorded: str) -> bool:
    """Say whether an operation as an author names it is one that was recorded."""
    name, ran = _bare(wanted), _bare(recorded)
    return name == ran or any(_runs(one, other) for one, other in ((name, ran), (ran, name)))


def dtype_named(word: str) -> str | None:
    """Return the dtype a word names, as records spell it; None where it names none."""
    bare = word.removeprefix("torch.")
    if bare in _DTYPES:
        return _DTYPES[bare]
    return bare if re.fullmatch(r"(u?int|float|bfloat|complex)\d+(_\w+)?", bare) else None


def _bare(name: str) -> str:
    return name.removeprefix("aten::").strip("_").removeprefix("native_")


def _runs(name: str, ran: str) -> bool:
    return ran in {_bare(one) for one in _RUNS.get(name, ())}
