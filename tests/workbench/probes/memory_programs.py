"""Small programs for memory tests: every way a storage is made, shared, changed, kept and given back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


@dataclass(frozen=True)
class Program:
    """A call, made anew for every use.

    Attributes:
        build: returns the target and its arguments.
        grad: run with gradients.
        dry: "same" where a dry device computes what the host shows, "otherwise" where torch has another way on another
            device (a fused kernel for the CPU alone), "refused" where it needs numbers or mixes devices.
    """

    build: Callable[[], tuple[Callable[..., object], tuple[object, ...]]]
    grad: bool = False
    dry: Literal["same", "otherwise", "refused"] = "same"


def _x(*shape: int) -> Tensor:
    return torch.linspace(-1, 1, torch.Size(shape).numel()).view(shape)


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))

    def forward(self, x: Tensor) -> Tensor:
        x = self.body(x)
        return self.body(x) + x


class Growing(nn.Module):
    """A cache that grows by concatenation, as a plain attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        self.rows = x.clone() if self.rows is None else torch.cat([self.rows, x])
        return self.rows.sum(0)


class Written(nn.Module):
    """A cache of fixed size in a buffer, written in place."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rows", torch.zeros(4, 8))
        self.scale = nn.Parameter(torch.ones(8))

    def forward(self, x: Tensor) -> Tensor:
        self.rows.index_copy_(0, torch.tensor([1, 2]), x)
        return (self.rows * self.scale).square().sum(0)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, 4)
        self.head = nn.Linear(4, 10, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.embed(ids))


class Dropped(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(x, 0.5, training=True)


class Training(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(torch.tanh(self.up(x)))


def in_place(x: Tensor) -> Tensor:
    y = x + 1
    y.mul_(2).relu_()
    return y


def views_only(x: Tensor) -> Tensor:
    return x.transpose(0, 1)[1:].unsqueeze(0).expand(3, -1, -1)


def expanded(x: Tensor) -> Tensor:
    wide = x.unsqueeze(0).expand(5, *x.shape)
    return wide.contiguous().sum(0)


def reshaped(x: Tensor) -> Tensor:
    return x.t().reshape(-1)[::2].clone()


def dtypes(x: Tensor) -> list[Tensor]:
    return [x.to(torch.bfloat16), x > 0, x.to(torch.float8_e4m3fn), x.long(), x.double()]


def outs(x: Tensor) -> Tensor:
    grown = torch.empty(0)
    torch.add(x, x, out=grown)
    torch.mul(grown, x, out=grown)
    return grown


def resized(x: Tensor) -> Tensor:
    y = x.clone()
    y.resize_(2 * x.numel())
    y.resize_(4)
    return y


def storage_resized(x: Tensor) -> Tensor:
    y = x.clone()
    y.untyped_storage().resize_(0)
    y.untyped_storage().resize_(x.untyped_storage().nbytes())
    return y.copy_(x)


def reset(x: Tensor) -> Tensor:
    y, z = x.clone(), x + 2
    y.set_(z)
    del z
    return y


def from_data(x: Tensor) -> Tensor:
    y = x + torch.tensor([1.0] * x.shape[-1])
    y[0] = 5
    y[1, 2] = 7.0
    return y


def indexed(x: Tensor) -> Tensor:
    return x[torch.tensor([0, 1, 1])] + x[:, x[0] > 0].sum()


def many_results(x: Tensor) -> object:
    values, order = torch.topk(x, 3)
    parts = x.split(2)
    return {"order": order, "first": parts[0].clone(), "sorted": torch.sort(x)[0], "values": values.sum()}


def scratch(x: Tensor) -> Tensor:
    return torch.linalg.inv(x @ x.t() + 3 * torch.eye(x.shape[0])).cumsum(0)


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v)


def einsum(x: Tensor) -> Tensor:
    return torch.einsum("ij,kj,k->i", x, x, x[:, 0])


def held_and_dropped(x: Tensor) -> Tensor:
    held = {name: x * number for number, name in enumerate("abc")}
    for name in list(held):
        held[name + name] = held.pop(name).exp()
    return held["cc"]


def sparse(x: Tensor) -> Tensor:
    return torch.sparse.mm(torch.eye(x.shape[0]).to_sparse(), x)


def checkpointed(module: nn.Module, x: Tensor) -> Tensor:
    y = checkpoint(module, x, use_reentrant=False)
    y.sum().backward()
    return y


def trained(module: nn.Module, x: Tensor) -> Tensor:
    loss = module(x).square().mean()
    loss.backward()
    return loss


PROGRAMS: dict[str, Program] = {
    "nested modules, one called twice": Program(lambda: (Nested().eval(), (_x(4, 8),))),
    "cache grown by cat": Program(lambda: (Growing(), (_x(4, 8),))),
    "cache written in place": Program(lambda: (Written(), (_x(2, 8),)), dry="refused"),
    "tied weights": Program(lambda: (Tied(), (torch.tensor([1, 2, 3]),))),
    "random": Program(lambda: (Dropped(), (_x(4, 8),)), dry="otherwise"),
    "in place": Program(lambda: (in_place, (_x(4, 8),))),
    "views only": Program(lambda: (views_only, (_x(4, 8),))),
    "expanded": Program(lambda: (expanded, (_x(4, 8),))),
    "reshaped": Program(lambda: (reshaped, (_x(4, 8),))),
    "dtypes": Program(lambda: (dtypes, (_x(4, 8),))),
    "out": Program(lambda: (outs, (_x(4, 8),)), dry="refused"),
    "resized": Program(lambda: (resized, (_x(4, 8),))),
    "storage resized": Program(lambda: (storage_resized, (_x(4, 8),))),
    "set to another storage": Program(lambda: (reset, (_x(4, 8),))),
    "from data": Program(lambda: (from_data, (_x(4, 8),)), dry="refused"),
    "indexed": Program(lambda: (indexed, (_x(4, 8),)), dry="refused"),
    "many results": Program(lambda: (many_results, (_x(4, 8),))),
    "scratch of kernels": Program(lambda: (scratch, (_x(4, 8),)), dry="refused"),
    "attention": Program(lambda: (attention, tuple(_x(1, 2, 16, 8) for _ in range(3))), dry="otherwise"),
    "einsum": Program(lambda: (einsum, (_x(4, 8),))),
    "held and dropped": Program(lambda: (held_and_dropped, (_x(4, 8),))),
    "sparse": Program(lambda: (sparse, (_x(4, 8),)), dry="refused"),
    "forward with gradients": Program(lambda: (Training(), (_x(4, 8),)), grad=True),
    "backward": Program(lambda: (trained, (Training(), _x(4, 8))), grad=True),
    "checkpointed": Program(lambda: (checkpointed, (Training(), _x(4, 8))), grad=True),
}
