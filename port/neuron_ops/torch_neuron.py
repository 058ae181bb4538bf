"""How `torch.neuron` is asked: by name, when a function is called, so that installing anything starts no runtime."""

from __future__ import annotations

from typing import Any

import torch

from port.errors import PlatformError
from port.neuron_ops.device_mapping import DeviceMapping, real_device

_IN_ACCELERATOR = {
    "current_device": "current_device_index",
    "mem_get_info": "get_memory_info",
    "set_device": "set_device_index",
}
"""Names of `torch.accelerator` that differ from those of CUDA."""

_REQUIRED = object()


def ask_neuron(name: str, *args: Any, default: Any = _REQUIRED) -> Any:
    """Call a function of `torch.neuron`, or of `torch.accelerator` where a build has it only there.

    Args:
        name: in `torch.cuda`.
        args: of the call.
        default: what to return where there is no such function.

    Raises:
        PlatformError: neither has it, and no default was given.
    """
    found = getattr(getattr(torch, "neuron", None), name, None)
    found = found or getattr(torch.accelerator, _IN_ACCELERATOR.get(name, name), None)
    if found is not None:
        return found(*args)
    if default is not _REQUIRED:
        return default
    raise PlatformError(
        f"torch.cuda.{name}: torch.neuron has no counterpart of it here. Is torch-neuronx installed, and imported? "
        "DEEPINFER_NEURON_DEVICE=cpu runs the same code on the host."
    )


def one_core(mapping: DeviceMapping, device: Any) -> tuple[Any, ...]:
    """Return the arguments that name a core: none where CUDA code named none, so the current one."""
    return () if device is None else (mapping.number(device),)


def check_neuron_is_known() -> None:
    """Raise where torch knows no device of this name.

    Raises:
        PlatformError: says what to do.
    """
    try:
        real_device("neuron", 0)
    except RuntimeError:
        raise PlatformError(
            "transfer_to_neuron: torch knows no device called neuron here. Install torch-neuronx on a machine with "
            "NeuronCores, or set DEEPINFER_NEURON_DEVICE=cpu (host=True) to run the same code on the CPU."
        ) from None


def is_compiling() -> bool:
    """Say whether a graph is being traced or compiled in this thread."""
    return torch.compiler.is_compiling() or is_asked_by_compiler()


def is_asked_by_compiler() -> bool:
    """Say whether the caller is the compiler itself, not code that Dynamo reads."""
    if torch.compiler.is_dynamo_compiling():  # True in code that Dynamo reads, False in all code that runs
        return False
    from torch._guards import CompileContext, TracingContext

    return CompileContext.try_get() is not None or TracingContext.try_get() is not None
