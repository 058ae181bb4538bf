"""The child's side of the Dynamo driver: loads a program, compiles it, runs it once and says what happened."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from types import ModuleType
from typing import Any

import torch
import torch._dynamo
from safetensors import safe_open
from torch import Tensor
from torch.utils._pytree import tree_leaves

from workbench.compilers.dynamo import PLAIN
from workbench.compilers.names import known_backend


def warm_up() -> None:
    """Load what every trial loads, once, in the process the trials are forked from."""
    from torch._dynamo.backends.debugging import aot_eager
    from tqdm import tqdm

    # Its monitor would be a second thread, and this process is forked.
    tqdm.monitor_interval = 0
    torch.compile(lambda x: x + 1, backend=aot_eager)(torch.ones(2))
    torch._dynamo.reset()


def compile_program(argument: dict[str, Any]) -> dict[str, object]:
    """Compile and run one program; the answer says how it went, a crash or a hang says it by itself."""
    backend = str(argument["backend"])
    module = _load(str(argument["file"]))
    try:
        _run(module, argument["values"], backend)
    except Exception as error:
        fails_plainly = backend == PLAIN or _raises_plainly(module, argument["values"])
        chain = _chain(error)
        return {
            "outcome": "run_error" if fails_plainly else "compile_error",
            "types": [type(one).__name__ for one in chain],
            "message": str(chain[-1]),
            "text": f"{type(chain[-1]).__name__}: {chain[-1]}",
            "exit_status": 1,
        }
    return {"outcome": "ok"}


def _run(module: ModuleType, values: str | None, backend: str) -> None:
    inputs = module.example_inputs(_exact(module, values))
    program = module.program
    if backend != PLAIN:
        # Shapes are those of the captured run; a break would hide what lies behind it.
        program = torch.compile(program, backend=known_backend(backend), dynamic=False, fullgraph=True)
    with torch.set_grad_enabled(module.GRAD_ENABLED):
        output = program(*inputs)
    # A device compiles and fails asynchronously: reading the results brings it out.
    for leaf in tree_leaves(output):
        if isinstance(leaf, Tensor) and leaf.device.type != "cpu":
            leaf.cpu()


def _raises_plainly(module: ModuleType, values: str | None) -> bool:
    try:
        _run(module, values, PLAIN)
    except Exception:
        return True
    return False


def _exact(module: ModuleType, values: str | None) -> dict[str, Tensor]:
    if values is None:
        return {}
    with safe_open(values, "pt") as file:
        held = set(file.keys())
        return {name: file.get_tensor(name) for name in module.INPUTS if name in held}


def _chain(error: BaseException) -> list[BaseException]:
    """Return an exception and what it wraps, the root last."""
    chain = [error]
    while True:
        inner = getattr(chain[-1], "inner_exception", None) or chain[-1].__cause__
        if inner is None or inner in chain:
            return chain
        chain.append(inner)


def _load(file: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location("workbench_trial_program", file)
    assert spec is not None, "a .py file has a spec"
    assert spec.loader is not None, "a .py file has a loader"
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    with contextlib.redirect_stdout(sys.stderr):
        spec.loader.exec_module(module)
    return module
