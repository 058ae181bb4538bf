"""A NeuronCore with shapes and no numbers: fake tensors that report `neuron:i`.

Sizes, dtypes, strides, devices and storages are those of a real run, so memory can be computed; an operation that
needs a number, or tensors of two devices, is refused with the line it stands on. A simulation: nothing here was run on
a device.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.overrides import TorchFunctionMode

from workbench.devices.dry_errors import explained
from workbench.devices.neuron_name import claim_neuron
from workbench.devices.placing import Placing, T
from workbench.errors import DeviceError
from workbench.plan import DeviceName
from workbench.records.memory import MemorySample


class DryDevice:
    """Fake tensors on `neuron:index`; see `Device` for the methods.

    Args:
        index: logical core.

    Raises:
        DeviceError: the name `neuron` is not free, see `neuron_name`.
    """

    name: DeviceName = "dry"
    has_numbers = False

    def __init__(self, index: int = 0) -> None:
        if index < 0:
            raise DeviceError(f"placement dry: expected a core number of at least 0, found {index}.")
        claim_neuron()
        self.device = torch.device("neuron", index)
        # Real tensors met on the way (constants, a user's own) become fake ones of the device they are on, so that
        # mixing them with the model's is refused as it would be on hardware.
        self._mode = FakeTensorMode(allow_non_fake_inputs=True)

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Return the context in which operations are computed by shape only; see `Device.active`."""
        # Backward passes stay on this thread: torch's own thread for the device would call into a simulated one.
        one_thread = torch.autograd.set_multithreading_enabled(False)
        with explained(self.device), one_thread, self._mode, _Constructors():
            yield

    def inactive(self) -> AbstractContextManager[object]:
        """Return a context in which tensors are real again."""
        return unset_fake_temporarily()

    def place(self, value: T) -> T:
        """Return `value` with a fake tensor of the same size, stride, dtype and storage in place of each tensor.

        Raises:
            DeviceError: a tensor that is not strided.
        """
        copies = _FakeCopies(self._mode, self.device)
        with unset_fake_temporarily(), torch.no_grad():
            return Placing(copies).of(value)

    def memory_sample(self) -> MemorySample:
        """Return a sample without figures: nothing is allocated here; `record_memory` computes instead."""
        return MemorySample(device=str(self.device), reserved_bytes=None, allocated_bytes=None, active_bytes=None)


class _FakeCopies:
    """Makes fake tensors from the metadata of others; numbers are never touched, so weights may be on `meta`."""

    def __init__(self, mode: FakeTensorMode, device: torch.device) -> None:
        self._mode = mode
        self._device = device
        self._storages: dict[int, Tensor] = {}

    def __call__(self, tensor: Tensor) -> Tensor:
        if isinstance(tensor, FakeTensor) and tensor.fake_mode is self._mode and tensor.device == self._device:
            return tensor
        if tensor.layout is not torch.strided:
            raise DeviceError(
                f"dry: expected a strided tensor, found {tensor.layout} of {list(tensor.shape)}; make it dense first."
            )
        # Made directly, not by operations of the mode: a large model has a hundred thousand parameters.
        fake = FakeTensor(self._mode, self._like(tensor), self._device)
        if isinstance(tensor, nn.Parameter):
            fake._is_param = True  # how torch itself marks a parameter that is a tensor of another class
        return fake.requires_grad_() if tensor.requires_grad else fake

    def _like(self, tensor: Tensor) -> Tensor:
        """Return a tensor on `meta` of the same size and stride; its storage is that of tensors it shares one with."""
        size, stride, offset = tensor.shape, tensor.stride(), tensor.storage_offset()
        storage = tensor.untyped_storage()
        base = self._storages.get(storage._cdata)
        if base is None:
            count = storage.nbytes() // tensor.element_size()
            if offset == 0 and count == _reach(size, stride):
                base = torch.empty_strided(size, stride, dtype=tensor.dtype, device="meta")
            else:
                base = torch.empty(count, dtype=tensor.dtype, device="meta")
            self._storages[storage._cdata] = base
            if base.shape == size and base.stride() == stride:
                return base.detach()
        elif base.dtype != tensor.dtype:
            count = base.untyped_storage().nbytes() // base.element_size()
            base = base.as_strided((count,), (1,), 0).view(tensor.dtype)
        return base.as_strided(size, stride, offset)


def _reach(size: Sequence[int], stride: Sequence[int]) -> int:
    """Return how many elements of a storage a tensor at its start spans."""
    if 0 in size:
        return 0
    return 1 + sum((length - 1) * step for length, step in zip(size, stride, strict=True))


class _Constructors(TorchFunctionMode):
    """Makes `torch.tensor(data, device="neuron")` two steps: on the host first, then to the device.

    In one step torch writes the data below the point where it can be faked.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run `func`, with the constructors of data changed as above."""
        keywords = dict(kwargs or {})
        if func in _FROM_DATA and _is_neuron(keywords.get("device")):
            device = keywords.pop("device")
            return func(*args, **keywords, device="cpu").to(device)
        if func is Tensor.new_tensor and _is_neuron(keywords.get("device", args[0].device)):
            device = keywords.pop("device", args[0].device)
            return torch.tensor(*args[1:], **{"dtype": args[0].dtype, **keywords}, device="cpu").to(device)
        return func(*args, **keywords)


_FROM_DATA = (torch.tensor, torch.as_tensor, torch.asarray, torch.scalar_tensor)


def _is_neuron(device: object) -> bool:
    if isinstance(device, str):
        return device.startswith("neuron")
    return isinstance(device, torch.device) and device.type == "neuron"
