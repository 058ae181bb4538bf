"""The `workbench` command: arguments in, one sub-command run, an exit code out."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import traceback
from collections.abc import Sequence
from types import ModuleType
from typing import Any, NoReturn

from workbench.commands import COMMANDS, load_command
from workbench.errors import WorkbenchError
from workbench.exit_codes import INTERRUPTED, ExitCode, epilog
from workbench.output import Output

_SUMMARY: dict[str, str] = {
    "doctor": "say what this machine can run, and what stands in the way",
    "show": "list what a checkpoint, or output of neuron-ls or neuron-monitor, holds",
    "plan": "bytes of one rank, before a byte of data is read",
    "run": "step through a model and compare two sides",
    "verify": "check a checkpoint's model against golden data",
    "memory": "record every allocation of a run",
    "breaks": "list the graph breaks of a run, with their source lines",
    "bisect": "narrow a compile failure to the smallest part that still fails",
    "replay": "run recorded sessions again and compare the findings",
    "fixtures": "write a tiny checkpoint in the released layout",
    "cases": "run handed case folders through the public interface",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one sub-command and return its exit code; argument errors exit with 2.

    With `--json` exactly one document goes to stdout, whatever happens: what the code under observation prints goes to
    stderr then, and wrong arguments are told in a document too.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    name = next((word for word in arguments if not word.startswith("-")), None)
    as_json = any(word == "--json" for word in arguments)
    out = Output(name or "", as_json=as_json)
    try:
        module = load_command(name) if name in COMMANDS else None
        parser = build_parser(module, name)
        try:
            args = parser.parse_args(arguments)
        except _WrongArguments as error:
            error.parser.print_usage(sys.stderr)
            out.put("error", {"type": "WrongArguments", "message": str(error)})
            _finish(out, ExitCode.WRONG_USE)
            parser.exit(ExitCode.WRONG_USE, f"{error.parser.prog}: error: {error}\n")
        if module is None:
            parser.print_help()
            return ExitCode.WRONG_USE
        with contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext():
            code = _run(module, args, out)
    except KeyboardInterrupt:
        # Ctrl-C while Python still imports what the command needs.
        code = INTERRUPTED
    return _finish(out, code)


class _WrongArguments(Exception):
    """Arguments the parser refuses; with the parser, whose usage is shown."""

    def __init__(self, parser: argparse.ArgumentParser, message: str) -> None:
        super().__init__(message)
        self.parser = parser


class _Parser(argparse.ArgumentParser):
    """A parser that leaves it to `main` how wrong arguments are told; a long option is given in full."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        raise _WrongArguments(self, message)


def build_parser(module: ModuleType | None = None, name: str | None = None) -> argparse.ArgumentParser:
    """Return the argument parser, with the arguments of one sub-command filled in."""
    parser = _Parser(
        prog="workbench", description="Bring-up workbench for DeepSeek-V4.1-Flash on Trainium2.", epilog=epilog()
    )
    commands = parser.add_subparsers(metavar="COMMAND", dest="command")
    for command in COMMANDS:
        text = _SUMMARY[command]
        child = commands.add_parser(command, help=text, description=text[0].upper() + text[1:] + ".", epilog=epilog())
        child.add_argument("--json", action="store_true", help="write one JSON document instead of text")
        if module is not None and command == name:
            module.add_arguments(child)
    return parser


def _run(module: ModuleType, args: argparse.Namespace, out: Output) -> int:
    from port.errors import PortError

    try:
        return int(module.run(args, out))
    except (WorkbenchError, PortError) as error:
        return _failed(out, error, int(getattr(error, "exit_code", ExitCode.WRONG_USE)))
    except BrokenPipeError:
        return _reader_gone()
    except KeyboardInterrupt:
        out.progress("interrupted; what had been recorded is kept")
        return INTERRUPTED
    except OSError as error:
        # A folder that cannot be written, a full disk: the user's to mend, and the message names the file.
        return _failed(out, error, ExitCode.WRONG_USE)
    except (Exception, SystemExit) as error:
        # Ours or the target's: never the status of a difference, and never a document that does not come.
        out.progress(traceback.format_exc().rstrip())
        return _failed(out, error, ExitCode.TARGET_CRASHED)


def _failed(out: Output, error: BaseException, code: int) -> int:
    kind = type(error).__name__.lstrip("_")
    out.put("error", {"type": kind, "message": str(error)})
    out.progress(f"{kind}: {error}")
    return int(code)


def _finish(out: Output, code: int) -> int:
    try:
        out.finish(int(code))
    except BrokenPipeError:
        _reader_gone()
    except OSError as error:
        _reader_gone()
        return _failed(out, error, ExitCode.WRONG_USE)
    return int(code)


def _reader_gone() -> int:
    # The reader of our output went away (as in `workbench show ... | head`): nothing is left to tell it. What is still
    # buffered for it goes nowhere, so that the interpreter does not complain of it at its end.
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.__stdout__.fileno() if sys.__stdout__ is not None else 1)
    return int(ExitCode.OK)
