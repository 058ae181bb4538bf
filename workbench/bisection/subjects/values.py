"""The stored values of a captured graph as bytes, for a script that unpacks them by itself."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from safetensors import safe_open

from workbench.captures import dtype_name, tensor_bytes


def read_values(path: Path, names: Sequence[str]) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """Return dtype (torch spelling), shape and row-major bytes of the named values that the file holds."""
    found: dict[str, tuple[str, tuple[int, ...], bytes]] = {}
    with safe_open(str(path), "pt") as file:
        held = set(file.keys())
        for name in names:
            if name in held:
                tensor = file.get_tensor(name)
                found[name] = (dtype_name(tensor.dtype), tuple(tensor.shape), tensor_bytes(tensor))
    return found
