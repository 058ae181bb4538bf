"""Bring-up workbench for DeepSeek-V4.1-Flash on AWS Trainium2: step, compare, memory, graph breaks, bisection, replay.

Names are loaded when they are first used, so that a journal can be opened and drawn without torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from port.checkpoint.index import open_checkpoint as open_checkpoint
    from workbench.bisection.bisect import bisect_compile as bisect_compile
    from workbench.captures import captured_tensor as captured_tensor
    from workbench.journal import Journal as Journal
    from workbench.plan import Inputs as Inputs
    from workbench.plan import Placement as Placement
    from workbench.plan import Plan as Plan
    from workbench.plan import Tolerance as Tolerance
    from workbench.replay import replay as replay
    from workbench.script import to_script as to_script
    from workbench.session import Session as Session
    from workbench.views.bisection import bisection_report as bisection_report
    from workbench.views.bisection import trial_table as trial_table
    from workbench.views.checks import check_table as check_table
    from workbench.views.errors import error_plot as error_plot
    from workbench.views.graph_map import graph_map as graph_map
    from workbench.views.graphs import break_table as break_table
    from workbench.views.memory import memory_table as memory_table
    from workbench.views.memory import top_owners as top_owners
    from workbench.views.memory_timeline import memory_timeline as memory_timeline
    from workbench.views.narrowing import narrowing_plot as narrowing_plot
    from workbench.views.steps import diff_table as diff_table
    from workbench.views.steps import flip_table as flip_table
    from workbench.views.steps import step_table as step_table

_WHERE: dict[str, str] = {
    "Inputs": "workbench.plan",
    "Journal": "workbench.journal",
    "Placement": "workbench.plan",
    "Plan": "workbench.plan",
    "Session": "workbench.session",
    "Tolerance": "workbench.plan",
    "bisect_compile": "workbench.bisection.bisect",
    "bisection_report": "workbench.views.bisection",
    "break_table": "workbench.views.graphs",
    "captured_tensor": "workbench.captures",
    "check_table": "workbench.views.checks",
    "diff_table": "workbench.views.steps",
    "error_plot": "workbench.views.errors",
    "flip_table": "workbench.views.steps",
    "graph_map": "workbench.views.graph_map",
    "memory_table": "workbench.views.memory",
    "memory_timeline": "workbench.views.memory_timeline",
    "narrowing_plot": "workbench.views.narrowing",
    "open_checkpoint": "port.checkpoint.index",
    "replay": "workbench.replay",
    "step_table": "workbench.views.steps",
    "to_script": "workbench.script",
    "top_owners": "workbench.views.memory",
    "trial_table": "workbench.views.bisection",
}

__all__ = [
    "Inputs",
    "Journal",
    "Placement",
    "Plan",
    "Session",
    "Tolerance",
    "bisect_compile",
    "bisection_report",
    "break_table",
    "captured_tensor",
    "check_table",
    "diff_table",
    "error_plot",
    "flip_table",
    "graph_map",
    "memory_table",
    "memory_timeline",
    "narrowing_plot",
    "open_checkpoint",
    "replay",
    "step_table",
    "to_script",
    "top_owners",
    "trial_table",
]


def __getattr__(name: str) -> object:
    if name not in _WHERE:
        raise AttributeError(f"module 'workbench' has no attribute {name!r}; there are {', '.join(__all__)}")
    return getattr(import_module(_WHERE[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
