"""Who may import whom, as data: every import of every module, and the rules they are held against.

A rule carries an example that breaks it, so that a test can show that the rule can fail.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("port", "workbench")
_STDLIB = sys.stdlib_module_names


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """One import, call or attribute of one module.

    Attributes:
        file: path relative to the checkout, with forward slashes.
        line: from 1.
        what: "import" (of `name`, fully qualified as far as the text says), "call" or "attribute" (dotted text).
        name: see `what`.
        eager: reached by importing the module: neither in a function nor under TYPE_CHECKING.
        level: dots of a relative import.
    """

    file: str
    line: int
    what: str
    name: str
    eager: bool = True
    level: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.what} {self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One line of the table of house rules.

    Attributes:
        name: the rule in words.
        where: patterns (`fnmatch`) of the files it holds for.
        breaks: says whether a use breaks the rule.
        example: a file and its text that break it.
        but_not: patterns of files it does not hold for.
    """

    name: str
    where: tuple[str, ...]
    breaks: Callable[[Use], bool]
    example: tuple[str, str]
    but_not: tuple[str, ...] = ()

    def holds_for(self, file: str) -> bool:
        """Say whether the rule looks at this file."""
        return any(fnmatch(file, pattern) for pattern in self.where) and not any(
            fnmatch(file, pattern) for pattern in self.but_not
        )


def imports(*prefixes: str) -> Callable[[Use], bool]:
    """Return a predicate: imports one of these packages or anything below them."""
    return lambda use: use.what == "import" and _below(use.name, prefixes)


def imports_eagerly(*prefixes: str) -> Callable[[Use], bool]:
    """Return a predicate: imports one of these when the module itself is imported."""
    return lambda use: use.eager and imports(*prefixes)(use)


def imports_beyond(*prefixes: str) -> Callable[[Use], bool]:
    """Return a predicate: imports anything but the standard library and these."""
    return lambda use: use.what == "import" and use.name.split(".")[0] not in _STDLIB and not _below(use.name, prefixes)


def reads_environment(use: Use) -> bool:
    """Say whether a use touches the process environment."""
    names = ("os.environ", "os.environb", "os.getenv", "os.getenvb", "os.putenv", "os.unsetenv")
    return _below(use.name, names)


def runs_foreign_text(use: Use) -> bool:
    """Say whether a use runs text as code, unpickles, or builds a shell line."""
    if use.what == "import":
        return _below(use.name, ("pickle", "marshal", "shelve", "dill", "cloudpickle"))
    if use.what == "call":
        return use.name in ("eval", "os.system", "os.popen", "torch.load", "shell=True")
    return False


WITHOUT_TORCH = (
    "workbench/records/*.py",
    "workbench/views/*.py",
    *(
        f"workbench/{name}.py"
        for name in ("actions", "errors", "exit_codes", "findings", "journal", "output", "plan", "settings", "sidefile")
    ),
    "workbench/units.py",
)

