"""The end of a bisection: a script that shows the failure by itself, and a report to paste into a bug tracker.

The script imports torch alone, or nothing but the standard library where a file is compiled by a command. Whether it
really shows the failure is tried before it is handed over, and the report says so.
"""

from __future__ import annotations

import base64
import platform
import re
import shlex
import sys
import tempfile
import zlib
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from workbench.bisection.compile_bisection import CompileBisection
from workbench.bisection.findings import BisectionFindings
from workbench.bisection.signatures import read_failure, signature_text
from workbench.bisection.subjects.graph import GraphSubject
from workbench.bisection.subjects.program import extract, program_text
from workbench.bisection.trial_client import ChildReport, CommandRequest, TrialServer
from workbench.compilers.base import Compiler
from workbench.compilers.command import FILE_WORD, CommandCompiler, PredicateCompiler
from workbench.compilers.dynamo import PLAIN, DynamoCompiler
from workbench.compilers.planted import EXIT_STATUS, PlantedCompiler, strike_text
from workbench.errors import PlanError
from workbench.records.compiling import FailureSignature
from workbench.units import count_text

SCRIPT, REPORT = "repro.py", "report.md"
_START_S = 120.0


def write_repro(bisection: CompileBisection, findings: BisectionFindings, folder: Path) -> Path:
    """Write `repro.py` and `report.md` and return the path of the script.

    The script is run once. Where made-up input values do not show the failure, the exact ones are written into it.

    Raises:
        PlanError: nothing failed, so there is nothing to show.
    """
    signature = findings.result.signature
    if signature is None:
        raise PlanError("repro: expected a failure to write down, found none")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / SCRIPT
    tried = False
    for exact in (False, True):
        path.write_text(repro_text(bisection, exact=exact), encoding="utf-8")
        tried = shows(path, signature, time_limit_s=_START_S + bisection.time_limit_s)
        if tried or not isinstance(bisection.subject, GraphSubject):
            break
    (folder / REPORT).write_text(report_text(bisection, findings, shown=tried), encoding="utf-8")
    return path


def repro_text(bisection: CompileBisection, *, exact: bool = False) -> str:
    """Return the script for the smallest failing set known.

    Args:
        bisection: at its end, or stopped.
        exact: write the captured input values into it.
    """
    subject, kept, compiler = bisection.subject, bisection.smallest(), bisection.compiler
    head = _head(bisection)
    if isinstance(subject, GraphSubject):
        program = extract(subject.graph, subject.nodes(kept))
        text = program_text(subject.graph, program)
        values = _embedded(subject.values, tuple(program.inputs)) if exact else ""
        return f"{head}\n{text}\n\n{values}{_program_main(compiler, subject.operations(kept), text)}"
    return f"{head}\n{_lines_main(compiler, subject.content(kept))}"


def shows(path: Path, signature: FailureSignature, *, time_limit_s: float) -> bool:
    """Run a script in a child process and say whether it shows the failure."""
    with tempfile.TemporaryDirectory(prefix="workbench-repro-") as scratch, TrialServer() as server:
        request = CommandRequest(
            argv=(sys.executable, str(path.resolve())), cwd=str(Path.cwd()), environment={"TMPDIR": scratch}
        )
        return _is_shown(server.run(request, timeout_s=time_limit_s), signature)


