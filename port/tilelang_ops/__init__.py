"""The `*_tl` kernel factories of the back end that the platform names, by attribute: `ops.gather_tl(...)(...)`.

    from port import tilelang_ops as ops

    ops.gather_tl(width, torch.bfloat16, torch.int32, width)(table, ids, out)

How tensors are passed is said once, in `port/tilelang_ops/neuron/__init__.py`; what there is, in
`port/tilelang_ops/table.py` and docs/kernels.md.
"""

from __future__ import annotations

import difflib
from importlib import import_module
from types import ModuleType
from typing import Any


def __getattr__(name: str) -> Any:
    if not name.endswith("_tl"):
        raise AttributeError(f"module 'port.tilelang_ops' has no attribute {name!r}; it has the *_tl factories")
    backend = _backend()
    if name in backend.FACTORIES:
        return backend.FACTORIES[name]
    from port.errors import KernelUnavailableError

    nearest = difflib.get_close_matches(name, backend.FACTORIES, n=3)
    hint = f" Nearest: {', '.join(nearest)}." if nearest else ""
    raise KernelUnavailableError(
        f"{name}: expected one of the {len(backend.FACTORIES)} factories of {backend.__name__}; found no such name."
        f"{hint} docs/kernels.md lists them."
    )


def __dir__() -> list[str]:
    return sorted({*globals(), *_backend().FACTORIES})


def _backend() -> ModuleType:
    from port.platform import PLATFORM

    return import_module(f"port.tilelang_ops.{PLATFORM.tilelang_ops_backend}")
