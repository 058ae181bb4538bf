"""The device name `neuron` on a machine without torch_neuronx: what it takes, and when it must not be taken.

torch has one device type for back-ends that come from outside, and it can be renamed once per process. `claim_neuron`
renames it when a dry device is opened, never at import, and leaves it renamed until the process ends (torch offers no
way back). What then answers to `neuron` is a simulation: it has no memory and cannot compute.
"""

from __future__ import annotations

import importlib.util
import threading

import torch
from torch.utils import backend_registration

from workbench.errors import DeviceError

LOGICAL_CORES = 4
"""Logical cores the simulation counts: those of one trn2 chip with two physical cores each (documented)."""

_FREE = "privateuseone"
_lock = threading.Lock()
_claims: list[str] = []


def claim_neuron() -> None:
    """Make `torch.device("neuron", i)` a valid name in this process; does nothing the second time.

    Raises:
        DeviceError: the name belongs to the real back-end, or the one free device type has another name already.
    """
    with _lock:
        if _claims:
            return
        found = torch._C._get_privateuse1_backend_name()
        if importlib.util.find_spec("torch_neuronx") is not None:
            raise DeviceError(
                "dry: torch_neuronx is installed here, and `neuron` is its device; a simulation must not stand in "
                "front of it. Run dry in an environment without torch_neuronx."
            )
        if found != _FREE:
            raise DeviceError(
                f"dry: expected torch's free device type, found it in use as {found!r}; it can be named once per "
                "process. Run dry in a process of its own."
            )
        backend_registration._setup_privateuseone_for_python_backend(
            "neuron", backend_module=_SimulatedNeuron(), device_guard=_CoreGuard()
        )
        _claims.append("neuron")


class _SimulatedNeuron:
    """What `torch.neuron` is then; tells of no hardware."""

    def is_available(self) -> bool:
        """There is no NeuronCore behind it."""
        return False

    def is_initialized(self) -> bool:
        return False

    def device_count(self) -> int:
        return LOGICAL_CORES

    def current_device(self) -> int:
        return 0

    def _is_in_bad_fork(self) -> bool:
        return False

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        """Documented for the device; asked for by autocast, which a checkpointed backward always enters."""
        return [torch.bfloat16, torch.float16, torch.float32]

    def manual_seed_all(self, seed: int) -> None:
        """Nothing random is made here."""


class _CoreGuard(torch._C._acc.DeviceGuard):  # pyright: ignore[reportAttributeAccessIssue]
    def type_(self) -> object:
        return torch._C._autograd.DeviceType.PrivateUse1  # pyright: ignore[reportAttributeAccessIssue]
