"""A few operations on a placement, in a process of its own, to say by trial whether this machine can run it.

The child (`python -m workbench.placement_trial host dry`) writes one JSON line per placement as soon as it has an
answer, so that a placement which ends the process does not hide the ones before it. Not for anything a session needs.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from workbench.errors import WorkbenchError
from workbench.plan import DeviceName, Placement
from workbench.records.base import from_plain, to_plain
from workbench.settings import child_environment

if TYPE_CHECKING:
    from torch import Tensor

_LAST_WORDS = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What came of trying one placement.

    Attributes:
        placement: its name.
        able: whether the operations ran and gave what they must.
        words: what ran, or the error's text.
    """

    placement: str
    able: bool
    words: str


def try_placements(
    names: Sequence[DeviceName], *, limit_s: float = 120.0, command: Sequence[str] = ()
) -> dict[str, Trial]:
    """Return what came of each placement, tried in order in one child process.

    Args:
        names: placements to try.
        limit_s: time limit of all of them together.
        command: the child's command line; this module's own where empty.
    """
    words = [*(command or (sys.executable, "-m", "workbench.placement_trial")), *names]
    # Loading the real back-end by itself is `import torch`'s habit; the trial of `neuron` asks for it by name.
    environment = child_environment({"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"})
    try:
        done = subprocess.run(
            words,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
        )
        text, ended = done.stdout, _ending(done.returncode, done.stderr)
    except subprocess.TimeoutExpired as expired:
        text = expired.stdout.decode("utf-8", "replace") if isinstance(expired.stdout, bytes) else expired.stdout or ""
        ended = f"no answer within {limit_s:g} s"
    trials = {trial.placement: trial for trial in map(_read, text.splitlines()) if trial is not None}
    return {name: trials.get(name) or Trial(placement=name, able=False, words=ended) for name in names}


def _ending(status: int, stderr: str) -> str:
    how = f"signal {-status}" if status < 0 else f"status {status}"
    return f"the trial's process ended with {how} and no answer: {stderr.strip()[-_LAST_WORDS:] or 'it said nothing'}"


def _read(line: str) -> Trial | None:
    # Libraries may write to the same stream; only whole objects with our fields are answers.
    try:
        body = json.loads(line)
    except ValueError:
        return None
    fields = {"placement", "able", "words"}
    return (
        from_plain(Trial, cast("dict[str, object]", body)) if isinstance(body, dict) and set(body) == fields else None
    )


def run_trial(name: DeviceName) -> Trial:
    """Return what comes of the operations below on one placement, in this process."""
    try:
        from workbench.devices.names import open_device

        device = open_device(Placement(device=name))
        with device.active():
            words = _CHECKS[device.has_numbers](device.place(_matrix()))
    except WorkbenchError as error:
        return Trial(placement=name, able=False, words=str(error))
    except Exception as error:
        return Trial(placement=name, able=False, words=f"{type(error).__name__}: {error}")
    return Trial(placement=name, able=True, words=words)


def _matrix() -> Tensor:
    import torch

    return torch.arange(64, dtype=torch.float32).reshape(8, 8)


def _check_numbers(matrix: Tensor) -> str:
    found = float((matrix @ matrix.mT).sum().cpu())
    expected = float(sum(sum(row * 8 + column for row in range(8)) ** 2 for column in range(8)))
    assert found == expected, f"a matrix product gave {found}, expected {expected}"
    return f"a matrix product on {matrix.device} gave the exact sum"


def _check_shapes(matrix: Tensor) -> str:
    product = matrix @ matrix.mT
    assert tuple(product.shape) == (8, 8), f"a matrix product has shape {tuple(product.shape)}, expected (8, 8)"
    return f"a matrix product on {product.device} has its shape and no numbers; a simulation"


_CHECKS: dict[bool, Callable[[Tensor], str]] = {True: _check_numbers, False: _check_shapes}


def main(names: Sequence[str]) -> int:
    """Try the placements in order and write a line for each."""
    for name in names:
        sys.stdout.write(json.dumps(to_plain(run_trial(cast("DeviceName", name)))) + "\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
