"""Any program as a compiler: its exit status and its output say what happened. No shell is involved."""

from __future__ import annotations

import hashlib
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from workbench.bisection.subjects.base import SubjectKind, WrittenSubject
from workbench.bisection.trial_client import CallRequest, ChildReport, CommandRequest
from workbench.compilers.base import CompileOutcome, Compiler, plain_outcome
from workbench.errors import PlanError

FILE_WORD = "{file}"
"""Stands for the file to compile; without it the file is the last argument."""


class CommandCompiler:
    """A command line that is given the file to compile.

    Args:
        argv: program and arguments; `{file}` in them is replaced by the file.

    Attributes:
        simulated: False; what a user's program is, we cannot know.
    """

    simulated = False
    reads: frozenset[SubjectKind] = frozenset({"lines", "program"})
    preload: tuple[str, ...] = ("workbench.compilers.command",)

    def __init__(self, argv: Sequence[str]) -> None:
        if not argv:
            raise PlanError("compiler: expected a program and its arguments, found an empty command")
        words = [str(word) for word in argv]
        # The trial runs in a folder of its own, so paths of files that exist here are made absolute.
        self._argv = tuple(str(Path(word).resolve()) if _is_path(word) else word for word in words)
        self.name = " ".join(words)

    @property
    def identity(self) -> str:
        """The words, and the content of every file named among them."""
        digests = [_file_digest(Path(word)) for word in self._argv if Path(word).is_file()]
        return "\n".join(["command", *self._argv, *digests])

    def check(self) -> None:
        """Say that the program is there.

        Raises:
            PlanError: it is not.
        """
        if shutil.which(self._argv[0]) is None:
            raise PlanError(
                f"compiler: expected a program on the path, found none called {self._argv[0]!r}; "
                "give its path, or another compiler"
            )

    def request(self, subject: WrittenSubject, folder: Path) -> CommandRequest:
        """Return the command line for one file."""
        file = str(subject.file)
        argv = tuple(word.replace(FILE_WORD, file) for word in self._argv)
        return CommandRequest(argv=argv if argv != self._argv else (*argv, file), cwd=str(folder))

    def outcome(self, report: ChildReport) -> CompileOutcome:
        """Return what status and output mean."""
        return plain_outcome(report)

    def rungs(self) -> tuple[Compiler, ...]:
        """Nothing stands below a program."""
        return (self,)


class PredicateCompiler:
    """A Python function as a compiler: `file.py:function`, called with the path of the file to compile.

    None or True means compiled; False, an exception or the text of an error means failed. It runs in the child, which
    it may crash or hang.
    """

    simulated = False
    reads: frozenset[SubjectKind] = frozenset({"lines", "program"})
    preload: tuple[str, ...] = ("workbench.compilers.command",)

    def __init__(self, file: str | Path, function: str) -> None:
        self._file, self._function = Path(file).resolve(), function
        self.file, self.function = str(file), function
        self.name = f"{Path(file).name}:{function}"
        if self._file.suffix != ".py" or not self._file.is_file():
            raise PlanError(
                f"compiler: expected a Python file, found {'no file' if not self._file.exists() else 'another'}: {file}"
            )

    @property
    def identity(self) -> str:
        """The function's name and the content of its file."""
        return f"predicate\n{self._function}\n{_file_digest(self._file)}"

    def check(self) -> None:
        """The file was looked at when this was made; whether it holds the function shows in the first trial."""

    def request(self, subject: WrittenSubject, folder: Path) -> CallRequest:
        """Return the call for one file."""
        argument = {"file": str(self._file), "function": self._function, "subject": str(subject.file)}
        return CallRequest(function="workbench.compilers.command:call_predicate", argument=argument, cwd=str(folder))

    def outcome(self, report: ChildReport) -> CompileOutcome:
        """Return what the answer, or how it came to none, means."""
        return plain_outcome(report)

    def rungs(self) -> tuple[Compiler, ...]:
        """Nothing stands below a function."""
        return (self,)


def call_predicate(argument: dict[str, str]) -> None:
    """Call the user's function in the child of a trial; ends the child with 1 where it says that it failed."""
    import importlib.util

    file, name = argument["file"], argument["function"]
    spec = importlib.util.spec_from_file_location("workbench_predicate", file)
    assert spec is not None, "a .py file has a spec"
    assert spec.loader is not None, "a .py file has a loader"
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    function = getattr(module, name, None)
    if not callable(function):
        sys.stderr.write(f"usage: {file} has no function called {name!r}\n")
        sys.exit(2)
    answer = function(argument["subject"])
    if answer is None or answer is True:
        return
    sys.exit(answer if isinstance(answer, str) else f"{name} returned {answer!r}")


def _is_path(word: str) -> bool:
    # A bare word is a program on the path or a plain argument, even where a file of that name lies about.
    return any(mark in word for mark in "/\\.") and Path(word).is_file()


def _file_digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
