"""One trial: write what is kept, compile it in a child, and record how that ended; or take the answer from before."""

from __future__ import annotations

import dataclasses
import hashlib
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil

from workbench.bisection.signatures import signature_text
from workbench.bisection.subjects.base import Subject
from workbench.bisection.trial_cache import TrialCache
from workbench.bisection.trial_client import TrialServer
from workbench.compilers.base import CompileOutcome, Compiler
from workbench.records import Stamp
from workbench.records.compiling import CompileTrial, FailureSignature, Outcome
from workbench.units import count_text, seconds_text

Sink = Callable[[CompileTrial], CompileTrial | None]
Progress = Callable[[str], None]

# Left to the machine, so that a trial which takes all it can get does not take the user's session along.
_MEMORY_SHARE = 0.8


class TrialRunner:
    """Runs trials and remembers them.

    Args:
        scratch: folder for what is compiled; one folder a trial, removed after it.
        cache: answers of before.
        sink: given every trial as it ends, cached or not; a journal's `append` for example. Returns the trial as it was
            kept, or None.
        progress: told a line for every trial.
        time_limit_s: seconds a trial may take.
        memory_limit_bytes: resident bytes a trial's processes may take together; most of what is free when None.

    Attributes:
        trials: every trial of this search, in order.
        leftover_processes: processes of trials that could not be ended.
    """

    def __init__(
        self,
        scratch: Path,
        *,
        cache: TrialCache,
        time_limit_s: float,
        memory_limit_bytes: int | None = None,
        sink: Sink | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.trials: list[CompileTrial] = []
        self.leftover_processes = 0
        self.time_limit_s = time_limit_s
        self._scratch, self._cache, self._sink, self._progress = scratch, cache, sink, progress
        self._memory_limit = memory_limit_bytes
        self._memory_default = int(psutil.virtual_memory().available * _MEMORY_SHARE)
        self._taken: Counter[str] = Counter()
        self._servers: dict[tuple[str, ...], TrialServer] = {}

    def run(self, compiler: Compiler, subject: Subject, kept: Sequence[int], phase: str) -> CompileTrial:
        """Return one trial of a set; asked again, it is run again, or the next answer of before is taken."""
        digest = self._digest(compiler, subject, kept)
        former = self._usable(digest)
        number = self._taken[digest]
        self._taken[digest] += 1
        names = tuple(subject.items[index] for index in kept)
        if number < len(former):
            return self._keep(_as_cached(former[number], names, phase))
        outcome = self._compile(compiler, subject, kept)
        trial = CompileTrial(
            stamp=Stamp(phase="compile"),
            subject=names,
            subject_digest=digest,
            backend=compiler.name,
            simulated=compiler.simulated,
            outcome=outcome.outcome,
            signature=outcome.signature,
            exit_status=outcome.exit_status,
            trial_s=outcome.elapsed_s,
            error=outcome.error,
            cached=False,
            phase_of_search=phase,
        )
        self.leftover_processes += outcome.survivors
        self._cache.add(trial)
        return self._keep(trial)

    def mark(
        self,
        compiler: Compiler,
        subject: Subject,
        kept: Sequence[int],
        outcome: Outcome,
        signature: FailureSignature | None,
    ) -> CompileTrial:
        """Keep an answer the user gave by hand in the place of a trial."""
        digest = self._digest(compiler, subject, kept)
        self._taken[digest] += 1
        trial = CompileTrial(
            stamp=Stamp(phase="compile"),
            subject=tuple(subject.items[index] for index in kept),
            subject_digest=digest,
            backend=compiler.name,
            simulated=compiler.simulated,
            outcome=outcome,
            signature=signature,
            exit_status=None,
            trial_s=0.0,
            error="",
            cached=False,
            phase_of_search="user",
        )
        self._cache.add(trial)
        return self._keep(trial)

    def known(self, compiler: Compiler, subject: Subject, kept: Sequence[int]) -> list[CompileTrial]:
        """Return the answers of before that are left for a set."""
        digest = self._digest(compiler, subject, kept)
        return self._usable(digest)[self._taken[digest] :]

    def forget(self) -> None:
        """Begin to count runs of each set anew, as a search that starts over does."""
        self._taken.clear()

    def living(self) -> int:
        """Return how many processes of trials are alive."""
        return sum(server.living() for server in self._servers.values())

    def close(self) -> None:
        """End the servers and whatever runs below them."""
        while self._servers:
            self._servers.popitem()[1].close()

    def _compile(self, compiler: Compiler, subject: Subject, kept: Sequence[int]) -> CompileOutcome:
        folder = self._scratch / f"trial-{len(self.trials):05d}"
        folder.mkdir(parents=True)
        try:
            request = compiler.request(subject.write(kept, folder), folder)
            limit = self._memory_default if self._memory_limit is None else self._memory_limit
            report = self._server(compiler).run(request, timeout_s=self.time_limit_s, memory_limit_bytes=limit)
            return compiler.outcome(report)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _server(self, compiler: Compiler) -> TrialServer:
        if compiler.preload not in self._servers:
            shared = self._scratch / "shared"
            self._servers[compiler.preload] = TrialServer(compiler.preload, own_caches(shared))
        return self._servers[compiler.preload]

    def _digest(self, compiler: Compiler, subject: Subject, kept: Sequence[int]) -> str:
        parts = (compiler.identity, subject.kind, str(self._memory_limit), subject.content(kept))
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()

    def _usable(self, digest: str) -> list[CompileTrial]:
        # A trial ended at another time limit, or never seen to its end, says nothing about this one.
        return [
            trial
            for trial in self._cache.runs(digest)
            if not (trial.outcome == "timeout" and trial.trial_s < self.time_limit_s)
            and not (trial.outcome != "timeout" and trial.trial_s > self.time_limit_s * _STARVED_MARGIN)
            and not (trial.outcome == "skipped" and trial.phase_of_search != "user")
        ]

    def _keep(self, trial: CompileTrial) -> CompileTrial:
        kept = self._sink(trial) if self._sink is not None else None
        trial = trial if kept is None else kept
        self.trials.append(trial)
        if self._progress is not None:
            self._progress(trial_text(len(self.trials), trial))
        return trial


# A trial that waited for a processor may have taken longer than its limit and still be within it.
_STARVED_MARGIN = 8.0


def trial_text(number: int, trial: CompileTrial) -> str:
    """Return one trial as a line of progress."""
    ended = "passes" if trial.outcome == "ok" else signature_text(trial.signature) if trial.signature else trial.outcome
    took = "from before" if trial.cached else seconds_text(trial.trial_s)
    simulated = "SIMULATED, " if trial.simulated else ""
    kept = count_text(len(trial.subject), "item")
    return f"trial {number} ({trial.phase_of_search}): {kept}: {ended} ({simulated}{took})"


def own_caches(folder: Path) -> dict[str, str]:
    """Return the variables that keep compilers' caches inside `folder` and make failures raise.

    A cache that outlives the bisection could answer with a failure, or a success, of another compiler. Fallbacks that
    run a graph eagerly when it does not compile would pass for success. Names as documented for torch-neuronx and
    for torch 2.13; not measured on a device.
    """
    return {
        "TMPDIR": _made(folder / "tmp"),
        "TORCHINDUCTOR_CACHE_DIR": _made(folder / "inductor"),
        "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1",
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        "TORCH_NEURONX_NEFF_CACHE_DIR": _made(folder / "neff"),
        "TORCH_NEURONX_NEFF_LOCAL_CACHE_DIR": _made(folder / "neff-locks"),
        "TORCH_NEURONX_NEFF_DISABLE_CACHE": "1",
        "TORCH_NEURONX_DEBUG_DIR": _made(folder / "neuron"),
        "TORCH_NEURONX_DISABLE_FALLBACK_EXECUTION": "1",
        "TORCH_NEURONX_FALLBACK_ONLY_FOR_UNIMPLEMENTED_OPS": "1",
        "NEURON_COMPILE_CACHE_URL": _made(folder / "neuron-compile-cache"),
    }


def _made(folder: Path) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    return str(folder)


def _as_cached(trial: CompileTrial, names: tuple[str, ...], phase: str) -> CompileTrial:
    by_hand = trial.phase_of_search == "user"
    return dataclasses.replace(
        trial, stamp=Stamp(phase="compile"), subject=names, cached=True, phase_of_search="user" if by_hand else phase
    )