def report_text(bisection: CompileBisection, findings: BisectionFindings, *, shown: bool) -> str:
    """Return the report: what fails, with what, how to see it, and how sure that is."""
    result, simulated = findings.result, findings.result.simulated
    error = next((trial.error for trial in reversed(findings.trials) if trial.signature == result.signature), "")
    kept = bisection.smallest()
    parts = count_text(len(kept), result.level.removesuffix("s"))
    lines = [f"# {signature_text(result.signature)}, shown by {parts}", ""]
    if simulated:
        lines += ["**SIMULATED: the fault was planted for practice; no compiler failed. Do not file this.**", ""]
    lines += [f"{bisection.compiler.name} fails on the part below.", "", "## Smallest failing part", ""]
    lines += [f"- `{name}`" for name in result.culprit]
    lines += ["", "## Failure", "", "```", _without_paths(error) or "(it printed nothing)", "```", ""]
    exit_status = next((t.exit_status for t in findings.trials if t.signature == result.signature), None)
    lines += [f"exit status: {exit_status if exit_status is not None else 'none, it was ended at its limit'}", ""]
    word = "shows" if shown else "did NOT show, when it was tried,"
    lines += ["## How to see it", "", f"    python {SCRIPT}", "", f"`{SCRIPT}` {word} the failure.", ""]
    proof = "proven: without any single one of them the failure is gone" if result.minimal else "not proven minimal"
    run, before = (sum(getattr(one, name) for one in findings.results) for name in ("trials", "cached_trials"))
    runs = f"{count_text(run, 'trial')} run, {before} taken from before"
    lines += ["## How it was found", "", f"- {proof}; {runs}"]
    if result.flaky:
        lines.append(f"- flaky: the whole failed in {result.failing_runs} of {result.whole_runs} runs")
    lines += [f"- {result.note}"] if result.note else []
    lines += ["", "## Versions", "", *(f"- {name} {number}" for name, number in _versions().items()), ""]
    return "\n".join(lines)


def _is_shown(report: ChildReport, signature: FailureSignature) -> bool:
    outcome, found = read_failure(report)
    if signature.outcome in ("timeout", "crash", "killed"):
        return outcome == signature.outcome and found is not None and found.signal == signature.signal
    return report.exit_status not in (0, None) and (signature.code is None or signature.code in report.output)


def _head(bisection: CompileBisection) -> str:
    followed = signature_text(bisection.followed)
    simulated = "SIMULATED: the fault is planted, no compiler failed.\n" if bisection.compiler.simulated else ""
    names = "\n".join(f"    {name}" for name in (bisection.subject.items[index] for index in bisection.smallest()))
    title = f"Shows a failure of {bisection.compiler.name}."
    return f'r"""{title}\n\n{simulated}Expected: {followed}\nNeeded together:\n{names}\n"""\n'


def _program_main(compiler: Compiler, operations: tuple[str, ...], text: str) -> str:
    if isinstance(compiler, DynamoCompiler):
        call = "program"
        if compiler.backend != PLAIN:
            call = f'torch.compile(program, backend="{compiler.backend}", dynamic=False, fullgraph=True)'
        return _DYNAMO_MAIN.format(call=call)
    if isinstance(compiler, PlantedCompiler):
        return _planted_main(compiler, operations)
    return _command_main(compiler, text)


def _lines_main(compiler: Compiler, content: str) -> str:
    if isinstance(compiler, PlantedCompiler):
        return _planted_main(compiler, tuple(content.split("\n")[:-1]))
    return _command_main(compiler, content)


def _planted_main(compiler: PlantedCompiler, operations: tuple[str, ...]) -> str:
    rules = [(rule.kind, rule.operations, strike_text(rule)) for rule in compiler.rules]
    return _PLANTED_MAIN.format(operations=list(operations), rules=rules, status=EXIT_STATUS)


def _command_main(compiler: Compiler, content: str) -> str:
    if isinstance(compiler, CommandCompiler):
        words = shlex.split(compiler.name)
        words = words if any(FILE_WORD in word for word in words) else [*words, FILE_WORD]
        return _COMMAND_MAIN.format(content=content, words=words)
    if isinstance(compiler, PredicateCompiler):
        return _PREDICATE_MAIN.format(content=content, file=compiler.file, function=compiler.function)
    raise PlanError(f"repro: no script is known for the compiler {compiler.name!r}")


