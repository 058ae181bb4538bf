"""The public names of both packages, listed here once: a name comes or goes only on purpose."""

from __future__ import annotations

import ast
from pathlib import Path
from types import ModuleType

import pytest

import port
import workbench

WORKBENCH = (
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
)
PORT = (
    "PLATFORM",
    "Checkpoint",
    "ModelConfig",
    "NumericProfile",
    "PortError",
    "TextModel",
    "Transformer",
    "generate",
    "open_checkpoint",
    "open_text_model",
)
_PACKAGES = pytest.mark.parametrize(
    ("package", "names"), [(workbench, WORKBENCH), (port, PORT)], ids=["workbench", "port"]
)


@_PACKAGES
def test_public_names_are_these(package: ModuleType, names: tuple[str, ...]) -> None:
    assert sorted(package.__all__) == sorted(names)
    assert set(names) <= set(dir(package))


@_PACKAGES
def test_every_public_name_can_be_had_and_is_documented(package: ModuleType, names: tuple[str, ...]) -> None:
    undocumented = [name for name in names if not (getattr(package, name).__doc__ or "").strip()]
    assert undocumented == []


@_PACKAGES
def test_editors_are_told_the_same_as_the_interpreter(package: ModuleType, names: tuple[str, ...]) -> None:
    tree = ast.parse(Path(str(package.__file__)).read_text(encoding="utf-8"))
    typing_only = next(
        node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    )
    told = {
        alias.asname or alias.name: node.module
        for node in typing_only.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert told == package._WHERE
    assert set(told) == set(names)


@_PACKAGES
def test_a_name_that_is_not_there_lists_those_that_are(package: ModuleType, names: tuple[str, ...]) -> None:
    with pytest.raises(AttributeError, match=r"has no attribute 'Sesion'; there are .*" + names[-1]):
        _ = package.Sesion
