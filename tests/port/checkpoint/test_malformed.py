"""Every kind of damage gives one clear error: file, tensor, expected, found, remedy; opening names all of them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from port.checkpoint import inspect_checkpoint, open_checkpoint
from port.checkpoint.problems import ProblemKind, errors_in
from port.errors import CheckpointError
from tests.port.checkpoint.files import floats, header_of, write_index, write_raw, write_shard

ONE = "model.safetensors"
FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


@dataclass(frozen=True, kw_only=True)
class Damage:
    """One way to be wrong, and the one problem it must give."""

    build: Callable[[Path], object]
    kind: ProblemKind
    file: str | None
    tensor: str | None
    expected: str
    found: str
    remedy: str
    per_tensor: bool = False


def _pair(folder: Path) -> None:
    write_shard(folder / FIRST, floats("a", 2))
    write_shard(folder / SECOND, floats("b", 2))


def _truncated(folder: Path) -> None:
    write_shard(folder / ONE, floats("a", 4), floats("b", 8))
    os.truncate(folder / ONE, (folder / ONE).stat().st_size - 20)


def _quantized(scale: tuple[str, list[int], bytes] | None) -> Callable[[Path], object]:
    def build(folder: Path) -> None:
        weight = ("x.weight", "F8_E4M3", [64, 96], bytes(64 * 96))
        write_shard(folder / ONE, *([weight] if scale is None else [weight, ("x.scale", *scale)]))

    return build


def _record(**changes: object) -> Callable[[Path], object]:
    def build(folder: Path) -> None:
        record = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]} | changes
        write_raw(folder / ONE, json.dumps({"a": record}), bytes(8))

    return build


def _spans(first: list[int], second: list[int], data: int) -> Callable[[Path], object]:
    def build(folder: Path) -> None:
        header = {
            name: {"dtype": "U8", "shape": [span[1] - span[0]], "data_offsets": span}
            for name, span in (("a", first), ("b", second))
        }
        write_raw(folder / ONE, json.dumps(header), bytes(data))

    return build


def _indexed(weight_map: dict[str, object]) -> Callable[[Path], object]:
    def build(folder: Path) -> None:
        _pair(folder)
        write_index(folder, weight_map)

    return build


def _index_text(text: str) -> Callable[[Path], object]:
    def build(folder: Path) -> None:
        _pair(folder)
        (folder / "model.safetensors.index.json").write_text(text, encoding="utf-8")

    return build


DAMAGES: dict[str, Damage] = {
    "a truncated shard": Damage(
        build=_truncated,
        kind="truncated",
        file=ONE,
        tensor="b",
        expected="48 bytes of tensor data",
        found="28: 20 bytes are missing; b has 12 of its 32 bytes",
        remedy="Fetch this file again",
    ),
    "an empty file": Damage(
        build=lambda folder: (folder / ONE).write_bytes(b""),
        kind="empty_file",
        file=ONE,
        tensor=None,
        expected="a safetensors file",
        found="an empty file",
        remedy="Fetch this file again",
    ),
    "a file of five bytes": Damage(
        build=lambda folder: (folder / ONE).write_bytes(b"12345"),
        kind="truncated_header",
        file=ONE,
        tensor=None,
        expected="8 bytes of header length",
        found="a file of 5 bytes",
        remedy="Fetch this file again",
    ),
    "a header longer than its file": Damage(
        build=lambda folder: write_raw(folder / ONE, "{}", length=5000),
        kind="truncated_header",
        file=ONE,
        tensor=None,
        expected="a header of 5000 bytes",
        found="2 bytes after the length field: 4998 are missing",
        remedy="Fetch this file again",
    ),
    "a header longer than any": Damage(
        build=lambda folder: write_raw(folder / ONE, "{}", length=1 << 62),
        kind="header_length",
        file=ONE,
        tensor=None,
        expected="a header of at most 100000000 bytes",
        found=f"header length {1 << 62} in a file of 10 bytes",
        remedy="The length field is damaged",
    ),
    "a header of no bytes": Damage(
        build=lambda folder: write_raw(folder / ONE, "", b"x" * 8),
        kind="header_length",
        file=ONE,
        tensor=None,
        expected="a header of at least 2 bytes",
        found="header length 0",
        remedy="Fetch this file again",
    ),
    "a header that is no JSON": Damage(
        build=lambda folder: write_raw(folder / ONE, "{nothing}"),
        kind="header_json",
        file=ONE,
        tensor=None,
        expected="a header of JSON text in UTF-8",
        found="Expecting property name",
        remedy="Fetch this file again",
    ),
    "a header that is a list": Damage(
        build=lambda folder: write_raw(folder / ONE, "[1, 2]"),
        kind="header_json",
        file=ONE,
        tensor=None,
        expected="a header that begins with `{`",
        found="[1, 2]",
        remedy="Fetch this file again",
    ),
    "metadata that is no object of strings": Damage(
        build=lambda folder: write_raw(folder / ONE, '{"__metadata__": {"format": 1}}'),
        kind="metadata",
        file=ONE,
        tensor=None,
        expected="`__metadata__` as an object of strings",
        found="{'format': 1}",
        remedy="write it again with safetensors",
    ),
    "a Git LFS pointer": Damage(
        build=lambda folder: (folder / ONE).write_bytes(
            b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 4096\n"
        ),
        kind="lfs_pointer",
        file=ONE,
        tensor=None,
        expected="tensor data",
        found="a Git LFS pointer of 67 bytes that stands for 4096 bytes",
        remedy="git lfs pull",
    ),
    "a zip archive": Damage(
        build=lambda folder: (folder / ONE).write_bytes(b"PK\x03\x04" + b"\xff" * 60),
        kind="not_safetensors",
        file=ONE,
        tensor=None,
        expected="a safetensors file",
        found="a zip archive, as torch.save writes",
        remedy="Convert it to safetensors first",
    ),
    "a web page": Damage(
        build=lambda folder: (folder / ONE).write_text("<!doctype html><title>404</title>", encoding="utf-8"),
        kind="not_safetensors",
        file=ONE,
        tensor=None,
        expected="a safetensors file",
        found="a web page saved in place of the file",
        remedy="Fetch this file again",
    ),
    "a name twice in a header": Damage(
        build=lambda folder: write_raw(
            folder / ONE, "{" + ", ".join([json.dumps(header_of([floats("a", 2)]))[1:-1]] * 2) + "}", bytes(8)
        ),
        kind="duplicate_key",
        file=ONE,
        tensor="a",
        expected="each name once in the header",
        found="the same key twice",
        remedy="write it again with safetensors",
    ),
    "a record without offsets": Damage(
        build=lambda folder: write_raw(folder / ONE, '{"a": {"dtype": "F32", "shape": [2]}}', bytes(8)),
        kind="tensor_record",
        file=ONE,
        tensor="a",
        expected="an object with dtype, shape and data_offsets",
        found="{'dtype': 'F32', 'shape': [2]}",
        remedy="write it again with safetensors",
    ),
    "offsets the wrong way round": Damage(
        build=_record(data_offsets=[8, 0]),
        kind="offsets",
        file=ONE,
        tensor="a",
        expected="data_offsets [begin, end] with 0 <= begin <= end",
        found="[8, 0]",
        remedy="write it again with safetensors",
    ),
    "offsets beyond the data": Damage(
        build=_spans([0, 4], [900, 904], 16),
        kind="offsets",
        file=ONE,
        tensor="b",
        expected="data_offsets within the 16 bytes of data",
        found="bytes [900, 904]",
        remedy="write it again with safetensors",
    ),
    "tensors that overlap": Damage(
        build=_spans([0, 8], [4, 12], 12),
        kind="overlap",
        file=ONE,
        tensor="b",
        expected="bytes of its own",
        found="bytes [4, 12], of which 4 belong to a too",
        remedy="write it again with safetensors",
    ),
    "a hole between tensors": Damage(
        build=_spans([0, 4], [8, 12], 12),
        kind="hole",
        file=ONE,
        tensor="b",
        expected="data at offset 4",
        found="4 bytes before it that belong to no tensor",
        remedy="write it again with safetensors",
    ),
    "bytes behind the last tensor": Damage(
        build=_spans([0, 4], [4, 8], 20),
        kind="trailing_bytes",
        file=ONE,
        tensor=None,
        expected="8 bytes of data",
        found="20: 12 bytes at the end belong to no tensor",
        remedy="Fetch this file again",
    ),
    "a shape that does not fit its bytes": Damage(
        build=_record(shape=[3]),
        kind="size_mismatch",
        file=ONE,
        tensor="a",
        expected="12 bytes for F32[3]",
        found="8 bytes between data_offsets [0, 8]",
        remedy="write it again with safetensors",
    ),
    "a negative size": Damage(
        build=_record(shape=[-2]),
        kind="shape",
        file=ONE,
        tensor="a",
        expected="a shape of sizes of at least 0",
        found="[-2]",
        remedy="write it again with safetensors",
    ),
    "an unknown dtype": Damage(
        build=_record(dtype="FP32"),
        kind="unknown_dtype",
        file=ONE,
        tensor="a",
        expected="one of the dtypes BOOL, F4",
        found="'FP32'",
        remedy="Did you mean F32?",
    ),
    "no shard at all": Damage(
        build=lambda folder: (folder / "pytorch_model.bin").write_bytes(b"x"),
        kind="no_shards",
        file=None,
        tensor=None,
        expected="at least one .safetensors file",
        found="pytorch_model.bin and no safetensors file",
        remedy="other formats are not loaded",
    ),
    "an index that names a missing shard": Damage(
        build=_indexed({"a": FIRST, "b": "model-00003-of-00002.safetensors"}),
        kind="missing_shard",
        file="model-00003-of-00002.safetensors",
        tensor=None,
        expected="a shard the index names",
        found="no such file, needed by 1 tensor (b)",
        remedy="Download this shard",
    ),
    "a gap in the numbering": Damage(
        build=lambda folder: write_shard(folder / FIRST, floats("a", 2)),
        kind="missing_shard",
        file=SECOND,
        tensor=None,
        expected="all shards of a numbered series",
        found="no such file among the 1 of 2",
        remedy="Download this shard",
    ),
    "an index that names the wrong shard": Damage(
        build=_indexed({"a": SECOND, "b": SECOND}),
        kind="wrong_shard",
        file="model.safetensors.index.json",
        tensor="a",
        expected=f"it in {SECOND}, as the index says",
        found=f"it in {FIRST}",
        remedy="Rebuild the index",
    ),
    "an index that names a ghost": Damage(
        build=_indexed({"a": FIRST, "b": SECOND, "ghost": FIRST}),
        kind="ghost_tensor",
        file="model.safetensors.index.json",
        tensor="ghost",
        expected=f"it in {FIRST}, as the index says",
        found="it in no shard",
        remedy="rebuild the index",
    ),
    "an index with a name twice": Damage(
        build=_index_text(f'{{"weight_map": {{"a": "{FIRST}", "b": "{SECOND}", "a": "{FIRST}"}}}}'),
        kind="duplicate_key",
        file="model.safetensors.index.json",
        tensor="a",
        expected="each key once",
        found="the same key twice, with only the last kept",
        remedy="rebuild it from the headers",
    ),
    "an index that is no JSON": Damage(
        build=_index_text("{"),
        kind="index_json",
        file="model.safetensors.index.json",
        tensor=None,
        expected="JSON text in UTF-8",
        found="Expecting property name",
        remedy="Fetch the index again",
    ),
    "an index without a weight map": Damage(
        build=_index_text('{"metadata": {}}'),
        kind="index_json",
        file="model.safetensors.index.json",
        tensor=None,
        expected="an object with `weight_map`",
        found="keys ['metadata']",
        remedy="Fetch the index again",
    ),
    "an index that leaves the folder": Damage(
        build=_indexed({"a": FIRST, "b": SECOND, "c": "../other/model.safetensors"}),
        kind="path_outside_folder",
        file="model.safetensors.index.json",
        tensor="c",
        expected="a file inside the checkpoint folder",
        found="'../other/model.safetensors' for 1 tensor",
        remedy="It was not opened",
    ),
    "a name in two shards and no index": Damage(
        build=lambda folder: (
            write_shard(folder / FIRST, floats("a", 2)),
            write_shard(folder / SECOND, floats("a", 2)),
        ),
        kind="duplicate_tensor",
        file=SECOND,
        tensor="a",
        expected="each tensor in one shard",
        found=f"it in {FIRST} and {SECOND}, and no index to say which is meant",
        remedy="write an index",
    ),
    "a name with and without prefix": Damage(
        build=lambda folder: write_shard(folder / ONE, floats("model.a", 2), floats("a", 2)),
        kind="name_prefix",
        file=ONE,
        tensor="a",
        expected="one of a and model.a",
        found="both",
        remedy="keep the one that is meant",
    ),
    "a configuration that is no JSON": Damage(
        build=lambda folder: (_pair(folder), (folder / "config.json").write_text("{,}", encoding="utf-8")),
        kind="config_json",
        file="config.json",
        tensor=None,
        expected="a JSON object",
        found="Expecting property name",
        remedy="Fetch config.json again",
    ),
    "a weight without scale": Damage(
        build=_quantized(None),
        kind="missing_scale",
        file=ONE,
        tensor="x.weight",
        expected="a scale x.scale, because F8_E4M3 codes mean nothing without one",
        found="none in any shard",
        remedy="The tensor is not dequantised",
        per_tensor=True,
    ),
    "a scale of the wrong shape": Damage(
        build=_quantized(("F8_E8M0", [5, 3], bytes(15))),
        kind="scale_shape",
        file=ONE,
        tensor="x.scale",
        expected="a scale of one number per tile of equal size",
        found="F8_E8M0[5, 3]",
        remedy="x.weight is not dequantised; convert the weight again",
        per_tensor=True,
    ),
    "a scale of the wrong dtype": Damage(
        build=_quantized(("I32", [2, 3], bytes(24))),
        kind="scale_dtype",
        file=ONE,
        tensor="x.scale",
        expected="a scale of F8_E8M0, F32 or U8",
        found="I32",
        remedy="x.weight is not dequantised; convert the weight again",
        per_tensor=True,
    ),
    "a dequantised weight with a stale scale": Damage(
        build=lambda folder: write_shard(
            folder / ONE, ("x.weight", "BF16", [2, 2], bytes(8)), ("x.scale", "F8_E8M0", [1, 1], bytes(1))
        ),
        kind="wrong_dtype",
        file=ONE,
        tensor="x.weight",
        expected="FP8 or packed FP4, because x.scale is stored too",
        found="BF16[2, 2], which looks dequantised already",
        remedy="remove the stale scale",
        per_tensor=True,
    ),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_gives_one_clear_error(name: str, tmp_path: Path) -> None:
    damage = DAMAGES[name]
    damage.build(tmp_path)
    (problem,) = errors_in(inspect_checkpoint(tmp_path).problems)
    assert (problem.kind, problem.file, problem.tensor) == (damage.kind, damage.file, damage.tensor)
    assert damage.expected in problem.expected
    assert damage.found in problem.found
    assert damage.remedy in problem.remedy
    text = str(problem)
    assert all(part in text for part in (damage.file or "", damage.tensor or "", problem.expected, problem.found))


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_refused_where_it_matters(name: str, tmp_path: Path) -> None:
    damage = DAMAGES[name]
    damage.build(tmp_path)
    if damage.per_tensor:
        checkpoint = open_checkpoint(tmp_path)
        with pytest.raises(CheckpointError, match=r"x\.weight cannot be dequantised") as caught:
            checkpoint.read_quantized("x.weight")
    else:
        with pytest.raises(CheckpointError, match="the checkpoint cannot be opened") as caught:
            open_checkpoint(tmp_path)
    assert damage.found in str(caught.value)
    assert [problem.kind for problem in caught.value.problems] == [damage.kind]


def test_damaged_tensors_stay_unreadable_without_strict(tmp_path: Path) -> None:
    _truncated(tmp_path)
    checkpoint = open_checkpoint(tmp_path, strict=False)
    assert checkpoint.read("a").tolist() == [0.0] * 4
    with pytest.raises(CheckpointError, match="20 bytes are missing"):
        checkpoint.read("b")


def test_all_damage_is_told_at_once(tmp_path: Path) -> None:
    write_index(tmp_path, {"a": "one.safetensors", "b": "two.safetensors", "c": ONE, "d": "/etc/hostname"})
    _truncated(tmp_path)
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(tmp_path)
    kinds = [problem.kind for problem in caught.value.problems]
    assert sorted(kinds) == ["ghost_tensor", "missing_shard", "missing_shard", "path_outside_folder", "truncated"]
    assert str(caught.value).startswith(f"{tmp_path}: the checkpoint cannot be opened: 5 problems\n  ")


def test_a_sound_folder_has_nothing_to_say(tmp_path: Path) -> None:
    _pair(tmp_path)
    write_index(tmp_path, {"a": FIRST, "model.b": SECOND}, total_size=16)
    assert inspect_checkpoint(tmp_path).problems == ()
    assert inspect_checkpoint(tmp_path).outcome == "load"


def test_an_unused_shard_and_a_wrong_sum_are_warnings(tmp_path: Path) -> None:
    _pair(tmp_path)
    write_shard(tmp_path / "stale.safetensors", floats("z", 2))
    write_index(tmp_path, {"a": FIRST, "b": SECOND}, total_size=17)
    report = inspect_checkpoint(tmp_path)
    assert report.outcome == "warn"
    assert {problem.kind for problem in report.problems} == {"unindexed_shard", "total_size"}
    assert set(open_checkpoint(tmp_path).entries) == {"a", "b"}


def test_zero_size_tensors_and_scalars_are_sound(tmp_path: Path) -> None:
    write_shard(tmp_path / ONE, floats("empty", 0, 4), floats("scalar"))
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.problems == ()
    assert checkpoint.read("empty").shape == (0, 4)
    assert checkpoint.read("scalar").shape == ()
