"""Loading is complete before anything is half loaded, and says what became of every tensor."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from port.checkpoint import check_tensors, load_tensors, open_checkpoint
from port.errors import CheckpointError
from port.model.transformer import Transformer
from port.numerics import NumericProfile
from tests.port.checkpoint.test_writer import FIXTURE

CHECKPOINT = open_checkpoint(FIXTURE)


def _model() -> Transformer:
    return Transformer(CHECKPOINT.model_config(), profile=NumericProfile.named("fp32"))


def _wanted(**changes: torch.Tensor) -> dict[str, torch.Tensor]:
    return {name: tensor for name, tensor in _model().state_dict(keep_vars=True).items()} | changes


def test_a_whole_model_is_loaded_and_accounted_for() -> None:
    model = _model()
    calls: list[tuple[int, int]] = []
    report = model.load(CHECKPOINT, progress=lambda done, total: calls.append((done, total)))
    assert report.ok
    assert set(report.loaded) == set(model.state_dict())
    assert set(report.loaded) | set(report.left_out) == set(CHECKPOINT.entries)
    assert all(name.startswith(("mtp.", "vision.", "aligner.", "image_")) for name in report.left_out)
    assert report.nbytes == sum(tensor.nbytes for tensor in model.state_dict().values())
    assert (report.missing, report.unexpected, report.mis_shaped, report.mis_typed) == ((), (), (), ())
    assert calls[-1] == (report.nbytes, report.nbytes)
    assert len(calls) == len(report.loaded)
    assert str(report) == "743 loaded, 109 left-out; 1,433,002 bytes"
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor.view(-1).view(torch.uint8), CHECKPOINT.read(name).view(-1).view(torch.uint8))


def test_everything_wrong_is_told_before_a_byte_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = dict(CHECKPOINT.entries)
    del entries["norm.weight"]
    entries["embed.weight"] = dataclasses.replace(entries["embed.weight"], shape=(448, 65))
    entries["head.weight"] = dataclasses.replace(entries["head.weight"], dtype="F16")
    entries["extra"] = dataclasses.replace(entries["layers.0.attn_norm.weight"], name="extra")
    damaged = dataclasses.replace(CHECKPOINT, entries=entries)
    monkeypatch.setattr("port.checkpoint.reader.os.preadv", None)
    report = check_tensors(damaged, _wanted())
    assert report.missing == ("norm.weight",)
    assert report.mis_shaped == ("embed.weight",)
    assert report.mis_typed == ("head.weight",)
    assert report.unexpected == ("extra",)
    assert report.loaded == ()
    assert not report.ok
    model = _model()
    with pytest.raises(CheckpointError, match="the weights do not fit the model: 3 problems") as caught:
        model.load(damaged)
    for part in ("norm.weight: expected BF16[64]; found no such tensor", "found [448, 65]", "found F16"):
        assert part in str(caught.value)
    assert all(tensor.is_meta for tensor in model.state_dict().values())


def test_a_read_that_fails_half_way_leaves_the_model_untouched(tmp_path) -> None:
    for path in FIXTURE.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    checkpoint = open_checkpoint(tmp_path)
    (tmp_path / "model-00002-of-00005.safetensors").unlink()
    model = _model()
    with pytest.raises(CheckpointError, match="The folder has changed since it was opened"):
        model.load(checkpoint)
    assert all(tensor.is_meta for tensor in model.state_dict().values())


def test_an_interrupted_load_leaves_the_model_untouched() -> None:
    def stop(done: int, total: int) -> None:
        if done > total // 2:
            raise KeyboardInterrupt

    model = _model()
    with pytest.raises(KeyboardInterrupt):
        model.load(CHECKPOINT, progress=stop)
    assert all(tensor.is_meta for tensor in model.state_dict().values())


def test_a_part_of_a_model_makes_nothing_unexpected() -> None:
    wanted = {name: tensor for name, tensor in _wanted().items() if name.startswith("layers.3.")}
    tensors, report = load_tensors(CHECKPOINT, wanted, whole=False)
    assert list(tensors) == list(wanted)
    assert (report.unexpected, report.left_out) == ((), ())


def test_what_the_model_does_not_have_is_unexpected_and_no_error() -> None:
    wanted = {name: tensor for name, tensor in _wanted().items() if name != "norm.weight"}
    _, report = load_tensors(CHECKPOINT, wanted)
    assert report.unexpected == ("norm.weight",)
    assert report.ok
    assert [problem.severity for problem in report.problems] == ["warning"]


def test_a_damaged_tensor_is_missing_with_its_reason(tmp_path) -> None:
    for path in FIXTURE.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    shard = tmp_path / "model-00001-of-00005.safetensors"
    with shard.open("r+b") as stream:
        stream.truncate(shard.stat().st_size - 3)
    checkpoint = open_checkpoint(tmp_path, strict=False)
    report = check_tensors(checkpoint, _wanted())
    assert report.missing
    assert {problem.kind for problem in report.problems} == {"truncated"}
    with pytest.raises(CheckpointError, match="3 bytes are missing"):
        load_tensors(checkpoint, _wanted())


def test_a_parameter_no_checkpoint_can_hold_is_refused() -> None:
    wanted = {"norm.weight": torch.empty(4, dtype=torch.complex128, device="meta")}
    with pytest.raises(CheckpointError, match=r"norm\.weight: expected a parameter of a dtype a checkpoint can hold"):
        check_tensors(CHECKPOINT, wanted)
