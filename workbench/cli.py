"""The `workbench` command: arguments in, one sub-command run, an exit code out."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from types import ModuleType

from workbench.commands import COMMANDS, load_command
from workbench.errors import WorkbenchError
from workbench.exit_codes import ExitCode, epilog
from workbench.output import Output

_SUMMARY: dict[str, str] = {
    "doctor": "say what this machine can run, and what stands in the way",
    "show": "list what a checkpoint holds",
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
    """Run one sub-command and return its exit code; argument errors exit with 2."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    name = next((word for word in arguments if not word.startswith("-")), None)
    module = load_command(name) if name in COMMANDS else None
    parser = build_parser(module, name)
    args = parser.parse_args(arguments)
    if module is None:
        parser.print_help()
        return ExitCode.WRONG_USE
    out = Output(str(name), as_json=args.json)
    code = _run(module, args, out)
    out.finish(int(code))
    return int(code)


def build_parser(module: ModuleType | None = None, name: str | None = None) -> argparse.ArgumentParser:
    """Return the argument parser, with the arguments of one sub-command filled in."""
    parser = argparse.ArgumentParser(
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
        out.put("error", {"type": type(error).__name__, "message": str(error)})
        out.progress(f"{type(error).__name__}: {error}")
        return int(getattr(error, "exit_code", ExitCode.WRONG_USE))
    except BrokenPipeError:
        # The reader of our output went away (as in `workbench show ... | head`): nothing is left to tell it.
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - kept until the interpreter ends
        return int(ExitCode.OK)
    except KeyboardInterrupt:
        out.progress("interrupted; what had been recorded is kept")
        return 130
