"""The table of tensors follows from the configuration, and a folder is held against it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from port.checkpoint import open_checkpoint, tensor_table
from port.checkpoint.audit import TensorAudit, audit_checkpoint, audit_tensors
from port.checkpoint.entries import TensorEntry
from port.checkpoint.names import declared_parts
from port.checkpoint.tiny_config import TINY_CONFIG
from port.config import ModelConfig
from tests.port.checkpoint.test_writer import FIXTURE
from tests.shared import shared_path

CONFIG = open_checkpoint(FIXTURE).model_config()


@pytest.mark.parametrize("folder", ["A", "B"])
def test_golden_checkpoints_hold_exactly_the_table(folder: str) -> None:
    checkpoint = open_checkpoint(shared_path("golden", folder, "checkpoint"))
    table = tensor_table(checkpoint.model_config())
    assert {name: (spec.dtype, spec.shape, spec.nbytes) for name, spec in table.items()} == {
        name: (entry.dtype, entry.shape, entry.nbytes) for name, entry in checkpoint.entries.items()
    }
    assert audit_checkpoint(checkpoint).problems == ()


def test_the_released_table_has_the_shapes_of_the_specification() -> None:
    config = ModelConfig.from_file(shared_path("spec", "released_config.json"))
    table = tensor_table(config)
    assert declared_parts(config) == ("text", "draft", "vision")
    wanted = {
        "embed.weight": ("BF16", (129280, 5120)),
        "layers.0.hc_attn_fn": ("F32", (24, 20480)),
        "layers.7.attn.wq_b.weight": ("F8_E4M3", (32768, 1280)),
        "layers.7.attn.wkv.scale": ("F8_E8M0", (16, 160)),
        "layers.7.attn.wo_a.weight": ("F8_E4M3", (8192, 4096)),
        "layers.14.attn.compressor.wgate.weight": ("BF16", (512, 5120)),
        "layers.20.attn.indexer.wk.weight": ("BF16", (128, 512)),
        "layers.36.attn.indexer.wq_b.weight": ("F8_E4M3", (4096, 1280)),
        "layers.39.ffn.experts.383.w1.weight": ("I8", (2304, 2560)),
        "layers.39.ffn.experts.383.w1.scale": ("F8_E8M0", (2304, 160)),
        "layers.1.engram.wkv.weight": ("F8_E4M3", (25600, 6144)),
        "layers.1.engram.wkv.scale": ("F8_E8M0", (800, 192)),
        "layers.14.engram.embed.weight": ("F8_E4M3", (384016682, 256)),
        "layers.14.engram.embed.scale": ("F8_E8M0", (384016682, 8)),
        "mtp.0.main_proj.weight": ("F8_E4M3", (5120, 15360)),
        "mtp.2.confidence_head.proj.weight": ("BF16", (1, 5376)),
        "vision.blocks.31.attn.wqkv.weight": ("BF16", (3072, 1024)),
        "aligner.w1.weight": ("BF16", (5120, 9216)),
    }
    assert {name: (table[name].dtype, table[name].shape) for name in wanted} == wanted
    for absent in (
        "layers.20.attn.compressor.wgate.weight",  # ratio 1 pools nothing
        "layers.24.attn.indexer.wk.weight",  # scores the keys of layer 20
        "layers.3.attn.compressor.wkv.weight",
        "layers.0.engram.q_weight",
        "mtp.0.ffn.experts.128.w1.weight",
        "mtp.1.main_proj.weight",
    ):
        assert absent not in table
    assert 505e9 < sum(spec.nbytes for spec in table.values()) < 515e9


def test_table_rows_follow_from_the_primes_where_the_configuration_names_none() -> None:
    without = dataclasses.replace(CONFIG, engram_num_embeddings=())
    assert tensor_table(without) == tensor_table(CONFIG)


def test_parts_can_be_chosen_and_a_text_only_configuration_has_one() -> None:
    assert {spec.part for spec in tensor_table(CONFIG, ["draft"]).values()} == {"draft"}
    text = dataclasses.replace(
        TINY_CONFIG, num_nextn_predict_layers=0, compress_ratios=TINY_CONFIG.compress_ratios[:9], vision=None
    )
    assert declared_parts(text) == ("text",)
    assert {spec.part for spec in tensor_table(text).values()} == {"text"}


def test_a_weight_and_its_scale_name_each_other() -> None:
    table = tensor_table(CONFIG)
    for name, spec in table.items():
        if spec.scale is not None:
            assert table[spec.scale].scale_of == name
        if spec.scale_of is not None:
            assert table[spec.scale_of].scale == name


def _audit(change: Callable[[dict[str, TensorEntry]], object]) -> TensorAudit:
    checkpoint = open_checkpoint(FIXTURE)
    entries = dict(checkpoint.entries)
    change(entries)
    return audit_checkpoint(dataclasses.replace(checkpoint, entries=entries))


def _change(entries: dict[str, TensorEntry], name: str, **changes: object) -> None:
    entries[name] = dataclasses.replace(entries[name], **changes)


def _drop(entries: dict[str, TensorEntry], prefix: str) -> None:
    for name in [name for name in entries if name.startswith(prefix)]:
        del entries[name]


def _add(entries: dict[str, TensorEntry], name: str) -> None:
    entries[name] = dataclasses.replace(entries["norm.weight"], name=name)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            lambda entries: _drop(entries, "layers.3.attn.wq_a.scale"),
            "layers.3.attn.wq_a.scale: expected F8_E8M0[2, 2]; found no such tensor. Fetch the shard",
        ),
        (
            lambda entries: _change(entries, "norm.weight", shape=(65,)),
            "model-00002-of-00005.safetensors: norm.weight: expected shape [64]; found [65]. Check that config.json",
        ),
        (
            lambda entries: _change(entries, "norm.weight", dtype="F32"),
            "norm.weight: expected dtype BF16; found F32. Nothing is converted silently",
        ),
        (
            lambda entries: _drop(entries, "layers.3.ffn.experts.5."),
            "layers.3.ffn.experts: expected experts with these ids: 5; found none of their tensors",
        ),
        (
            lambda entries: _drop(entries, "layers.3.ffn.experts.5.w2.scale"),
            "layers.3.ffn.experts.5.w2.scale: expected F8_E8M0[64, 1]; found no such tensor",
        ),
        (
            lambda entries: _add(entries, "layers.3.ffn.experts.8.w1.weight"),
            "layers.3.ffn.experts: expected experts numbered as config.json says; found 1 tensors of experts 8",
        ),
        (
            lambda entries: _add(entries, "layers.3.hc_attn_norm.weight"),
            "layers.3.hc_attn_norm.weight: expected the norm weight folded into the mixing matrix",
        ),
        (
            lambda entries: _drop(entries, "mtp.1.norm.weight"),
            "mtp.1.norm.weight: expected BF16[64]; found no such tensor",
        ),
    ],
)
def test_what_breaks_a_checkpoint_is_one_error(change: Callable, text: str) -> None:
    audit = _audit(change)
    errors = [str(problem) for problem in audit.problems if problem.severity == "error"]
    assert len(errors) == 1
    assert text in errors[0]


@pytest.mark.parametrize(
    ("change", "severity", "text"),
    [
        (lambda entries: _add(entries, "surprise"), "warning", "surprise: expected a tensor this configuration names"),
        (lambda entries: _add(entries, "mtp.0.head.weight"), "note", "It is ignored"),
        (lambda entries: _drop(entries, "mtp."), "warning", "expected the tensors of the draft part; found none"),
        (lambda entries: _change(entries, "aligner.w1.bias", shape=(9,)), "warning", "expected shape [64]; found [9]"),
    ],
)
def test_what_is_worth_a_word_is_no_error(change: Callable, severity: str, text: str) -> None:
    (problem,) = _audit(change).problems
    assert problem.severity == severity
    assert text in str(problem)


def test_a_damaged_tensor_is_told_by_its_damage(tmp_path) -> None:
    for path in FIXTURE.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    shard = tmp_path / "model-00004-of-00005.safetensors"
    with shard.open("r+b") as stream:
        stream.truncate(shard.stat().st_size - 5)
    checkpoint = open_checkpoint(tmp_path, strict=False)
    audit = audit_checkpoint(checkpoint)
    assert {spec.name for spec in audit.missing} == set(checkpoint.damaged)
    assert [problem.kind for problem in audit.problems] == ["truncated"]


def test_lists_tell_shape_and_dtype_apart() -> None:
    table = {name: spec for name, spec in tensor_table(CONFIG).items() if name == "norm.weight"}
    entry = open_checkpoint(FIXTURE).entry("norm.weight")
    both = dataclasses.replace(entry, shape=(3,), dtype="F32")
    audit = audit_tensors(table, {"norm.weight": both, "x": dataclasses.replace(entry, name="x")})
    assert [item.spec.name for item in audit.mis_shaped] == ["norm.weight"]
    assert [item.spec.name for item in audit.mis_typed] == ["norm.weight"]
    assert [item.name for item in audit.unexpected] == ["x"]
    assert not audit.ok
