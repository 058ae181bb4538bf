"""The one place of this package that touches the process environment, for itself and for the processes it starts."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path


def child_environment(overrides: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of this process with some variables replaced, for a process to be started."""
    return {**os.environ, **overrides}


def put_environment(overrides: Mapping[str, str]) -> None:
    """Set variables in this process; for the child of a trial, which is nobody else's."""
    os.environ.update(overrides)


def variables(prefixes: Sequence[str]) -> dict[str, str]:
    """Return the variables whose names begin with one of `prefixes`, by name."""
    return {name: value for name, value in sorted(os.environ.items()) if name.startswith(tuple(prefixes))}


def initial_variables(prefixes: Sequence[str], source: Path = Path("/proc/self/environ")) -> dict[str, str] | None:
    """Return the variables this process began with, None where the system does not tell; later changes are not in it.

    Args:
        prefixes: what names begin with.
        source: the block of variables, each ended by a zero byte.
    """
    try:
        block = source.read_bytes()
    except OSError:
        return None
    pairs = (entry.partition("=") for entry in os.fsdecode(block).split("\0") if "=" in entry)
    return {name: value for name, _, value in sorted(pairs) if name.startswith(tuple(prefixes))}


def find_program(name: str, *, also_in: Sequence[str] = ()) -> str | None:
    """Return the path of an executable on PATH, else in one of the folders `also_in`, None where it is nowhere."""
    return shutil.which(name) or next((found for folder in also_in if (found := shutil.which(name, path=folder))), None)
