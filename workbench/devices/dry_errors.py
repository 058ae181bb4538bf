"""What a fake tensor refuses, in words a user can act on: operation, line, reason, remedy.

Recognised by torch's own exception types where there are any, and by their text where there are none.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch._subclasses import fake_tensor

from workbench.errors import DryRunError, WorkbenchError
from workbench.user_lines import failing_line

_NUMBER = (
    "reads a number, and dry tensors have none; on a device it would wait for everything queued before it",
    "keep the choice on the device (torch.where, masked sums), or make it from shapes",
)
_SIZE = (
    "has a result whose size depends on numbers; a device wants static shapes",
    "use a form of fixed size (torch.where, topk, a mask), or do this on the host before placing",
)
_MIXED = (
    "mixes tensors of different devices",
    "create tensors with device=x.device, and bring models and inputs over with device.place(...)",
)
_UNKNOWN = (
    "has no rule for shapes without numbers",
    "write it with operations that have one, or run this part on 'host'",
)
_MOVE = (
    "replaces a module's parameters in place, which fake tensors do not allow",
    "bring the module over with device.place(module)",
)


@dataclass(frozen=True, slots=True)
class _Refusal:
    operation: str
    why: str
    remedy: str


@contextlib.contextmanager
def explained(device: torch.device) -> Iterator[None]:
    """Turn what torch raises for a fake tensor into one error that says what to do; anything else passes.

    Raises:
        DryRunError: instead.
    """
    log, once = logging.getLogger(fake_tensor.__name__), _Once()
    log.addFilter(once)
    try:
        yield
    except WorkbenchError:
        raise
    except Exception as error:
        refusal = _refusal(error)
        if refusal is None:
            raise
        line = failing_line(error.__traceback__)
        where = "outside of user code" if line is None else f"{line}: {line.text}"
        raise DryRunError(
            f"dry run on {device}: {refusal.operation} {refusal.why}.\n  at {where}\n  what to do: {refusal.remedy}."
        ) from error
    finally:
        log.removeFilter(once)


class _Once(logging.Filter):
    """Drops the traceback torch prints of an operation that it is about to raise an error for."""

    def filter(self, record: logging.LogRecord) -> bool:
        return "failed while attempting to run meta" not in record.getMessage()


def _refusal(error: Exception) -> _Refusal | None:
    text = str(error)
    operation = _operation(error)
    if isinstance(error, fake_tensor.DataDependentOutputException):
        return _Refusal(operation, *_NUMBER)
    if isinstance(error, fake_tensor.DynamicOutputShapeException):
        return _Refusal(operation, *_SIZE)
    if isinstance(error, fake_tensor.UnsupportedOperatorException):
        return _Refusal(operation, *_UNKNOWN)
    if isinstance(error, fake_tensor.FakeTensorDeviceMismatchError) or _says_mixed(text):
        return _Refusal(operation, f"{_MIXED[0]} ({text.splitlines()[0].rstrip('!.')})", _MIXED[1])
    if ".numpy() is not supported" in text or "Cannot access data pointer" in text:
        return _Refusal("tensor.numpy() or a data pointer", *_NUMBER)
    if isinstance(error, NotImplementedError) and "'neuron' backend" in text:
        return _Refusal(text.split("'")[1], *_UNKNOWN)
    if "_apply(): Couldn't swap" in text:
        return _Refusal("module.to(...)", *_MOVE)
    return None


def _says_mixed(text: str) -> bool:
    return "different devices" in text or ("same device" in text and "neuron" in text)


def _operation(error: Exception) -> str:
    """Return the operation that was refused: what the error names, else what the fake tensor mode was running."""
    func = getattr(error, "func", None)
    traceback = error.__traceback__
    while traceback is not None and func is None:
        if traceback.tb_frame.f_code.co_filename == fake_tensor.__file__:
            func = traceback.tb_frame.f_locals.get("func")
        traceback = traceback.tb_next
    name = func.name() if isinstance(func, torch._ops.OpOverload) else "an operation"
    return _SPOKEN.get(name.split(".")[0], name)


_SPOKEN = {
    "aten::_local_scalar_dense": "aten::_local_scalar_dense (`.item()`, `bool(tensor)`, `.tolist()`)",
    "aten::nonzero": "aten::nonzero (`x[mask]`, `torch.where(mask)`)",
}
