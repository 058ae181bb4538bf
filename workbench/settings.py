"""The one place of this package that touches the process environment, for itself and for the processes it starts."""

from __future__ import annotations

import os
from collections.abc import Mapping


def child_environment(overrides: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of this process with some variables replaced, for a process to be started."""
    return {**os.environ, **overrides}


def put_environment(overrides: Mapping[str, str]) -> None:
    """Set variables in this process; for the child of a trial, which is nobody else's."""
    os.environ.update(overrides)
