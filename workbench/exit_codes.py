"""The exit codes of the command line, the same in every sub-command."""

from enum import IntEnum


class ExitCode(IntEnum):
    """What the process status of a `workbench` command means."""

    OK = 0
    DIFFERENCES = 1
    WRONG_USE = 2
    ENVIRONMENT = 3
    TIMEOUT = 4
    TARGET_CRASHED = 5
    SKIPPED = 125


INTERRUPTED = 130
"""What a shell reports of a process ended by Ctrl-C; a command that was interrupted gives the same."""

MEANING: dict[ExitCode, str] = {
    ExitCode.OK: "as expected",
    ExitCode.DIFFERENCES: "findings differ",
    ExitCode.WRONG_USE: "wrong use or unreadable input",
    ExitCode.ENVIRONMENT: "environment not able (for example no NeuronCore)",
    ExitCode.TIMEOUT: "timeout",
    ExitCode.TARGET_CRASHED: "the target crashed",
    ExitCode.SKIPPED: "skipped",
}


def epilog() -> str:
    """Return the table of exit codes shown at the end of every `--help`."""
    return "exit codes: " + "; ".join(f"{int(code)} {text}" for code, text in MEANING.items())
