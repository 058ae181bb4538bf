"""Small modules and plans the session tests share."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from workbench.plan import Inputs, Placement, Plan

ROOT = Path(__file__).resolve().parents[3]
GOLDEN = ROOT / "fixtures" / "golden_A"
CHECKPOINT = GOLDEN / "checkpoint"
PROMPT = (5, 17, 9, 40, 77, 31)


def text_plan(**changes: object) -> Plan:
    """Return a plan on the committed tiny checkpoint."""
    fields: dict[str, object] = {"checkpoint": str(CHECKPOINT), "inputs": Inputs(token_ids=(PROMPT,)), **changes}
    return Plan(**fields)  # type: ignore[arg-type]


MODULE = Plan(model="module", reference=Placement())


class Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 2 * width)
        self.act = nn.GELU()
        self.down = nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(self.act(self.up(x)))


class Stack(nn.Module):
    """Three layers, a norm called twice, dropout, a buffer that counts calls."""

    def __init__(self, width: int = 8, dropout: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(Layer(width) for _ in range(3))
        self.norm = nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        x = self.norm(x)
        for layer in self.layers:
            x = layer(x)
        return self.dropout(self.norm(x)) * self.calls


class ManyOutputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.split = _Split()

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        first, rest = self.split(x)
        return {"first": first, "rest": rest["b"]}


class _Split(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        return x[:1], {"b": x[1:] * 2}


def example() -> Tensor:
    return torch.randn(2, 8, generator=torch.Generator().manual_seed(1))
