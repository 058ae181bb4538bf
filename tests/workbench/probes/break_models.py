"""Small models, each with one habit that breaks a graph (or only looks as if), for the tests of the graph probe.

Lines that Dynamo breaks at carry the comment `# break`; lines it only reaches once an earlier break is out of the way
carry `# behind`. The tests hold the first against torch's own log in a process of its own.
"""

import contextlib
import copy
import dataclasses
import functools
import inspect
import logging
import os
import pdb
import random
import warnings
import weakref

import torch
from torch import nn

LOG = logging.getLogger("break_models")
HOST = {"scale": 2.0}


def _input():
    torch.manual_seed(1)
    return (torch.randn(2, 8),)


class Base(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.fc = nn.Linear(8, 8)
        self.out = nn.Linear(8, 8)


class Prints(Base):
    def forward(self, x):
        h = self.fc(x)
        print("width", h.shape[-1])  # break
        return self.out(h)


class PrintsTensor(Base):
    def forward(self, x):
        h = self.fc(x)
        print(f"mean {h.mean()}")  # break
        return self.out(h)


class Logs(Base):
    def forward(self, x):
        h = self.fc(x)
        LOG.info("in the middle")  # break
        return self.out(h)


class BranchesOnData(Base):
    def forward(self, x):
        h = self.fc(x)
        if h.sum() > 0:  # break
            h = h + 1
        return self.out(h)


class LoopsOnData(Base):
    def forward(self, x):
        h = self.fc(x)
        while h.abs().max() > 0.5:  # break
            h = h * 0.5
        return self.out(h)


class Debugs(Base):
    def forward(self, x):
        h = self.fc(x)
        breakpoint()  # break
        return self.out(h)


class DebugsWithPdb(Base):
    def forward(self, x):
        h = self.fc(x)
        pdb.set_trace()  # break
        return self.out(h)


class BreaksInTry(Base):
    def forward(self, x):
        h = self.fc(x)
        h = torch.relu(h)
        try:
            peak = h.max().item()  # break
            h = h / peak
        except ZeroDivisionError:
            h = torch.zeros_like(h)
        print("done")  # behind
        return self.out(h)


class UsesGenerator(Base):
    def pieces(self, x):
        for index in range(2):
            yield x[:, index * 4 : index * 4 + 4]

    def forward(self, x):
        parts = [torch.relu(piece) for piece in self.pieces(self.fc(x))]
        return self.out(torch.cat(parts, -1))


class Clock:
    def __enter__(self):
        torch._dynamo.graph_break()  # break
        return self

    def __exit__(self, *_):
        return False


class EntersContext(Base):
    def forward(self, x):
        h = self.fc(x)
        with Clock():
            h = torch.relu(h)
        return self.out(h)


class OpensFile(Base):
    def forward(self, x):
        h = self.fc(x)
        with open(os.devnull) as sink:  # break
            h = h + sink.fileno() * 0  # behind
        return self.out(h)


class CopiesDeep(Base):
    def forward(self, x):
        h = self.fc(x)
        kept = copy.deepcopy(h.detach())  # break
        return self.out(kept)


class DrawsRandom(Base):
    def forward(self, x):
        h = self.fc(x)
        return self.out(h * random.random())  # break


class PassesDict(Base):
    def forward(self, x):
        state = {"h": self.fc(x), "n": x.shape[0]}
        state.update(g=state["h"] * 2)
        return self.out(sum(value for value in state.values() if isinstance(value, torch.Tensor)))


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


class UsesAutogradFunction(Base):
    def forward(self, x):
        return self.out(Twice.apply(self.fc(x)))


@torch.compiler.disable(recursive=False)
def on_host(x):
    return x * HOST["scale"]


class DisablesShallow(Base):
    def forward(self, x):
        h = on_host(self.fc(x))  # break
        return self.out(h)


class SetsModuleState(Base):
    def forward(self, x):
        self.steps = getattr(self, "steps", 0) + 1
        self.last = self.fc(x)
        return self.out(self.last)


class HasHook(Base):
    def __init__(self):
        super().__init__()
        self.fc.register_forward_hook(self.note)

    def note(self, _module, _args, output):
        torch._dynamo.graph_break()  # break
        return output * 1

    def forward(self, x):
        return self.out(self.fc(x))


class MasksByBool(Base):
    def forward(self, x):
        h = self.fc(x)
        kept = h[h > 0]  # break
        return self.out(h) + kept.sum()


class TakesUnique(Base):
    def forward(self, x):
        h = self.fc(x).round()
        values = torch.unique(h)  # break
        return self.out(h) * values.numel()


class GoesToNumpy(Base):
    def forward(self, x):
        h = self.fc(x).detach()
        total = float(h.numpy().sum())  # break
        return self.out(h) * total


class ListsInLoop(Base):
    def forward(self, x):
        h = self.fc(x)
        for row in h.detach():
            first = row.tolist()[0]  # break
            h = h + first
            print("row")  # behind
        torch._dynamo.graph_break()  # behind
        return self.out(h)


class HoldsWeakly(Base):
    def forward(self, x):
        h = self.fc(x)
        held = weakref.ref(h)
        return self.out(h) if held() is not None else h


class Inspects(Base):
    def forward(self, x):
        h = self.fc(x)
        frame = inspect.currentframe()  # break
        return self.out(h) if frame is not None else h


class AssertsTensor(Base):
    def forward(self, x):
        h = self.fc(x)
        assert torch.isfinite(h).all(), "not finite"
        return self.out(h)


class Warns(Base):
    def forward(self, x):
        h = self.fc(x)
        warnings.warn("slow path", stacklevel=1)  # break
        return self.out(h)


class AsksDevice(Base):
    def forward(self, x):
        h = self.fc(x)
        if x.device.type == "cpu" and isinstance(x.device, torch.device) and not x.is_cuda:
            h = h + 1
        return self.out(h)


class MakesSparse(Base):
    def forward(self, x):
        h = self.fc(x)
        dense = h.to_sparse().to_dense()  # break
        return self.out(dense)


class ListsTensor(Base):
    def forward(self, x):
        rows = list(self.fc(x))
        return self.out(torch.stack(rows))


class Recurses(Base):
    def down(self, x, depth):
        return x if depth == 0 else self.down(self.fc(x), depth - 1)

    def forward(self, x):
        return self.out(self.down(x, 3))


class MakesClass(Base):
    def forward(self, x):
        @dataclasses.dataclass  # break
        class Pair:  # break
            left: torch.Tensor
            right: torch.Tensor

        pair = Pair(self.fc(x), x)
        return self.out(pair.left + pair.right)


class Executes(Base):
    def forward(self, x):
        h = self.fc(x)
        names = {"h": 1.0}
        exec("h = h + 1", names)  # break
        return self.out(h) * names["h"]


class CountsWithSideEffect(Base):
    def forward(self, x):
        h = self.fc(x)
        HOST["calls"] = HOST.get("calls", 0) + 1
        return self.out(h)


class RoutesByInt(Base):
    def __init__(self):
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

    def forward(self, x):
        h = self.fc(x)
        best = int(h.sum(0).argmax() % 3)  # break
        return self.out(self.experts[best](h))


class Suppresses(Base):
    def forward(self, x):
        h = self.fc(x)
        with contextlib.suppress(ValueError):
            h = torch.relu(h)
        return self.out(h)


class Partials(Base):
    def forward(self, x):
        scaled = functools.partial(torch.mul, other=2.0)
        return self.out(scaled(self.fc(x)))


class Nothing(Base):
    def forward(self, x):
        return self.out(torch.relu(self.fc(x)))


MODELS = {one.__name__: one for one in Base.__subclasses__()}
_ELSEWHERE = {"EntersContext": Clock}


def marked_lines(name, *words):
    """Return the numbers of the lines of a model that carry one of the marks, as in `# break`."""
    found = set()
    for part in {MODELS[name], _ELSEWHERE.get(name, MODELS[name])}:
        lines, first = inspect.getsourcelines(part)
        found |= {first + at for at, line in enumerate(lines) if any(f"# {word}" in line for word in words)}
    return found


def example_inputs():
    return _input()
