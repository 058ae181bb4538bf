"""Two sides compared: tensors, discrete choices, callables, stacks of layers, and where two runs part."""

from workbench.compare.callables import (
    CallableComparison,
    LayersComparison,
    SideRun,
    compare_callables,
    compare_layers,
    find_culprit,
)
from workbench.compare.choices import choice_margin, compare_choices, flipped_rows
from workbench.compare.dtypes import step_size, value_dtype
from workbench.compare.search import Found, culprit, first_difference
from workbench.compare.tensors import Figures, compare_tensors, measure
from workbench.compare.tolerances import ErrorKind, default_tolerance, tolerance_for, tolerance_text

__all__ = [
    "CallableComparison",
    "ErrorKind",
    "Figures",
    "Found",
    "LayersComparison",
    "SideRun",
    "choice_margin",
    "compare_callables",
    "compare_choices",
    "compare_layers",
    "compare_tensors",
    "culprit",
    "default_tolerance",
    "find_culprit",
    "first_difference",
    "flipped_rows",
    "measure",
    "step_size",
    "tolerance_for",
    "tolerance_text",
    "value_dtype",
]
