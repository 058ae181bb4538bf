"""One module per sub-command: `NAME`, `HELP`, `add_arguments(parser)` and `run(args, out) -> ExitCode`.

A command reads its arguments, calls the same public functions a notebook calls, and prints a view. `run` gets an
`Output` and never prints by itself; exceptions of the `WorkbenchError` and `PortError` trees become one message and
their exit code in `workbench.cli`.
"""

from importlib import import_module
from types import ModuleType

COMMANDS: tuple[str, ...] = (
    "doctor",
    "show",
    "plan",
    "run",
    "verify",
    "memory",
    "breaks",
    "bisect",
    "replay",
    "fixtures",
    "cases",
)


def load_command(name: str) -> ModuleType:
    """Return the module of one sub-command; imported only when asked for, so that `--help` stays fast."""
    return import_module(f"workbench.commands.{name}")
