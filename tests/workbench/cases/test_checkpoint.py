"""Checkpoint cases: the handed ones pass, others of the same kinds too, and a wrong expectation fails."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.shared import shared_path
from workbench.cases.checkpoint import outcomes_meant, run_case

_PROGRAM = """
import json, os, struct, sys
out = sys.argv[1]
os.makedirs(out)
def shard(name, entries, pad=0, cut=0, length=None):
    head, offset, data = {}, 0, b""
    for tensor, dtype, shape, content in entries:
        head[tensor] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + len(content)]}
        offset += len(content)
        data += content
    text = json.dumps(head).encode()
    text += b" " * pad
    blob = struct.pack("<Q", len(text) if length is None else length) + text + data
    open(os.path.join(out, name), "wb").write(blob[: len(blob) - cut])
def index(weight_map):
    json.dump({"weight_map": weight_map}, open(os.path.join(out, "model.safetensors.index.json"), "w"))
def header(name, records, data):
    text = json.dumps(records).encode()
    open(os.path.join(out, name), "wb").write(struct.pack("<Q", len(text)) + text + data)
"""

_FP8 = '"F8_E4M3", [64, 64], b"\\x38" * 4096'

KINDS: dict[str, tuple[str, dict[str, object], list[str]]] = {
    "missing shard": (
        """
shard("model-00001-of-00002.safetensors", [("a", "F32", [2], bytes(8))])
index({"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"})
""",
        {"outcome": "refuse", "missing_files": ["model-00002-of-00002.safetensors"], "missing_tensors": ["b"]},
        ["load without b"],
    ),
    "header too long": (
        'shard("model.safetensors", [("a", "F32", [2], bytes(8))], length=1 << 40)',
        {"outcome": "refuse", "problem": "header length", "header_bytes": 1 << 40, "file": "model.safetensors"},
        ["allocate what the header claims"],
    ),
    "header cut": (
        'shard("model.safetensors", [("a", "F32", [2], bytes(8))], length=200)',
        {"outcome": "refuse", "problem": "truncated_header", "header_length": 200},
        [],
    ),
    "overlap in other words": (
        """
header("model.safetensors", {"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]},
    "b": {"dtype": "F32", "shape": [4], "data_offsets": [8, 24]}}, bytes(24))
""",
        {"problem": "overlapping offsets", "tensors": ["a", "b"], "overlapping_bytes": 8},
        [],
    ),
    "shards that the names promise": (
        """
shard("model-00001-of-00003.safetensors", [("a", "F32", [2], bytes(8))])
shard("model-00003-of-00003.safetensors", [("c", "F32", [2], bytes(8))])
""",
        {"shards_found": 2, "shards_expected": 3, "index": "absent: the file names say 3 shards, 2 are there"},
        [],
    ),
    "an odd name, a scalar and no scale at all": (
        'shard("final (1).safetensors", [("a", "BF16", [], bytes(2)), ("b", "F32", [0, 3], b"")])',
        {"files": ["final (1).safetensors"], "scalar": ["a"], "quantized": False, "dtypes": ["BF16", "F32"]},
        [],
    ),
    "pairs, and tiles that do not divide": (
        """
shard("model.safetensors", [("w.weight", "F8_E4M3", [200, 130], b"\\x38" * 26000),
    ("w.scale", "F8_E8M0", [2, 2], bytes([127] * 4))])
""",
        {"last_block": [72, 2], "scale_name": "w.scale", "pairs": {"w.weight": "w.scale"}, "stored_shape": [200, 130]},
        [],
    ),
    "a header that is no JSON": (
        'open(os.path.join(out, "m.safetensors"), "wb").write(struct.pack("<Q", 8) + b"{oops}  ")',
        {"outcome": "refuse", "problem": "header is not valid JSON"},
        [],
    ),
    "both spellings of a name": (
        'shard("m.safetensors", [("model.a", "F32", [1], bytes(4)), ("a", "F32", [1], bytes(4))])',
        {"outcome": "refuse", "duplicates": ["a"], "reason": "two stored names become the same name"},
        [],
    ),
    "overlap": (
        """
header("model.safetensors", {"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]},
    "b": {"dtype": "F32", "shape": [4], "data_offsets": [8, 24]}}, bytes(24))
""",
        {"outcome": "refuse", "overlapping_tensors": ["a", "b"], "overlap": [["a", "b"]]},
        ["read bytes of one tensor as another"],
    ),
    "out of range": (
        """
header("model.safetensors", {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
    "b": {"dtype": "F32", "shape": [2], "data_offsets": [800, 808]}}, bytes(16))
""",
        {"outcome": "refuse", "out_of_range": ["b"], "bad_tensors": ["b"]},
        [],
    ),
    "duplicate key in a header": (
        """
text = b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'
open(os.path.join(out, "model.safetensors"), "wb").write(struct.pack("<Q", len(text)) + text + bytes(8))
""",
        {"outcome": "refuse", "duplicate_keys": ["a"]},
        ["keep the last one silently"],
    ),
    "scale of the wrong shape": (
        f"""
