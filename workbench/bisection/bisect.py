"""One call from a failure to its smallest part: `bisect_compile(target, args, compiler="inductor")`.

The target is a graph file with one operation a line, or anything callable; of a callable the graphs Dynamo captures are
narrowed, by layer, by module and by node. Trials run in child processes.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.bisection.compile_bisection import TIME_LIMIT_S, CompileBisection
from workbench.bisection.findings import BisectionFindings
from workbench.bisection.repetition import Repetition
from workbench.bisection.repro import write_repro
from workbench.bisection.subjects.base import Subject
from workbench.bisection.subjects.lines import LineSubject
from workbench.bisection.trial_cache import TrialCache
from workbench.bisection.trials import Progress
from workbench.compilers.base import Compiler
from workbench.compilers.names import open_compiler
from workbench.errors import PlanError

if TYPE_CHECKING:
    from torch import nn

Target = Callable[..., object] | str | Path | Subject
_WITH_REPRO = ("found", "undecided", "interrupted")
GRAPH_LEVELS: tuple[str, ...] = ("layers", "nodes")


def bisect_compile(
    target: Target,
    args: Sequence[object] = (),
    kwargs: Mapping[str, object] | None = None,
    *,
    compiler: str | Sequence[str] | Compiler,
    level: str | Sequence[str] | None = None,
    sink: Callable[[Any], Any] | None = None,
    progress: Progress | None = None,
    cache: TrialCache | str | Path | None = None,
    time_limit_s: float = TIME_LIMIT_S,
    memory_limit_bytes: int | None = None,
    repetition: Repetition | None = None,
    module: nn.Module | None = None,
    grad: bool | None = None,
    question: str = "",
    repro: str | Path | None = None,
) -> BisectionFindings:
    """Return the smallest part of a target that still fails to compile, with every trial.

    Args:
        target: path of a graph file, a module or callable, or a subject of your own.
        args: what a callable is called with; copied.
        kwargs: keyword arguments; copied.
        compiler: text as in `compilers.names.FORMS`, the words of a command, or a driver.
        level: one or several of "layers", "modules", "nodes", coarse to fine, for a callable; "lines" for a file.
        sink: given every trial as it ends and every result, as a journal's `append`; may return what it kept.
        progress: told a line for every trial.
        cache: file of trials (made when absent, appended to; a journal is only read), or an opened cache.
        time_limit_s: seconds a trial may take.
        memory_limit_bytes: resident bytes a trial's processes may take; most of what is free when None.
        repetition: how often sets are run before an answer counts.
        module: root of the module paths, for a callable that wraps one.
        grad: whether gradients are recorded; as it is now when None.
        question: what is searched, in words.
        repro: folder for `repro.py` and `report.md`, None to write none.

    Raises:
        DeviceError: this machine lacks what the compiler needs.
        PlanError: a target, compiler or level that does not fit.
        TargetCrash: the callable itself raises.
    """
    with open_bisection(
        target,
        args,
        kwargs,
        compiler=compiler,
        level=level,
        sink=sink,
        progress=progress,
        cache=cache,
        time_limit_s=time_limit_s,
        memory_limit_bytes=memory_limit_bytes,
        repetition=repetition,
        module=module,
        grad=grad,
        question=question,
    ) as bisection:
        return conclude(bisection, bisection.run(), sink=sink, repro=repro)


@contextmanager
def open_bisection(
    target: Target,
    args: Sequence[object] = (),
    kwargs: Mapping[str, object] | None = None,
    *,
    compiler: str | Sequence[str] | Compiler,
    level: str | Sequence[str] | None = None,
    module: nn.Module | None = None,
    grad: bool | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> Iterator[CompileBisection]:
    """Give a bisection to be driven by hand: step, mark, skip, undo, stop; arguments as of `bisect_compile`."""
    driver = open_compiler(compiler)
    driver.check()
    folder = Path(tempfile.mkdtemp(prefix="workbench-graphs-"))
    try:
        subjects, levels = _subjects(target, args, kwargs, level, folder, module, grad, progress)
        with CompileBisection(
            subjects[0], driver, levels=levels, alternatives=subjects[1:], progress=progress, **options
        ) as bisection:
            yield bisection
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def conclude(
    bisection: CompileBisection,
    findings: BisectionFindings,
    *,
    sink: Callable[[Any], Any] | None = None,
    repro: str | Path | None = None,
) -> BisectionFindings:
    """Write what was asked for, hand the results on, and return the findings with both.

    Args:
        bisection: at its end.
        findings: of it.
        sink: given every result.
        repro: folder for `repro.py` and `report.md`; nothing is written where nothing failed.
    """
    import dataclasses

    results = list(findings.results)
    if repro is not None and results[-1].signature is not None and results[-1].verdict in _WITH_REPRO:
        path = write_repro(bisection, findings, Path(repro))
        results[-1] = dataclasses.replace(results[-1], repro=str(path))
    if sink is not None:
        results = [kept if (kept := sink(result)) is not None else result for result in results]
    return dataclasses.replace(findings, results=tuple(results))


def _subjects(
    target: Target,
    args: Sequence[object],
    kwargs: Mapping[str, object] | None,
    level: str | Sequence[str] | None,
    folder: Path,
    module: nn.Module | None,
    grad: bool | None,
    progress: Progress | None,
) -> tuple[list[Subject], tuple[str, ...]]:
    levels = None if level is None else (level,) if isinstance(level, str) else tuple(level)
    if isinstance(target, (str, Path)):
        return [LineSubject.read(target)], levels or ("lines",)
    if not callable(target):
        if not hasattr(target, "refined"):
            raise PlanError(f"target: expected a path, a callable or a subject, found {type(target).__name__}")
        return [target], levels or (target.level,)
    from workbench.bisection.subjects.capture import capture
    from workbench.bisection.subjects.graph import LEVELS, GraphSubject

    levels = levels or GRAPH_LEVELS
    unknown = [name for name in levels if name not in LEVELS]
    if unknown or list(levels) != sorted(levels, key=LEVELS.index):
        raise PlanError(f"level: expected some of {', '.join(LEVELS)}, coarse to fine; found {', '.join(levels)}")
    if progress is not None:
        progress("capturing the graphs of the call")
    captured = capture(target, args, kwargs, folder=folder, module=module, grad=grad)
    return [GraphSubject(*pair) for pair in zip(captured.graphs, captured.values, strict=True)], levels
