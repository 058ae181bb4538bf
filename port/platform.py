"""The platform object: what the rest of the port asks about the device it runs on, in the contract's words.

`PLATFORM` is made when first asked for and kept. Host mode (`DEEPINFER_NEURON_DEVICE=cpu`) is the same class: the same
code paths and layouts, with the CPU in place of the core, so that what is checked on a host is what runs on a device.
Source: deepinfer 0.1.0 `platform.py`, described in the runtime contracts, section 4.
"""

from __future__ import annotations

import enum
import functools
import threading
from typing import TYPE_CHECKING, Literal

from port.environment import ENV
from port.errors import PlatformError

if TYPE_CHECKING:
    import torch

COMPILER_FLAGS: tuple[str, ...] = ("--internal-hlo2tensorizer-options=--experimental-unsafe-fp8e4m3fn-as-fp8e4m3",)
"""Flags for neuronx-cc on trn2: e4m3fn is read as the hardware's e4m3 (documented in public configurations)."""


class PlatformEnum(enum.Enum):
    """Kinds of platform; the first two are the contract's, none of which this port offers."""

    GPU = "gpu"
    NPU = "npu"
    NEURON = "neuron"


class PlatformNeuron:
    """A logical NeuronCore, or the CPU in its place.

    Args:
        host: run on the CPU; None asks `DEEPINFER_NEURON_DEVICE`.

    Raises:
        ConfigError: the variable has another value than `neuron` or `cpu`.
    """

    enum = PlatformEnum.NEURON
    is_gpu = False
    is_npu = False
    is_neuron = True

    tilelang_ops_backend = "neuron"
    """Folder of `port.tilelang_ops` whose `*_tl` factories are used."""

    joined_cos_sin = True
    """Rotary tables hold cosine and sine side by side, as on Ascend."""

    moe_path: Literal["unfused"] = "unfused"
    """Dispatch, grouped products, combine; there is no fused MoE kernel."""

    hc_gemm_splits = 1
    """Splits of the hyper-connection mixing product; one, as on Ascend."""

    fused_gate = False
    """The gate is a product and then `moe_topk_gate`, as on Ascend."""

    counter_random = True
    """Random numbers come from a counter, never from a generator of the device."""

    def __init__(self, *, host: bool | None = None) -> None:
        self.is_host = ENV.DEEPINFER_NEURON_DEVICE == "cpu" if host is None else host

    @property
    def name(self) -> str:
        """`neuron`, or `cpu` in host mode."""
        return "cpu" if self.is_host else "neuron"

    @property
    def distributed_backend(self) -> str:
        """Back end of device groups for `torch.distributed`: `neuron` (documented), `gloo` in host mode."""
        return "gloo" if self.is_host else "neuron"

    @property
    def fp8_sf_type(self) -> torch.dtype:
        """Integer type that UE8M0 scale bytes are packed into: int16, two bytes, little endian, as on Ascend."""
        import torch

        return torch.int16

    @property
    def fp8_max(self) -> float:
        """Largest magnitude of a quantised activation or cache element."""
        return ENV.DEEPINFER_NEURON_FP8_MAX

    @property
    def weight_fp8_max(self) -> float:
        """Largest magnitude of a stored FP8 weight: 240 on trn2 (documented), 448 on the host."""
        return 448.0 if self.is_host else 240.0

    def device(self, local_rank: int = 0) -> torch.device:
        """Return the device of a process: its logical core, or the CPU in host mode.

        Raises:
            PlatformError: a negative rank, or a torch that knows no device called neuron.
        """
        import torch

        if local_rank < 0:
            raise PlatformError(f"platform: expected a local rank of at least 0; found {local_rank}.")
        if self.is_host:
            return torch.device("cpu")
        try:
            return torch.device("neuron", local_rank)
        except RuntimeError:
            raise PlatformError(
                "platform neuron: torch knows no device of this name here. Install torch-neuronx on a machine with "
                "NeuronCores, or set DEEPINFER_NEURON_DEVICE=cpu to run the same code on the CPU."
            ) from None

    def pin_host_memory(self, tensor: torch.Tensor) -> None:
        """Do nothing: host pinning of the device is not documented."""

    def unpin_host_memory(self, pointer: int) -> None:
        """Do nothing, see `pin_host_memory`."""

    def get_distributed_options(self) -> None:
        """Return options for `new_group`: none are needed."""

    def compiler_flags(self) -> tuple[str, ...]:
        """Return the compiler flags that graphs of this port need; none in host mode."""
        return () if self.is_host else COMPILER_FLAGS

    def apply_compiler_flags(self) -> bool:
        """Put the flags into `NEURON_CC_FLAGS` unless they are there; True where the variable changed.

        Call it before torch_neuronx is imported: it reads its variables then (documented).
        """
        present = (ENV.raw("NEURON_CC_FLAGS") or "").split()
        missing = [flag for flag in self.compiler_flags() if flag not in present]
        if missing:
            ENV.set("NEURON_CC_FLAGS", " ".join([*present, *missing]))
        return bool(missing)

    def check_basic_mode(self) -> None:
        """Raise where the environment asks for a mode that this platform does not have.

        Raises:
            PlatformError: every such variable, with the value that turns it off.
        """
        asked = [f"{name} ({what})" for name, off, what in _BASIC_MODE if getattr(ENV, name) != off]
        if asked:
            values = " ".join(f"{name}={off if isinstance(off, str) else int(off)}" for name, off, _ in _BASIC_MODE)
            raise PlatformError(
                f"platform neuron runs text basic mode; the environment asks for {', '.join(asked)}. "
                f"Unset what is named, or set {values}."
            )


_BASIC_MODE: tuple[tuple[str, int | str, str], ...] = (
    ("DEEPINFER_USE_NEXTN_DECODE", 0, "draft tokens"),
    ("DEEPINFER_ENABLE_MTP_VARLEN", False, "draft length by confidence"),
    ("DEEPINFER_ZERO_OVERHEAD_SCHEDULING", False, "deferred post-processing"),
    ("DEEPINFER_YOCO_PREFILL_TRUNCATION_MODE", "off", "shortened prefill"),
    ("DEEPINFER_EXPERT_REARRANGEMENT_STEP_INTERVAL", 0, "moving experts between ranks"),
    ("DEEPINFER_BATCH_INVARIANT", False, "batch-invariant kernels"),
)

if TYPE_CHECKING:
    PLATFORM: PlatformNeuron
    """The platform of this process."""

_lock = threading.Lock()


@functools.cache
def _make() -> PlatformNeuron:
    return PlatformNeuron()


def __getattr__(name: str) -> object:
    if name != "PLATFORM":
        raise AttributeError(f"module 'port.platform' has no attribute {name!r}")
    with _lock:
        return _make()


def forget_platform() -> None:
    """Make `PLATFORM` anew when it is next asked for; for a process whose variables changed."""
    _make.cache_clear()
