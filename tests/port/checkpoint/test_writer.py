"""The tiny checkpoint: the same bytes from the same seed, whole or not at all, and a model that runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from port.checkpoint import open_checkpoint, write_tiny_checkpoint
from port.checkpoint.audit import audit_checkpoint
from port.checkpoint.tiny_config import TINY_CONFIG
from port.checkpoint.tiny_tokenizer import tiny_tokenizer_json
from port.checkpoint.tiny_weights import random_numbers
from port.errors import CheckpointError
from port.model.steps import step_program
from port.runtime.generate import generate
from port.runtime.text_model import open_text_model
from port.schedule import LayerSchedule
from port.tokenizer import Tokenizer

FIXTURE = Path(__file__).resolve().parents[3] / "fixtures" / "tiny_v41"
FIXTURE_LIMIT_BYTES = 3 << 20


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_checkpoint(tmp_path_factory.mktemp("writer") / "tiny", seed=0).path


def _contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "ORIGIN.md"}


def test_the_committed_fixture_is_what_the_writer_writes(written: Path) -> None:
    assert _contents(written) == _contents(FIXTURE)
    assert sum(len(content) for content in _contents(FIXTURE).values()) < FIXTURE_LIMIT_BYTES
    assert "workbench fixtures fixtures/tiny_v41 --seed 0" in (FIXTURE / "ORIGIN.md").read_text(encoding="utf-8")


def test_another_seed_changes_the_weights_and_nothing_else(written: Path, tmp_path: Path) -> None:
    other = write_tiny_checkpoint(tmp_path / "other", seed=1).path
    changed = {name for name, content in _contents(other).items() if content != _contents(written)[name]}
    assert {name for name in changed if not name.endswith(".safetensors")} == set()
    assert len(changed) == 5


def test_every_file_is_named_with_its_size_and_digest(tmp_path: Path) -> None:
    report = write_tiny_checkpoint(tmp_path / "tiny", seed=3)
    assert report.nbytes == sum(path.stat().st_size for path in report.path.iterdir())
    assert {item.file for item in report.files} == {path.name for path in report.path.iterdir()}
    assert report.fingerprint == open_checkpoint(report.path).fingerprint


def test_it_is_complete_and_sound() -> None:
    checkpoint = open_checkpoint(FIXTURE)
    assert checkpoint.problems == ()
    audit = audit_checkpoint(checkpoint)
    assert audit.ok
    assert audit.problems == ()
    assert len(audit.matched) == len(checkpoint.entries)


def test_every_kind_of_layer_is_present() -> None:
    roles = LayerSchedule.from_config(open_checkpoint(FIXTURE).model_config()).roles
    assert {role.ratio for role in roles} == {0, 1, 2}
    assert {role.candidates for role in roles} == {"none", "publishes", "restricted"}
    assert {(role.owns_kv, role.owns_index) for role in roles} == {(False, False), (True, True), (False, True)}
    assert [role.layer for role in roles if role.has_engram] == [1, 4]
    assert any(role.ratio and not role.owns_index and role.index_source != role.kv_source for role in roles)
    families = {row.family for row in open_checkpoint(FIXTURE).inventory().rows}
    assert families >= {"draft", "vision", "experts", "engram_tables", "indexer", "compressor"}


def test_safetensors_reads_the_same_tensors() -> None:
    checkpoint = open_checkpoint(FIXTURE)
    for path in sorted(FIXTURE.glob("*.safetensors")):
        with safe_open(path, "pt") as shard:
            names = set(shard.keys())
            assert names == {name for name, entry in checkpoint.entries.items() if entry.file == path.name}
            for name in sorted(names)[::7]:
                theirs, ours = shard.get_tensor(name), checkpoint.read(name)
                assert theirs.dtype == ours.dtype
                assert torch.equal(theirs.view(torch.uint8), ours.view(torch.uint8))


def test_a_weight_lies_beside_its_scale_and_each_table_in_a_shard_of_its_own() -> None:
    checkpoint = open_checkpoint(FIXTURE)
    assert all(pair.weight.file == pair.scale.file for pair in checkpoint.pairing.quantized.values())
    for layer in (1, 4):
        table = checkpoint.entries[f"layers.{layer}.engram.embed.weight"].file
        assert len([entry for entry in checkpoint.entries.values() if entry.file == table]) == 2


def test_scales_differ_from_tile_to_tile() -> None:
    checkpoint = open_checkpoint(FIXTURE)
    for name in ("layers.0.attn.wq_b", "layers.1.engram.embed", "layers.3.ffn.experts.5.w2"):
        assert len(checkpoint.read(name + ".scale").view(torch.uint8).unique()) > 1


def test_the_model_runs_and_generates() -> None:
    text_model = open_text_model(FIXTURE)
    assert text_model.load_report is not None
    assert text_model.load_report.ok
    assert text_model.load_report.unexpected == ()
    assert len(step_program(text_model.model.schedule)) == 2 + 2 + 2 * 9
    prompt = text_model.tokenizer.encode("The quick brown fox")
    assert prompt == [0, 439, 354, 407, 321]
    long = text_model.tokenizer.encode("A model reads a token, and then the next token. " * 4)
    first = generate(text_model, [prompt, long], max_tokens=4)
    assert first == generate(text_model, [prompt, long], max_tokens=4)
    assert all(len(item.token_ids) == 4 for item in first)
    assert not {0, 1, 2, 447} & {token for item in first for token in item.token_ids}
    assert first[0].token_ids != first[1].token_ids


def test_a_folder_with_something_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "kept.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(CheckpointError, match="expected a new or empty folder to write into; found a folder"):
        write_tiny_checkpoint(tmp_path)
    assert _contents(tmp_path) == {"kept.txt": b"mine"}
    with pytest.raises(CheckpointError, match="found a file"):
        write_tiny_checkpoint(tmp_path / "kept.txt")


def test_an_empty_folder_is_taken(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    write_tiny_checkpoint(tmp_path / "empty", seed=0)
    assert open_checkpoint(tmp_path / "empty").problems == ()
    assert [path.name for path in tmp_path.iterdir()] == ["empty"]


def test_a_write_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("port.checkpoint.writer._write_json", fail)
    with pytest.raises(OSError, match="disk full"):
        write_tiny_checkpoint(tmp_path / "tiny")
    assert list(tmp_path.iterdir()) == []


def test_the_tokenizer_encodes_and_decodes_any_text() -> None:
    tokenizer = Tokenizer(FIXTURE, bos_token_id=0)
    assert tokenizer.vocab_size == TINY_CONFIG.vocab_size
    for text in ("The quick brown fox", "naïve café, 12.5 %", "日本語 \t\n x"):
        assert tokenizer.decode(tokenizer.encode(text)) == text
    compressed = tokenizer.compression_map()
    assert compressed.max() + 1 == open_checkpoint(FIXTURE).model_config().engram_compressed_vocab_size
    assert compressed.max() + 1 < tokenizer.vocab_size


def test_a_vocabulary_that_cannot_be_filled_is_refused() -> None:
    with pytest.raises(ValueError, match="vocab_size: expected at least 260; found 100"):
        tiny_tokenizer_json(100)
    with pytest.raises(ValueError, match="the text gives at most"):
        tiny_tokenizer_json(5000)
    vocabulary = json.loads(tiny_tokenizer_json(300))["model"]["vocab"]
    assert sorted(vocabulary.values()) == list(range(299))


def test_numbers_are_nearly_normal_and_depend_on_name_and_seed() -> None:
    numbers = random_numbers(0, "x", 200, 100)
    assert abs(float(numbers.mean())) < 0.02
    assert abs(float(numbers.std()) - 1) < 0.02
    assert torch.equal(numbers, random_numbers(0, "x", 200, 100))
    assert not torch.equal(numbers, random_numbers(0, "y", 200, 100))
    assert not torch.equal(numbers, random_numbers(1, "x", 200, 100))
    assert float(random_numbers(0, "x", 1)) == 1.7007293701171875
