"""Every storage one call makes: who made it, how long it lived, and which of them made the peak.

    findings = record_memory(model, example_inputs)
    findings.peak.peak_bytes_above_baseline

On the host the call runs as it is and its storages are observed; then it runs once more, on copies, under torch's
profiler, to learn what the allocator gave beside tensors. On a dry device the same storages are computed from shapes,
and the Neuron-specific rules of `workspace_rules` add what a device is said to need beside them.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MethodType

import torch
from torch import Tensor, nn

from workbench.devices.base import Device
from workbench.errors import TargetCrash, WorkbenchError
from workbench.probes.allocator_merge import merge
from workbench.probes.allocator_run import AllocatorEvent, is_profiling, run_with_allocator
from workbench.probes.baseline import enter_baseline
from workbench.probes.memory_findings import MemoryFindings, make_findings
from workbench.probes.observed_call import ObservedCall, copy_call, quiet_process
from workbench.probes.owners import Owners
from workbench.probes.storage_ledger import Ledger
from workbench.probes.storage_watch import Progress, StorageWatch
from workbench.records.base import Record, Stamp
from workbench.records.memory import Counts
from workbench.records.steps import Fallback, StepFailure

Sink = Callable[[Record], object]


class MemoryRunFailed(TargetCrash):
    """The target raised; what had been recorded until then is in `findings`."""

    def __init__(self, message: str, findings: MemoryFindings) -> None:
        super().__init__(message)
        self.findings = findings


def record_memory(
    target: Callable[..., object],
    args: Sequence[object] = (),
    kwargs: Mapping[str, object] | None = None,
    *,
    module: nn.Module | None = None,
    device: Device | None = None,
    cache: object = (),
    sink: Sink | None = None,
    phase: str = "",
    side: str = "reference",
    allocator: bool = True,
    progress: Progress | None = None,
) -> MemoryFindings:
    """Call `target` and return every storage the call made.

    Whether gradients are kept is as the caller has set it. An error or an interruption keeps what was recorded.

    Args:
        target: a module, a bound method, or any callable.
        args: positional arguments, on the device already (`device.place`).
        kwargs: keyword arguments, alike.
        module: root of the module paths; None for the target itself or the owner of the bound method.
        device: where the call runs; None for where its arguments are.
        cache: tensors (or objects that hold them) whose role is cache by the caller's word.
        sink: called with each record, as in `journal.append`.
        phase: of the stamps, as in "decode".
        side: of the record of a failure.
        allocator: on the host, call the target a second time, on copies, to count what only the allocator sees. State
            that neither the module nor the arguments reach (globals, closures) is then changed twice.
        progress: told in a line what is going on.

    Raises:
        MemoryRunFailed: the target raised.
        DryRunError: on a dry device, an operation that needs numbers or mixes devices.
    """
    keywords = dict(kwargs or {})
    root = module if module is not None else _owner(target)
    run = _Run(ledger=Ledger(), device=device, phase=phase, sink=sink)
    watch = StorageWatch(run.ledger, progress=progress)
    owners = Owners(root, crossing=watch.crossed, leaving=watch.left)
    watch.follow(owners)
    enter_baseline(watch, root, args, keywords, cache=cache)
    second = None if run.is_dry or not allocator else _SecondCall.prepare(target, args, keywords, root)
    try:
        with contextlib.nullcontext() if device is None else device.active(), owners, watch:
            result = target(*args, **keywords)
            watch.crossed(result)
            watch.finish()
    except Exception as error:
        watch.forget()
        failure = StepFailure(
            stamp=Stamp(phase=phase),
            side=side,
            name="memory",
            error=f"{type(error).__name__}: {error}",
            traceback_text=traceback.format_exc(),
        )
        findings = run.findings(failure=failure)
        if isinstance(error, WorkbenchError):
            raise
        count = len(findings.allocations)
        raise MemoryRunFailed(
            f"memory: the target raised {failure.error}; the {count} storages until then are recorded", findings
        ) from error
    except BaseException:
        watch.forget()
        run.findings()
        raise
    watch.forget()
    if second is not None:
        if progress is not None:
            progress("memory: calling the target once more, under the allocator's eyes")
        run.add_allocator(second)
    return run.findings(result=result)


@dataclass(slots=True)
class _Run:
    """A ledger on its way to being findings."""

    ledger: Ledger
    device: Device | None
    phase: str
    sink: Sink | None
    merged: bool = False
    note: Fallback | None = None

    @property
    def is_dry(self) -> bool:
        """Whether storages are computed from shapes: on a dry device, or on fake tensors of the caller's own."""
        if self.device is not None:
            return not self.device.has_numbers
        return any(block.computed for block in self.ledger.blocks)

    def add_allocator(self, second: _SecondCall) -> None:
        """Bring in what the allocator saw, or note why that cannot be."""
        why_not = _obstacle(self.ledger)
        if not why_not:
            try:
                merged = merge(self.ledger, second.events())
            except Exception as error:
                # The first call went well; what the second one meets is for the reader of the note to judge.
                why_not = f"the second call raised {type(error).__name__}: {error}"
            else:
                why_not = merged.why_not
                if merged.ledger is not None:
                    self.ledger, self.merged = merged.ledger, True
        if why_not:
            what = "memory that only the allocator sees (wrapped numbers, scratch of kernels)"
            self.note = Fallback(stamp=Stamp(phase=self.phase), what=what, used="storages of tensors", why=why_not)

    def findings(self, *, failure: StepFailure | None = None, result: object = None) -> MemoryFindings:
        """Return the findings, and give their records away."""
        counted: tuple[Counts, ...] = ("tensors", "allocator") if self.merged or self.is_dry else ("tensors",)
        findings = make_findings(
            self.ledger,
            main_device=None if self.device is None else str(self.device.device),
            counted=counted,
            phase=self.phase,
            notes=() if self.note is None else (self.note,),
            failure=failure,
            result=result,
        )
        if self.sink is not None:
            for record in findings.records:
                self.sink(record)
        return findings


@dataclass(frozen=True, slots=True)
class _SecondCall:
    """Copies of a target and its arguments as they were before the first call, and the random state of then."""

    call: ObservedCall
    random_state: Tensor

    @classmethod
    def prepare(
        cls,
        target: Callable[..., object],
        args: Sequence[object],
        kwargs: Mapping[str, object],
        root: nn.Module | None,
    ) -> _SecondCall:
        copies = copy_call(target, args, kwargs, module=root, own_gradients=torch.is_grad_enabled())
        return cls(copies, torch.get_rng_state())

    def events(self) -> tuple[AllocatorEvent, ...]:
        """Make the call under the profiler, quietly, and return what the allocator was asked for."""
        with quiet_process(echo=False):
            torch.set_rng_state(self.random_state)
            return run_with_allocator(self.call.run).events


def _obstacle(ledger: Ledger) -> str:
    """Return why a second call would not tell what the first one did, "" where nothing stands in its way."""
    elsewhere = {block.device for block in ledger.blocks if not block.baseline} - {"cpu"}
    written = [
        block.key for block in ledger.blocks if block.written and block.given_role == "weight" and not block.kept
    ]
    if elsewhere:
        return f"the call allocates on {', '.join(sorted(elsewhere))}, not on the CPU alone"
    if written:
        return f"the call writes weights ({written[0]}), which a second call would write again"
    if is_profiling():
        return "a profiler is active already, and there can be only one"
    return ""


def _owner(target: object) -> nn.Module | None:
    owner = target.__self__ if isinstance(target, MethodType) else target
    return owner if isinstance(owner, nn.Module) else None