def _embedded(values: Path | None, names: tuple[str, ...]) -> str:
    """Return `PACKED`, the captured values of the inputs, as text that is unpacked with the standard library."""
    if values is None:
        return ""
    from workbench.bisection.subjects.values import read_values

    packed = {
        name: (dtype, shape, base64.b85encode(zlib.compress(data, 9)).decode())
        for name, (dtype, shape, data) in read_values(values, names).items()
    }
    entries = "".join(f"    {name!r}: {entry!r},\n" for name, entry in packed.items())
    return f"PACKED = {{\n{entries}}}\n\n\n{_UNPACK}\n\n"


def _versions() -> Mapping[str, str]:
    found = {"python": platform.python_version(), "platform": platform.platform(terse=True)}
    for name in ("torch", "torch-neuronx", "neuronx-cc"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _without_paths(text: str) -> str:
    """Return an error's text with folders of this machine left out; the reader of a report has no use for them."""
    return re.sub(r"(?<![\w.])/(?:[\w.+-]+/)+", "", text)


_DYNAMO_MAIN = """\
def main():
    compiled = {call}
    exact = unpack() if "PACKED" in globals() else None
    with torch.set_grad_enabled(GRAD_ENABLED):
        results = compiled(*example_inputs(exact))
    # A device fails at the latest when a result is read.
    for result in results:
        if isinstance(result, torch.Tensor):
            result.cpu()
    print("compiled and ran: the failure does not show here")


if __name__ == "__main__":
    main()
"""

_PLANTED_MAIN = """\
import os
import random
import signal
import sys

OPERATIONS = {operations!r}
RULES = {rules!r}


def plain(name):
    parts = name.strip().split(".")
    bare = parts[1] if parts[0] == "aten" and len(parts) > 1 else parts[-1]
    return bare.lower().replace("-", "_")


def main():
    print("SIMULATED compiler with planted faults; this is not neuronx-cc", flush=True)
    present = {{plain(name) for name in OPERATIONS}}
    for kind, needed, text in RULES:
        if not {{plain(name) for name in needed}} <= present:
            continue
        if kind == "hangs":
            signal.pause()
        if kind == "crashes":
            os.kill(os.getpid(), signal.SIGSEGV)
        if kind != "wavers" or random.random() < 0.5:
            print(text, file=sys.stderr)
            sys.exit({status})
    print("Compiler status PASS")


if __name__ == "__main__":
    main()
"""

_COMMAND_MAIN = """\
import os
import subprocess
import sys
import tempfile

# Words of the command; run this where its files are.
COMMAND = {words!r}
CONTENT = {content!r}


def main():
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "part.py" if CONTENT.startswith("import") else "part.txt")
        with open(file, "w", encoding="utf-8") as out:
            out.write(CONTENT)
        status = subprocess.run([word.replace("{{file}}", file) for word in COMMAND], check=False).returncode
    if status < 0:
        os.kill(os.getpid(), -status)
    sys.exit(status)


if __name__ == "__main__":
    main()
"""

_PREDICATE_MAIN = """\
import importlib.util
import os
import sys
import tempfile

# The function that compiles; run this where its file is.
FILE, FUNCTION = {file!r}, {function!r}
CONTENT = {content!r}


def main():
    spec = importlib.util.spec_from_file_location("predicate", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "part.py" if CONTENT.startswith("import") else "part.txt")
        with open(file, "w", encoding="utf-8") as out:
            out.write(CONTENT)
        answer = getattr(module, FUNCTION)(file)
    if answer is not None and answer is not True:
        sys.exit(answer if isinstance(answer, str) else f"{{FUNCTION}} returned {{answer!r}}")


if __name__ == "__main__":
    main()
"""

_UNPACK = '''\
def unpack():
    """Return the captured input values."""
    import base64
    import zlib

    found = {}
    for name, (dtype, shape, text) in PACKED.items():
        data = bytearray(zlib.decompress(base64.b85decode(text)))
        flat = torch.frombuffer(data, dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
        found[name] = flat.view(getattr(torch, dtype)).reshape(shape)
    return found
'''
