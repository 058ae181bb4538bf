"""What an opened checkpoint says of itself, without reading a tensor."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from port.checkpoint import open_checkpoint
from port.errors import CheckpointError, ConfigError
from tests.port.checkpoint.files import floats, write_index, write_shard
from tests.port.checkpoint.test_writer import FIXTURE

SHARD = "model.safetensors"


def test_the_prefix_is_dropped_wherever_it_stands(tmp_path: Path) -> None:
    write_shard(tmp_path / SHARD, floats("model.norm.weight", 2), floats("head.weight", 2))
    write_index(tmp_path, {"norm.weight": SHARD, "model.head.weight": SHARD})
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.problems == ()
    assert set(checkpoint.entries) == {"norm.weight", "head.weight"}
    assert checkpoint.entries["norm.weight"].stored_name == "model.norm.weight"
    assert checkpoint.entry("model.head.weight").name == "head.weight"
    assert checkpoint.read("norm.weight").tolist() == [0.0, 0.0]


def test_the_index_decides_between_two_copies(tmp_path: Path) -> None:
    ones = ("a", "F32", [1], bytes([0, 0, 128, 63]))
    write_shard(tmp_path / "base.safetensors", floats("a", 1))
    write_shard(tmp_path / "overlay.safetensors", ones)
    write_index(tmp_path, {"a": "overlay.safetensors"})
    assert open_checkpoint(tmp_path).read("a").tolist() == [1.0]
    write_index(tmp_path, {"a": "base.safetensors"})
    assert open_checkpoint(tmp_path).read("a").tolist() == [0.0]


def test_a_single_file_is_a_checkpoint_too(tmp_path: Path) -> None:
    write_shard(tmp_path / "one.safetensors", floats("a", 2))
    write_shard(tmp_path / "two.safetensors", floats("b", 2))
    assert set(open_checkpoint(tmp_path / "one.safetensors").entries) == {"a"}


def test_an_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(CheckpointError, match=r"Did you mean 'embed\.weight'\?"):
        open_checkpoint(FIXTURE).entry("embed.weights")


def test_inventory_adds_up_by_family_and_dtype() -> None:
    checkpoint = open_checkpoint(FIXTURE)
    inventory = checkpoint.inventory()
    assert inventory.nbytes == checkpoint.nbytes == sum(inventory.bytes_by_family().values())
    assert inventory.tensor_count == len(checkpoint.entries)
    (experts,) = [row for row in inventory.rows if (row.family, row.dtype) == ("experts", "I8")]
    assert (experts.tensor_count, experts.nbytes) == (9 * 8 * 3, 9 * 8 * 3 * 1024)
    assert "other" not in inventory.bytes_by_family()


def test_the_fingerprint_follows_headers_and_configuration_not_data(tmp_path: Path) -> None:
    for path in FIXTURE.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    before = open_checkpoint(tmp_path).fingerprint
    assert before == open_checkpoint(FIXTURE).fingerprint
    shard = tmp_path / "model-00001-of-00005.safetensors"
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(content)
    assert open_checkpoint(tmp_path).fingerprint == before
    config = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    assert open_checkpoint(tmp_path).fingerprint != before


def test_a_folder_without_configuration_says_so_when_one_is_needed(tmp_path: Path) -> None:
    write_shard(tmp_path / SHARD, floats("a", 2))
    with pytest.raises(CheckpointError, match=r"expected a config\.json, which this operation needs; found none"):
        open_checkpoint(tmp_path).model_config()
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    with pytest.raises(ConfigError, match="problems"):
        open_checkpoint(tmp_path).model_config()


def test_opening_reads_no_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("port.checkpoint.reader.os.preadv", None)
    monkeypatch.setattr("port.checkpoint.reader.mmap.mmap", None)
    checkpoint = open_checkpoint(FIXTURE)
    checkpoint.inventory()
    with pytest.raises(TypeError):
        checkpoint.read("norm.weight")


def test_a_plain_tensor_is_not_dequantised() -> None:
    with pytest.raises(CheckpointError, match=r"expected a quantised weight with a scale; found BF16\[64\]"):
        open_checkpoint(FIXTURE).read_quantized("norm.weight")
