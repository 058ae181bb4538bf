"""A compiler by its text: a Dynamo backend, a planted fault, a Python function, or a command line."""

from __future__ import annotations

import difflib
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path

from workbench.compilers.base import Compiler
from workbench.compilers.command import CommandCompiler, PredicateCompiler
from workbench.compilers.dynamo import BACKENDS, DynamoCompiler
from workbench.compilers.planted import PlantedCompiler
from workbench.errors import PlanError

FORMS = f"{', '.join(BACKENDS)}, dynamo:NAME, planted:RULES, file.py:function or a command with {{file}} in it"
"""What a compiler can be called, for help texts and errors."""


def open_compiler(spec: str | Sequence[str] | Compiler) -> Compiler:
    """Return the compiler that text, a list of words, or a driver itself stands for.

    Args:
        spec: see `FORMS`. A list is always a command line; so is text with white space in it.

    Raises:
        PlanError: nothing of that name.
    """
    if isinstance(spec, str):
        return _of_text(spec.strip())
    if isinstance(spec, Sequence):
        return CommandCompiler(list(spec))
    return spec


def _of_text(text: str) -> Compiler:
    if text in BACKENDS:
        return DynamoCompiler(text)
    kind, colon, rest = text.partition(":")
    if colon and kind == "planted":
        return PlantedCompiler(rest)
    if colon and kind == "dynamo":
        return DynamoCompiler(known_backend(rest))
    file, colon, function = text.rpartition(":")
    if colon and file.endswith(".py") and function.isidentifier():
        return PredicateCompiler(file, function)
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise PlanError(f"compiler: expected a command line, found {text!r} ({error})") from error
    if len(words) > 1 or (words and (shutil.which(words[0]) or Path(words[0]).is_file())):
        return CommandCompiler(words)
    near = difflib.get_close_matches(text, [*BACKENDS, "planted:"], n=1)
    meant = f" Did you mean {near[0]!r}?" if near else ""
    raise PlanError(f"compiler: expected {FORMS}; found {text!r}.{meant}")


def known_backend(name: str) -> str:
    """Return the name of a Dynamo backend; the port's own is registered when it is named.

    Raises:
        PlanError: Dynamo knows none of this name.
    """
    from torch._dynamo import list_backends

    if name == "deepinfer_neuron":
        from port.neuron_ops.fp8_carrier import register_backend

        register_backend()
    known = list_backends(exclude_tags=())
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        meant = f" Did you mean {near[0]!r}?" if near else ""
        raise PlanError(f"compiler: expected a Dynamo backend among {', '.join(known)}; found {name!r}.{meant}")
    return name
