"""Which source files are the user's, and how their paths are shown."""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path

import torch

_TORCH = str(Path(torch.__file__).parent) + os.sep
_STDLIB = sysconfig.get_path("stdlib") + os.sep
_PACKAGES = ("site-packages", "dist-packages")


def is_library(file: str) -> bool:
    """Say whether a code object's file belongs to torch, to the standard library, or to no file at all."""
    if file.startswith(_TORCH) or (file.startswith("<") and not file.startswith("<ipython")):
        return True
    return file.startswith(_STDLIB) and not any(name in file for name in _PACKAGES)


def shown_path(file: str) -> str:
    """Return `file` relative to the working folder where it lies below it."""
    try:
        relative = os.path.relpath(file)
    except ValueError:
        return file
    return os.path.normpath(file) if relative.startswith(os.pardir) else relative
