"""Dry: the sizes, dtypes, strides, devices and storages of a real run, and refusals that name the user's line."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import nn

from tests.contracts.processes import run_python
from workbench.devices import neuron_name
from workbench.devices.dry import DryDevice
from workbench.errors import DeviceError, DryRunError


@pytest.fixture
def dry() -> DryDevice:
    return DryDevice()


def refused(dry: DryDevice, call) -> str:
    with pytest.raises(DryRunError) as error, dry.active():
        call()
    return str(error.value)


def test_placed_tensors_keep_size_stride_dtype_and_shared_storage(dry) -> None:
    base = torch.arange(100, dtype=torch.float32).view(10, 10)
    value = {"part": base[2:4, 1:5], "whole": base, "bytes": base.view(torch.uint8), "columns": base.t()}
    placed = dry.place(value)
    for name, tensor in value.items():
        fake = placed[name]
        assert (fake.shape, fake.stride(), fake.storage_offset()) == (
            tensor.shape,
            tensor.stride(),
            tensor.storage_offset(),
        ), name
        assert (fake.dtype, fake.device) == (tensor.dtype, torch.device("neuron", 0)), name
        assert fake.untyped_storage().nbytes() == 400, name
    assert len({fake.untyped_storage()._cdata for fake in placed.values()}) == 1


def test_weights_on_meta_are_placed_and_ties_stay(dry) -> None:
    model = nn.Sequential(nn.Embedding(10, 4, device="meta"), nn.Linear(4, 10, bias=False, device="meta"))
    model[1].weight = model[0].weight
    placed = dry.place(model)
    assert placed[0].weight is placed[1].weight
    assert isinstance(placed[0].weight, nn.Parameter)
    assert model[0].weight.is_meta, "the original stays where it was"
    with dry.active():
        logits = placed(dry.place(torch.tensor([1, 2])))
    assert (tuple(logits.shape), str(logits.device)) == ((2, 10), "neuron:0")


def test_placing_twice_gives_the_same_object(dry) -> None:
    placed = dry.place([torch.ones(2)])
    assert dry.place(placed) is placed


def test_a_core_other_than_the_first_is_reported_by_its_tensors() -> None:
    device = DryDevice(index=3)
    with device.active():
        assert str(torch.zeros(2, device=device.device).device) == "neuron:3"
    with pytest.raises(DeviceError, match="at least 0, found -1"):
        DryDevice(index=-1)


def test_data_can_be_written_on_the_device(dry) -> None:
    with dry.active():
        assert str(torch.tensor([1, 2], device="neuron:0").device) == "neuron:0"
        own = torch.zeros(2, dtype=torch.int32, device="neuron")
        assert own.new_tensor([1.5]).dtype == torch.int32
        assert str(own.new_tensor([1]).device) == "neuron:0"
        assert tuple(own[torch.tensor([0, 1], device=own.device)].shape) == (2,)


def test_backward_runs_on_shapes(dry) -> None:
    layer = dry.place(nn.Linear(3, 2))
    with dry.active():
        layer(dry.place(torch.ones(4, 3))).sum().backward()
    assert tuple(layer.weight.grad.shape) == (2, 3)
    assert str(layer.weight.grad.device) == "neuron:0"


def test_inactive_lifts_it_for_host_work(dry) -> None:
    with dry.active():
        with dry.inactive():
            assert torch.ones(2).sum().item() == 2.0
        with dry.active():
            assert type(torch.ones(2)).__name__ == "FakeTensor"
    assert type(torch.ones(2)) is torch.Tensor


def test_reading_a_number_is_refused_with_the_line(dry) -> None:
    x = dry.place(torch.ones(3))
    for call in (lambda: x.sum().item(), lambda: bool(x.any()), lambda: x.tolist(), lambda: x.cpu().numpy()):
        said = refused(dry, call)
        assert "reads a number" in said
        assert "test_dry.py" in said
        assert "for call in (lambda: x.sum().item()" in said
        assert "torch.where" in said


def test_a_size_that_depends_on_numbers_is_refused_with_the_line(dry) -> None:
    x = dry.place(torch.ones(3, 3))
    for call in (lambda: x.nonzero(), lambda: x[x > 0], lambda: torch.unique(x)):
        said = refused(dry, call)
        assert "size depends on numbers" in said
        assert "test_dry.py" in said
        assert "fixed size" in said


def test_mixed_devices_are_refused_with_the_operation_and_the_line(dry) -> None:
    x, constant = dry.place(torch.ones(3)), torch.ones(3)
    said = refused(dry, lambda: x + torch.ones(3))
    assert "aten::add.Tensor mixes tensors of different devices" in said
    assert "neuron:0 and cpu" in said
    assert "x + torch.ones(3)" in said
    assert "aten::mul.Tensor mixes" in refused(dry, lambda: x * constant)
    with dry.active():
        assert tuple((x * torch.tensor(2.0)).shape) == (3,), "a number on the host may be mixed in, as on hardware"


def test_errors_of_the_model_itself_pass_unchanged_and_quietly(dry, caplog) -> None:
    x = dry.place(torch.ones(3, 4))
    with pytest.raises(ValueError, match="mine"), dry.active():
        raise ValueError("mine")
    with pytest.raises(RuntimeError, match="reduction dim"), dry.active():
        _ = x @ x
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def test_a_sparse_tensor_cannot_be_placed(dry) -> None:
    with pytest.raises(DeviceError, match=r"expected a strided tensor, found torch.sparse_coo of \[2, 2\]"):
        dry.place(torch.eye(2).to_sparse())


def test_the_name_is_taken_when_a_dry_device_is_opened_and_not_before() -> None:
    said = run_python(
        "import torch, workbench.devices.dry as dry\n"
        "print(torch._C._get_privateuse1_backend_name())\n"
        "dry.DryDevice(); dry.DryDevice()\n"
        "print(torch._C._get_privateuse1_backend_name(), torch.neuron.is_available())\n"
    )
    assert said.stdout.split() == ["privateuseone", "neuron", "False"]


def test_a_name_given_by_someone_else_is_left_alone() -> None:
    said = run_python(
        "import torch\n"
        "torch.utils.rename_privateuse1_backend('other')\n"
        "from workbench.devices.dry import DryDevice\n"
        "try: DryDevice()\n"
        "except Exception as error: print(type(error).__name__, error)\n"
    )
    assert "DeviceError dry: expected torch's free device type, found it in use as 'other'" in said.stdout, said.stderr


def test_the_real_back_end_is_never_shadowed(monkeypatch) -> None:
    monkeypatch.setattr(neuron_name, "_claims", [])
    monkeypatch.setattr(neuron_name.importlib.util, "find_spec", lambda name: object())
    with pytest.raises(DeviceError, match="torch_neuronx is installed here"):
        DryDevice()