RULES: tuple[Rule, ...] = (
    Rule(
        name="the port knows nothing of the workbench",
        where=("port/*.py",),
        breaks=imports("workbench"),
        example=("port/model/block.py", "def f():\n    from workbench import Session\n"),
    ),
    Rule(
        name="kernels import torch, each other and the numeric profiles, nothing else",
        where=("port/kernels/*.py",),
        breaks=imports_beyond("torch", "port.kernels", "port.numerics"),
        example=("port/kernels/gather.py", "from port.config import ModelConfig\n"),
    ),
    Rule(
        name="checkpoints know names and tensors, not the model's classes",
        where=("port/checkpoint/*.py",),
        breaks=imports("port.model", "port.runtime"),
        example=("port/checkpoint/loader.py", "from port.model import Model\n"),
    ),
    Rule(
        name="collectives know ranks and tensors, not the model, its runtime or the vendor names",
        where=("port/collectives/*.py",),
        breaks=imports("port.model", "port.runtime", "port.vendor"),
        example=("port/collectives/parallel.py", "from port.model.experts import MoE\n"),
    ),
    Rule(
        name="records import the standard library alone",
        where=("workbench/records/*.py",),
        breaks=imports_beyond("workbench.records", "workbench.errors"),
        example=("workbench/records/steps.py", "import numpy\n"),
    ),
    Rule(
        name="records, journal and views need neither torch, nor the port, nor a session",
        where=WITHOUT_TORCH,
        breaks=imports("torch", "port", "workbench.session", "workbench.probes", "workbench.devices"),
        example=("workbench/views/steps.py", "from workbench.session import Session\n"),
    ),
    Rule(
        name="torch_neuronx appears in devices/neuron.py alone",
        where=("port/*.py", "workbench/*.py"),
        but_not=("workbench/devices/neuron.py",),
        breaks=imports("torch_neuronx"),
        example=("workbench/doctor.py", "def f():\n    import torch_neuronx\n"),
    ),
    Rule(
        name="IPython appears in ipython.py alone",
        where=("port/*.py", "workbench/*.py"),
        but_not=("workbench/ipython.py",),
        breaks=imports("IPython"),
        example=("workbench/session.py", "def f():\n    from IPython.display import display\n"),
    ),
    Rule(
        name="widget libraries appear in widgets/ alone",
        where=("port/*.py", "workbench/*.py"),
        but_not=("workbench/widgets/*.py",),
        breaks=imports("ipywidgets", "anywidget", "traitlets"),
        example=("workbench/views/base.py", "import ipywidgets as widgets\n"),
    ),
    Rule(
        name="nothing needs the widgets or the notebook face to be imported",
        where=("port/*.py", "workbench/*.py"),
        but_not=("workbench/widgets/*.py", "workbench/ipython.py"),
        breaks=imports_eagerly("workbench.widgets", "workbench.ipython", "ipywidgets", "IPython"),
        example=("workbench/session.py", "from workbench.widgets.stepper import Stepper\n"),
    ),
    Rule(
        name="pictures are drawn only when asked for",
        where=("port/*.py", "workbench/*.py"),
        breaks=imports_eagerly("matplotlib"),
        example=("workbench/views/plots.py", "from matplotlib.figure import Figure\n"),
    ),
    Rule(
        name="the environment is read in one module of each package",
        where=("port/*.py", "workbench/*.py"),
        but_not=("port/environment.py", "workbench/settings.py"),
        breaks=reads_environment,
        example=("workbench/session.py", "import os\n\ndef f():\n    return os.environ.get('HOME')\n"),
    ),
    Rule(
        name="replay imports the session only when it runs one",
        where=("workbench/replay.py", "workbench/replay/*.py"),
        breaks=imports_eagerly("workbench.session", "torch", "port"),
        example=("workbench/replay.py", "from workbench.session import Session\n"),
    ),
    Rule(
        name="modules are imported by their full name",
        where=("port/*.py", "workbench/*.py"),
        breaks=lambda use: use.level > 0,
        example=("port/model/block.py", "from ..kernels import linear\n"),
    ),
    Rule(
        name="no text is run as code, nothing is unpickled, no shell line is built",
        where=("port/*.py", "workbench/*.py"),
        breaks=runs_foreign_text,
        example=("port/checkpoint/loader.py", "import torch\n\ndef f(path):\n    return torch.load(path)\n"),
    ),
)


def modules() -> list[Path]:
    """Return every Python file of the two packages."""
    return sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


def violations(rule: Rule, file: str, text: str) -> list[str]:
    """Return the uses in one file that break a rule, as `file:line: use`."""
    if not rule.holds_for(file):
        return []
    return [str(use) for use in uses(file, text) if rule.breaks(use)]


def uses(file: str, text: str) -> Iterator[Use]:
    """Give every import, call and attribute of a module's text."""
    yield from _walk(ast.parse(text, filename=file), file, eager=True)


def _walk(node: ast.AST, file: str, *, eager: bool) -> Iterator[Use]:
    for child in ast.iter_child_nodes(node):
        here = eager and not _is_later(child)
        if isinstance(child, ast.If) and _dotted(child.test).endswith("TYPE_CHECKING"):
            continue
        yield from _of_node(child, file, here)
        yield from _walk(child, file, eager=here)


def _of_node(node: ast.AST, file: str, eager: bool) -> Iterator[Use]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield Use(file=file, line=node.lineno, what="import", name=alias.name, eager=eager)
    elif isinstance(node, ast.ImportFrom):
        for alias in node.names:
            name = f"{node.module or ''}.{alias.name}".strip(".")
            yield Use(file=file, line=node.lineno, what="import", name=name, eager=eager, level=node.level)
    elif isinstance(node, ast.Call):
        yield Use(file=file, line=node.lineno, what="call", name=_dotted(node.func), eager=eager)
        for keyword in node.keywords:
            if keyword.arg == "shell" and not (isinstance(keyword.value, ast.Constant) and not keyword.value.value):
                yield Use(file=file, line=node.lineno, what="call", name="shell=True", eager=eager)
    elif isinstance(node, ast.Attribute):
        yield Use(file=file, line=node.lineno, what="attribute", name=_dotted(node), eager=eager)


def _is_later(node: ast.AST) -> bool:
    return isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))


def _dotted(node: ast.AST) -> str:
    if isinstance(node, ast.Name):
        return node.id
    return f"{_dotted(node.value)}.{node.attr}" if isinstance(node, ast.Attribute) else ""


def _below(name: str, prefixes: tuple[str, ...]) -> bool:
    return any(name == prefix or name.startswith(prefix + ".") for prefix in prefixes)
