"""Small modules whose graphs are narrowed."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Layer(nn.Module):
    def __init__(self, *, topk: bool) -> None:
        super().__init__()
        self.proj = nn.Linear(4, 4)
        self.topk = topk

    def forward(self, x: Tensor) -> Tensor:
        y = self.proj(x)
        if self.topk:
            values, _ = torch.topk(y, 2)
            y = y + values.sum()
        return y.relu()


class Stack(nn.Module):
    """Four layers, of which the third has the `topk`; a cache that is written in place."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(Layer(topk=index == 2) for index in range(4))
        self.head = nn.Linear(4, 2)
        self.register_buffer("cache", torch.zeros(3, 4))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        self.cache.copy_(x)
        return self.head(x)


def stack_input() -> Tensor:
    return torch.linspace(-1, 1, 12).reshape(3, 4)


class Contexts(nn.Module):
    """Everything that is awkward to cut: modes, an inner graph, tuples, in-place writes, broken strides, constants."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.proj = nn.Linear(4, 4)

    def forward(self, x: Tensor, extra: dict[str, Tensor]) -> Tensor:
        with torch.no_grad():
            y = x * 2
        with torch.autocast("cpu", torch.bfloat16):
            y = self.proj(y)
        y = y.float()
        z = torch.cond(x.sum() > 0, lambda a: a + 1, lambda a: a - 1, (x,))
        values, order = torch.topk(y, 2)
        y[:, 0] = values.sum(-1) * float("inf") if y.shape[0] == 0 else values.sum(-1)
        wide = extra["row"].expand(3, 4)
        low, high = wide.split(2, dim=1)
        return y + z + torch.cat((high, low), dim=1) + order.sum() + torch.tensor([1.0, 2, 3, 4])


def contexts_input() -> tuple[Tensor, dict[str, Tensor]]:
    return torch.linspace(0, 1, 12).reshape(4, 3).t(), {"row": torch.arange(4.0).reshape(1, 4)}
