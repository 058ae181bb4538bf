"""`torch.compile` with a backend by name, on a program of its own.

Known by name are `eager`, `aot_eager`, `inductor`, `neuron`, and `deepinfer_neuron`: the port's own, which passes fp8
as bytes to `neuron` (in host mode to `aot_eager`).

The rungs below a backend are tried first: the program without `torch.compile`, Dynamo alone, AOTAutograd with eager
kernels. Importing this module needs no torch; the child of a trial does.

`neuron` is written to the documented interface of torch-neuronx 2.14 (`torch.compile(backend="neuron")`, static shapes,
compile failures raised at the latest when a result is read) and has not been run on a device.
"""

from __future__ import annotations

import json
from importlib.metadata import version
from typing import cast

from workbench.bisection.signatures import exception_signature, first_lines
from workbench.bisection.subjects.base import SubjectKind, WrittenSubject
from workbench.bisection.trial_client import CallRequest, ChildReport
from workbench.compilers.base import CompileOutcome, Compiler, plain_outcome
from workbench.errors import DeviceError
from workbench.installed import look_up
from workbench.records.compiling import Outcome
from workbench.settings import variables

PLAIN = "plain"
"""The program itself, without torch.compile."""

_LADDER: dict[str, tuple[str, ...]] = {
    PLAIN: (),
    "eager": (PLAIN,),
    "aot_eager": (PLAIN, "eager"),
    "inductor": (PLAIN, "eager", "aot_eager"),
    "neuron": (PLAIN, "eager", "aot_eager"),
    "deepinfer_neuron": (PLAIN, "eager", "aot_eager"),
}
BACKENDS: tuple[str, ...] = tuple(name for name in _LADDER if name != PLAIN)
"""Backends known by name; any other that Dynamo knows can be named too."""


class DynamoCompiler:
    """`torch.compile` with one backend.

    Args:
        backend: name of a Dynamo backend, or "plain".
        above: backend whose ladder this is a rung of; what that needs is loaded once for all of them.
    """

    simulated = False
    reads: frozenset[SubjectKind] = frozenset({"program"})

    def __init__(self, backend: str, *, above: str | None = None) -> None:
        self.backend = backend
        self._above = above or backend
        words = [f"torch.compile backend={backend}"]
        words += [f"{name}={value}" for name, value in self._variables().items()]
        self.name = "no torch.compile" if backend == PLAIN else " ".join(words)

    @property
    def identity(self) -> str:
        """The backend, and the versions of what stands behind it."""
        parts = ["dynamo", self.backend, version("torch")]
        if self._needs_neuron:
            parts += [str(look_up(*names).version) for names in _NEURON_PACKAGES]
        parts += [f"{name}={value}" for name, value in self._variables().items()]
        return "\n".join(parts)

    @property
    def _needs_neuron(self) -> bool:
        from port import PLATFORM

        return self.backend == "neuron" or (self.backend == "deepinfer_neuron" and not PLATFORM.is_host)

    def _variables(self) -> dict[str, str]:
        """Return what the child's environment needs: on trn2 the compiler must be told how to read e4m3fn."""
        from port.platform import COMPILER_FLAGS

        if not self._needs_neuron:
            return {}
        present = variables(("NEURON_CC_FLAGS",)).get("NEURON_CC_FLAGS", "").split()
        return {"NEURON_CC_FLAGS": " ".join([*present, *(flag for flag in COMPILER_FLAGS if flag not in present)])}

    @property
    def preload(self) -> tuple[str, ...]:
        """The child's side of this driver, and with it torch."""
        own = ("workbench.compilers.dynamo_child",)
        return (*own, "torch._inductor.compile_fx") if self._above == "inductor" else own

    def check(self) -> None:
        """Say that the backend can be used here.

        Raises:
            DeviceError: `neuron` where its packages are not installed.
        """
        if not self._needs_neuron:
            return
        missing = [found for found in (look_up(*names) for names in _NEURON_PACKAGES) if found.kind != "installed"]
        if missing:
            held = ", ".join(f"{one.name} is {one.kind}" for one in missing)
            raise DeviceError(
                f"compiler {self.backend!r}: expected torch-neuronx and neuronx-cc, found that {held}. Run this on a "
                "Trainium machine with the Neuron packages, or use aot_eager, inductor, planted:... or a command here."
            )

    def request(self, subject: WrittenSubject, folder: object) -> CallRequest:
        """Return the call that compiles the program and runs it once."""
        return CallRequest(
            function="workbench.compilers.dynamo_child:compile_program",
            argument={
                "file": str(subject.file),
                "values": None if subject.values is None else str(subject.values),
                "backend": self.backend,
            },
            cwd=str(folder),
            environment=self._variables(),
        )

    def outcome(self, report: ChildReport) -> CompileOutcome:
        """Return what the answer says, or how the child ended without one."""
        if report.ended_because or not report.answer:
            return plain_outcome(report)
        answer = cast("dict[str, object]", json.loads(report.answer))
        outcome = cast("Outcome", answer["outcome"])
        signature = None
        if outcome != "ok":
            types = cast("list[str]", answer["types"])
            signature = exception_signature(outcome, types, str(answer["message"]))
        return CompileOutcome(
            outcome=outcome,
            signature=signature,
            exit_status=report.exit_status,
            elapsed_s=report.elapsed_s,
            error="" if outcome == "ok" else first_lines(str(answer["text"])),
            survivors=report.survivors,
        )

    def rungs(self) -> tuple[Compiler, ...]:
        """Return the ladder from the plain program to this backend."""
        below = _LADDER.get(self.backend, (PLAIN, "eager", "aot_eager"))
        return (*(DynamoCompiler(name, above=self.backend) for name in below), self)


_NEURON_PACKAGES = (("torch-neuronx", "torch_neuronx"), ("neuronx-cc", "neuronxcc"))
