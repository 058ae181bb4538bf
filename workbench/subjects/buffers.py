"""The buffers of a module as they were, to be put back: values, shapes, and which there are.

A call may write to a buffer, put another tensor in its place (`self.kv = torch.cat(...)`), fill one that was None, or
register a new one. Each would make the next call another one. Not for parameters, which a call leaves alone.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn


class HeldBuffers:
    """What a module's buffers were when this was made.

    Args:
        root: the module, None for a callable without one: nothing is held then.
        values: keep the values too; False on a side that has none.
    """

    def __init__(self, root: nn.Module | None, *, values: bool) -> None:
        modules = {} if root is None else {id(module): module for module in root.modules()}
        self._held: list[tuple[nn.Module, Mapping[str, Tensor | None]]] = [
            (module, dict(module._buffers)) for module in modules.values()
        ]
        tensors = {id(buffer): buffer for _, held in self._held for buffer in held.values() if buffer is not None}
        # One copy of a buffer that several modules share; it stays shared.
        self._values = [(buffer, buffer.detach().clone()) for buffer in tensors.values()] if values else []

    def put_back(self) -> None:
        """Make the buffers what they were: the same tensors, with the same values."""
        for module, held in self._held:
            now = module._buffers
            if list(now) != list(held) or any(now[name] is not buffer for name, buffer in held.items()):
                module._buffers.clear()
                module._buffers.update(held)
        with torch.no_grad():
            for buffer, value in self._values:
                if buffer.shape == value.shape:
                    buffer.copy_(value)
                else:
                    buffer.data = value.clone()
