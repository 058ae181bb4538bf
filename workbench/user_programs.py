"""A user's own Python file as a call to observe: what is run, and with which inputs.

| in the file | what it is |
|---|---|
| `build_model()` | returns the model or callable; or `model`, a module or callable |
| `example_inputs()` | returns the arguments: a tuple or list, a mapping of keywords, or one value; or `inputs()` |

`file.py:name` observes `name` instead of the model: a callable, an `nn.Module`, or a class of modules that needs no
arguments. Running the file is the point here, so this is only for files the user names.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import cast

from torch import nn

from workbench.errors import PlanError, TargetCrash

_MODEL = ("build_model", "model")
_INPUTS = ("example_inputs", "inputs")


@dataclass(frozen=True, slots=True, kw_only=True)
class UserProgram:
    """A call as a user's file describes it.

    Attributes:
        name: file, and the name asked for.
        target: what is called.
        args, kwargs: its arguments.
        module: root of the module paths, None where the target belongs to no module.
    """

    name: str
    target: Callable[..., object]
    args: tuple[object, ...]
    kwargs: Mapping[str, object]
    module: nn.Module | None


def source_file(spec: str) -> Path:
    """Return the file of `file.py` or `file.py:name`."""
    return _split(spec)[0]


def load_program(spec: str) -> UserProgram:
    """Return the call that `file.py` or `file.py:name` describes; the file is run.

    Raises:
        PlanError: no such file or name, or the file lacks what is needed; says all of it.
        TargetCrash: running the file, or one of its functions, raises.
    """
    file, name = _split(spec)
    if not file.is_file():
        raise PlanError(f"expected a Python file, found {'a folder' if file.is_dir() else 'nothing'} at {file}")
    body = load_file(file)
    target = _named(body, name, file) if name else _model(body, file)
    args, kwargs = _inputs(body, file)
    owner = getattr(target, "__self__", target)
    return UserProgram(
        name=spec, target=target, args=args, kwargs=kwargs, module=owner if isinstance(owner, nn.Module) else None
    )


def load_file(file: Path) -> ModuleType:
    """Run a Python file as a module of its own and return it; nothing is put on the import path.

    Raises:
        TargetCrash: it raises.
    """
    name = f"workbench_user_{file.stem}_{abs(hash(file.resolve())):x}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise PlanError(f"expected a Python file, found {file}")
    body = importlib.util.module_from_spec(spec)
    # Dataclasses and pickles look their module up by name.
    sys.modules[name] = body
    try:
        spec.loader.exec_module(body)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise TargetCrash(f"{file} cannot be run: {type(error).__name__}: {error}") from error
    return body


def as_arguments(value: object) -> tuple[tuple[object, ...], Mapping[str, object]]:
    """Return what `example_inputs()` gave as positional and keyword arguments."""
    if isinstance(value, (tuple, list)):
        return tuple(cast("Sequence[object]", value)), {}
    if isinstance(value, Mapping):
        return (), cast("Mapping[str, object]", value)
    return (value,), {}


def _split(spec: str) -> tuple[Path, str]:
    file, colon, name = spec.rpartition(":")
    if colon and file.endswith(".py"):
        return Path(file), name
    return Path(spec), ""


def _model(body: ModuleType, file: Path) -> Callable[..., object]:
    build, ready = (getattr(body, name, None) for name in _MODEL)
    model = _call(build, file) if callable(build) else ready
    if not callable(model):
        came = f"they give {type(model).__name__}" if model is not None else f"it defines {_public(body)}"
        raise PlanError(
            f"{file}: expected `build_model()` that returns a module or callable, or `model`; {came}. "
            "Name another one as file.py:name."
        )
    return cast("Callable[..., object]", model)


def _named(body: ModuleType, name: str, file: Path) -> Callable[..., object]:
    value: object = body
    for part in name.split("."):
        value = getattr(value, part, None)
    if isinstance(value, type) and issubclass(value, nn.Module):
        value = _call(value, file)
    if not callable(value):
        came = "no such name" if value is None else type(value).__name__
        raise PlanError(
            f"{file}: expected a callable or module called {name!r}, found {came}; it defines {_public(body)}"
        )
    return cast("Callable[..., object]", value)


def _inputs(body: ModuleType, file: Path) -> tuple[tuple[object, ...], Mapping[str, object]]:
    for name in _INPUTS:
        function = getattr(body, name, None)
        if callable(function):
            return as_arguments(_call(function, file))
    raise PlanError(
        f"{file}: expected `example_inputs()` that returns the arguments of the call (a tuple, a mapping of keywords, "
        f"or one value); it defines {_public(body)}"
    )


def _call(function: Callable[..., object], file: Path) -> object:
    try:
        return function()
    except (Exception, SystemExit) as error:
        name = getattr(function, "__name__", "the model")
        raise TargetCrash(f"{file}: {name}() raised {type(error).__name__}: {error}") from error


def _public(body: ModuleType) -> str:
    names = [
        name
        for name, value in vars(body).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == body.__name__
    ]
    return ", ".join(names) or "nothing"