json.dump({{"quantization_config": {{"weight_block_size": [32, 32]}}}}, open(os.path.join(out, "config.json"), "w"))
shard("model.safetensors", [("x.weight", {_FP8}), ("x.scale", "F8_E8M0", [2, 1], b"\\x7f" * 2)])
""",
        {
            "outcome": "refuse to dequantize that tensor",
            "wrong_scale_shape": [{"tensor": "x.scale", "expected": [2, 2], "found": [2, 1]}],
            "expected_scale_shape": [2, 2],
            "found_scale_shape": [2, 1],
        },
        ["broadcast the scale"],
    ),
    "scale of the wrong dtype": (
        f'shard("model.safetensors", [("x.weight", {_FP8}), ("x.scale", "I32", [2, 2], bytes(16))])',
        {"outcome": "refuse to dequantize that tensor", "wrong_scale_dtype": {"x.scale": "I32"}},
        [],
    ),
    "zero-size tensors": (
        'shard("model.safetensors", [("empty", "F32", [0, 4], b""), ("scalar", "F32", [], bytes(4))])',
        {"outcome": "load", "zero_size_tensors": ["empty"], "shapes": {"empty": [0, 4], "scalar": []}},
        ["divide by zero"],
    ),
    "prefix": (
        """
shard("model.safetensors", [("model.norm.weight", "F32", [2], bytes(8)), ("head.weight", "F32", [2], bytes(8))])
index({"norm.weight": "model.safetensors", "model.head.weight": "model.safetensors"})
""",
        {"outcome": "load", "tensors": ["norm.weight", "head.weight"], "prefix": "model."},
        ["report norm.weight as missing"],
    ),
    "wrong dtype family": (
        """
shard("model.safetensors", [("x.weight", "BF16", [4, 4], bytes(32)), ("x.scale", "F8_E8M0", [1, 1], bytes(1))])
""",
        {"outcome": "refuse to dequantize that tensor", "wrong_dtype": ["x.weight"], "dtypes": {"x.weight": "BF16"}},
        [],
    ),
    "packed fp4": (
        """
row = bytes([0x10, 0x32, 0x54, 0x76]) + bytes(12)
shard("model.safetensors", [("l.experts.0.w1.weight", "I8", [1, 16], row),
    ("l.experts.0.w1.scale", "F8_E8M0", [1, 1], b"\\x80")])
""",
        {
            "outcome": "load",
            "logical_shape": [1, 32],
            "block": [1, 32],
            "nibble_order": "low nibble = even column",
            "first_row": [[0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, *([0.0] * 24)]][0],
        },
        ["swap nibbles"],
    ),
    "lfs pointer": (
        """
open(os.path.join(out, "model.safetensors"), "w").write(
    "version https://git-lfs.github.com/spec/v1\\noid sha256:0\\nsize 123\\n")
""",
        {"outcome": "refuse", "lfs_pointers": ["model.safetensors"]},
        ["say the file is corrupt"],
    ),
    "trailing bytes": (
        """
header("model.safetensors", {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}, bytes(20))
""",
        {"outcome": "refuse", "trailing_bytes": 12},
        [],
    ),
}


def _case(folder: Path, program: str, expected: dict[str, object], must_not: list[str]) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "make.py").write_text(_PROGRAM + program, encoding="utf-8")
    body = {"id": "CK-X", "class": "checkpoint", "expected": expected, "must_not": must_not}
    (folder / "expected.json").write_text(json.dumps(body), encoding="utf-8")
    return folder


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_damage_is_answered(kind: str, tmp_path: Path) -> None:
    result = run_case(_case(tmp_path, *KINDS[kind]))
    assert result.differences == ()
    assert result.status == "passed"


@pytest.mark.parametrize("number", ["01", "03", "04", "07", "09", "11", "13", "15"])
def test_handed_cases_pass(number: str) -> None:
    assert run_case(shared_path("cases", f"CK-{number}")).differences == ()


def test_a_number_that_no_statement_states_fails_the_case(tmp_path: Path) -> None:
    program, expected, _ = KINDS["overlap in other words"]
    result = run_case(_case(tmp_path, program, {**expected, "overlapping_bytes": 12}, []))
    assert [line.split(":")[0] for line in result.differences] == ["overlapping_bytes"]


def test_a_key_nobody_knows_fails_the_case(tmp_path: Path) -> None:
    program, expected, _ = KINDS["missing shard"]
    result = run_case(_case(tmp_path, program, {**expected, "moon_phase": "full"}, []))
    assert result.status == "failed"
    assert result.differences == ("moon_phase: expected 'full'; found no fact of that name, so it is not answered",)


@pytest.mark.parametrize(
    ("key", "wrong"),
    [
        ("outcome", "load"),
        ("missing_files", ["model-00001-of-00002.safetensors"]),
        ("missing_files", []),
        ("missing_tensors", ["a", "b"]),
    ],
)
def test_a_wrong_expectation_fails_the_case(key: str, wrong: object, tmp_path: Path) -> None:
    program, expected, _ = KINDS["missing shard"]
    result = run_case(_case(tmp_path, program, {**expected, key: wrong}, []))
    assert result.status == "failed"
    assert result.differences[0].startswith(f"{key}: expected")


def test_a_forbidden_saying_fails_the_case(tmp_path: Path) -> None:
    program, expected, _ = KINDS["missing shard"]
    result = run_case(_case(tmp_path, program, expected, ["say no such file", "complain about b"]))
    assert result.status == "failed"
    assert "must_not" in result.differences[0]


def test_a_program_that_fails_says_so(tmp_path: Path) -> None:
    from workbench.errors import WorkbenchError

    with pytest.raises(WorkbenchError, match=r"make\.py: expected status 0 and a folder; found 1: .*ZeroDivisionError"):
        run_case(_case(tmp_path, "1 / 0", {}, []))


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("refuse", {"refuse"}),
        ("load", {"load"}),
        ("warn", {"warn"}),
        ("load, with a warning", {"warn"}),
        ("refuse or warn per tensor", {"refuse", "refuse_tensors", "warn"}),
        ("refuse to dequantize that tensor", {"refuse_tensors"}),
        ("something else", set()),
    ],
)
def test_outcomes_in_words(text: str, meant: set[str]) -> None:
    assert outcomes_meant(text) == meant
