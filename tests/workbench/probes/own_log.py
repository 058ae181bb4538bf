"""Runs models of `break_models` under torch.compile alone, for torch's own log of graph breaks (run as a program)."""

import sys

import torch

from tests.workbench.probes import break_models

for name in sys.argv[1:]:
    torch._dynamo.reset()
    print(f"MODEL {name}", file=sys.stderr, flush=True)
    with torch.no_grad():
        torch.compile(break_models.MODELS[name]().eval(), backend="eager")(*break_models.example_inputs())
