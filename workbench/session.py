"""The one object that changes: a plan's two sides, a cursor, and the journal of what was asked and found.

    with Session(Plan(checkpoint="fixtures/tiny_v41", inputs=Inputs(prompt="The quick brown fox"))) as session:
        session.step()
        session.run(until="layers.3")
    session.journal

Every public verb is written to the journal as an action before it runs, with JSON-able arguments, so that a script
(`workbench.script`) and a replay (`workbench.replay`) can ask the same again. Not for drawing (see `views`).
"""

from __future__ import annotations

import contextlib
import os
import platform
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypedDict, TypeVar

import torch
from torch import Tensor

from workbench.actions import Action
from workbench.captures import captured_tensor, keep_tensor, summarize
from workbench.compare.search import first_difference
from workbench.compare.steps import compare_step, is_choice
from workbench.compare.tolerances import ErrorKind
from workbench.errors import JournalError, PlanError, StepError, TargetCrash
from workbench.journal import PATH_FIELDS, Journal, JournalHeader
from workbench.models import OpenedSides, Target, open_sides
from workbench.plan import Plan, Tolerance
from workbench.records import (
    Divergence,
    Generated,
    Note,
    Record,
    Stamp,
    StepFailure,
    StepTiming,
    TensorEdit,
    TensorSummary,
)
from workbench.records.tensors import Side as SideName
from workbench.results import RunResult, StepResult, step_verdict
from workbench.stepper import StepPoint, place_text, point_after, point_before
from workbench.subjects.base import Observed, Side

if TYPE_CHECKING:
    from workbench.probes.graphs import GraphFindings
    from workbench.probes.memory import MemoryFindings
    from workbench.widgets.stepper import Stepper

_R = TypeVar("_R", bound=Record)
Progress = Callable[[str], None]
StopAt = Literal["difference", "flip", "never"]


VERBS: tuple[str, ...] = (
    "step",
    "run",
    "rewind",
    "capture",
    "edit",
    "first_divergence",
    "generate",
    "verify",
    "memory",
    "trace_graphs",
    "note",
)
"""The methods that are written to the journal, and that a replay issues again."""


class Session:
    """A plan being carried out.

    Args:
        plan: what to run, and what counts as equal.
        target: for the model "module": what is called, instead of a source file.
        candidate_target: what the candidate side calls, None for the same.
        args, kwargs: what it is called with.
        path: file of the journal; in memory when None.
        title: of the journal.
        clock: seconds, monotonic.
        progress: told in a line what is going on in work that takes longer.

    Attributes:
        plan: the plan.
        journal: everything asked and found so far.

    Raises:
        PlanError: a plan that cannot be carried out.
        DeviceError: a placement this machine cannot offer.
        JournalError: `path` exists already.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        target: Callable[..., object] | None = None,
        candidate_target: Callable[..., object] | None = None,
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
        path: str | Path | None = None,
        title: str = "",
        clock: Callable[[], float] = time.monotonic,
        progress: Progress | None = None,
    ) -> None:
        if target is not None and plan.model != "module":
            raise PlanError(f"plan.model: expected 'module' for a target handed over, found {plan.model!r}.")
        handed = None
        if target is not None:
            handed = Target(reference=target, candidate=candidate_target, args=args, kwargs=kwargs)
        self.plan = plan
        self._clock = clock
        self._progress = progress
        self._sides: OpenedSides = open_sides(plan, handed)
        self._last: dict[SideName, Observed] = {}
        self._targets_given = target is not None
        self._base = base = Path.cwd() if path is None else Path(path).parent
        header = JournalHeader(
            versions=versions(), plan=_stored_plan(plan, base), title=title, fingerprint=self._sides.fingerprint
        )
        self.journal = Journal(header, path=path, clock=clock)

    @property
    def points(self) -> tuple[StepPoint, ...]:
        """Every place the session can stop at, in order."""
        return self._reference.points

    @property
    def position(self) -> int:
        """How many of the points have run."""
        return self._reference.position

    @property
    def next_point(self) -> StepPoint | None:
        """What `step` would run; None at the end."""
        return self.points[self.position] if self.position < len(self.points) else None

    def step(self, count: int = 1) -> StepResult:
        """Run the next sub-layer on both sides, compare, and return what it showed.

        Args:
            count: steps to take; the result of the last one is returned, all are recorded.

        Raises:
            StepError: the run is over, or `count` is below 1.
        """
        self._act("step", {"count": count} if count != 1 else {})
        if count < 1:
            raise StepError(f"step: expected a count of at least 1, found {count}.")
        result = self._step()
        for _ in range(count - 1):
            if result.verdict == "failed":
                break
            result = self._step()
        return result

    def run(self, until: str = "end", *, stop_at: StopAt = "difference") -> RunResult:
        """Step until a module has run, or until the sides differ.

        Args:
            until: module, or prefix of several (`layers.3`); `prefill` for the whole prefill, `end` for everything.
            stop_at: "difference" ends at the first tensor out of tolerance or flipped choice, "flip" at a flipped
                choice only, "never" goes on.

        Raises:
            StepError: no such module ahead.
        """
        self._act("run", {"until": until, **({"stop_at": stop_at} if stop_at != "difference" else {})})
        goal = point_after(self.points, until, self.position)
        return self._run_to(goal, stop_at)

    def rewind(self, to: str = "start") -> StepPoint | None:
        """Go back to before a module ran, so that it runs next; records stay in the journal.

        Args:
            to: module, or `start`.

        Raises:
            StepError: it has not run.
        """
        self._act("rewind", {"to": to})
        position = point_before(self.points, to, self.position)
        for side in self._both():
            side.rewind(position)
        self._last.clear()
        return self.next_point

    def tensors(self, side: SideName = "reference") -> dict[str, Tensor]:
        """Return what can be looked at now: the intermediates of the last step and what the next one will read."""
        shown = self._last[side].tensors if side in self._last else {}
        return {**shown, **self._side(side).tensors()}

    def inspect(self, name: str, side: SideName = "reference") -> Tensor:
        """Return one tensor of `tensors(side)`.

        Raises:
            StepError: no such tensor now; lists what there is.
        """
        held = self.tensors(side)
        if name not in held:
            raise StepError(f"{name} cannot be seen on the {side} side now; there are {', '.join(held) or 'none'}.")
        return held[name]

    def capture(self, name: str, side: SideName = "reference") -> TensorSummary:
        """Keep a tensor of `tensors(side)` in the journal's side file.

        Raises:
            StepError: no such tensor now.
        """
        self._act("capture", {"name": name, "side": side})
        tensor = self.inspect(name, side)
        key = keep_tensor(self.journal, f"{side}:{name}", tensor)
        return self._record(TensorSummary(stamp=self._stamp(), name=name, side=side, capture=key, **summarize(tensor)))

    def edit(
        self,
        name: str,
        value: Tensor | None = None,
        *,
        side: SideName = "candidate",
        capture: str | None = None,
        note: str = "",
    ) -> TensorEdit:
        """Replace a tensor that the next step will read, or an intermediate still to come, and go on from there.

        Args:
            name: as in `tensors(side)`, or the name of an intermediate of a later step.
            value: the new tensor; kept in the journal, so that a replay can put it there again.
            side: on which side.
            capture: instead of `value`: key of a tensor captured in this journal.
            note: why.

        Raises:
            StepError: neither or both of `value` and `capture`, or another shape or dtype than what is replaced.
        """
        if (value is None) == (capture is None):
            raise StepError("edit: expected either a value or the key of a capture, found both or neither.")
        if value is not None:
            capture = keep_tensor(self.journal, f"edit:{side}:{name}", value)
        assert capture is not None, "a value with numbers has been kept"
        self._act("edit", {"name": name, "side": side, "capture": capture, **({"note": note} if note else {})})
        new = captured_tensor(self.journal, capture)
        target = self._side(side)
        held = target.tensors()
        before = keep_tensor(self.journal, f"before:{side}:{name}", held[name]) if name in held else None
        target.edit(name, new)
        return self._record(
            TensorEdit(stamp=self._stamp(), name=name, side=side, before=before, after=capture, note=note)
        )

    def first_divergence(self, error: ErrorKind = "accumulated") -> Divergence:
        """Find the first step at which the sides differ, by halving, and stop the run there.

        Both sides are run to the end once; what the steps handed on is then compared at about log2(steps) places, and
        at all of them only where the ends agree. The cursor is left after the step found, where it can be looked at;
        without one, at the end.

        Args:
            error: "accumulated", each side fed by itself, or "isolated", the candidate fed the reference's input.

        Raises:
            StepError: there is no candidate side.
        """
        self._act("first_divergence", {"error": error})
        candidate = self._expect_candidate("first_divergence")
        seen = self._outputs_of_all()
        steps = len(self.points)
        scanned: list[int] = []

        def differs(index: int) -> bool:
            scanned.append(index)
            reference, accumulated = seen[index]
            found = accumulated
            if error == "isolated":
                feed = self._reference.feed(index)
                found = {} if feed is None else candidate.alone(index, feed).tensors
            stamp = self._stamp(index)
            records = tuple(compare_step(reference, found, error=error, stamp=stamp, **self._rules()))
            for record in records:
                self._record(record)
            return _differs(records)

        if error == "isolated":
            # Errors of single steps do not stay once they are there, so halving would not find the first.
            first = next((index for index in range(steps) if differs(index)), None)
            method = "scan"
        else:
            first, method = first_difference(steps, differs).index, "bisection"
            if first is None:
                # The ends agree; a difference on the way may have healed, as a flipped choice often does.
                first = next((index for index in range(steps - 1) if differs(index)), None)
                method = "bisection then scan"
        divergence = self._record(
            Divergence(
                stamp=self._stamp(),
                question=f"first step with an {error} difference",
                first=None if first is None else self.points[first].module,
                index=first,
                comparisons=len(scanned),
                steps=steps,
                method=method,
            )
        )
        if first is not None:
            for side in self._both():
                side.rewind(first + 1)
        return divergence

    def generate(self, max_tokens: int, *, side: SideName = "reference") -> Generated:
        """Continue the plan's first prompt greedily, in a cache of its own.

        Raises:
            StepError: the plan's model cannot generate.
        """
        self._act("generate", {"max_tokens": max_tokens, **({"side": side} if side != "reference" else {})})
        from workbench.subjects.generation import generate_text

        prompt, token_ids, text = generate_text(self._side(side), max_tokens, self._progress)
        return self._record(
            Generated(stamp=self._stamp(), side=side, prompt_token_ids=prompt, token_ids=token_ids, text=text)
        )

    def verify(self, golden: str, *, mode: str = "", prompts: Sequence[str] = ()) -> bool:
        """Hold the reference side's model against golden data and return whether every check passed.

        Args:
            golden: folder in the golden format.
            mode: which of its modes; that of the reference's profile when empty.
            prompts: names of golden prompts, all when empty.

        Raises:
            StepError: the plan's model is not the text model.
            PortError: no such folder, mode or prompt.
        """
        stored = _relative(golden, self._base)
        given = {"golden": stored, "mode": mode, "prompts": list(prompts)}
        self._act("verify", {name: value for name, value in given.items() if value})
        from workbench.subjects.verification import verify_side

        passed = True
        rows = verify_side(
            self._reference, Path(golden), mode or self.plan.reference.profile, tuple(prompts), self._progress
        )
        for row in rows:
            passed &= self._record(row).passed
        return passed

    def memory(
        self, module: str = "", *, phase: str = "prefill", side: SideName = "reference", allocator: bool = False
    ) -> MemoryFindings:
        """Record every allocation of a forward pass, or of one part of it: who made it, where, and until when.

        Args:
            module: a module of the run, "" for everything.
            phase: "prefill" or "decode"; no matter for a module of the user.
            side: on which side; a dry one computes, all others observe.
            allocator: run once more under torch's profiler, to see also what the allocator alone sees (CPU only).

        Raises:
            StepError: no such module.
            TargetCrash: the call raises; what had been recorded is kept.
        """
        given = {"module": module, "phase": phase, "side": side, "allocator": allocator}
        self._act(
            "memory", _changed(given, {"module": "", "phase": "prefill", "side": "reference", "allocator": False})
        )
        from workbench.probes.memory import record_memory

        chosen = self._side(side)
        call = chosen.call(module, phase)
        with torch.no_grad():
            return record_memory(
                call.function,
                call.args,
                call.kwargs,
                module=call.module,
                device=chosen.device,
                cache=call.cache,
                sink=self._record,
                phase=phase,
                side=side,
                allocator=allocator,
                progress=self._progress,
            )

    def trace_graphs(self, module: str = "", *, phase: str = "decode", side: SideName = "reference") -> GraphFindings:
        """List the graphs Dynamo captures of a forward pass, or of one part of it, and every break with its line.

        Args:
            module: a module of the run, "" for everything.
            phase: "prefill" or "decode"; no matter for a module of the user.
            side: whose model; a dry one is refused, since Dynamo runs what it captures.

        Raises:
            StepError: no such module, or a dry side.
            TargetCrash: the call itself raises.
        """
        given = {"module": module, "phase": phase, "side": side}
        self._act("trace_graphs", _changed(given, {"module": "", "phase": "decode", "side": "reference"}))
        from workbench.probes.graphs import record_graph_breaks

        if not self._side(side).has_numbers:
            raise StepError(
                f"trace_graphs: expected a side with numbers, found the dry {side}: Dynamo runs the graphs it captures. "
                "Use a side on the host."
            )
        call = self._side(side).call(module, phase)
        return record_graph_breaks(
            call.function,
            call.args,
            call.kwargs,
            module=call.module,
            sink=self._record,
            phase=phase,
            progress=self._progress,
        )

    def note(self, text: str) -> Note:
        """Write a remark into the journal."""
        self._act("note", {"text": text})
        return self._record(Note(stamp=self._stamp(), text=text))

    def reissue(self, action: Action, recorded: Journal) -> object:
        """Ask a recorded action again and return its answer; tensors it put in place come from that journal.

        Raises:
            JournalError: no verb of this name, or arguments it does not take.
        """
        if action.verb not in VERBS:
            raise JournalError(f"action {action.verb!r}: expected one of {', '.join(VERBS)}.")
        arguments = dict(action.arguments)
        if action.verb == "verify" and recorded.path is not None and isinstance(arguments.get("golden"), str):
            arguments["golden"] = str(recorded.path.parent / str(arguments["golden"]))
        if action.verb == "edit" and isinstance(arguments.get("capture"), str):
            capture = str(arguments.pop("capture"))
            arguments["value"] = captured_tensor(recorded, capture)  # pyright: ignore[reportArgumentType]
        try:
            return getattr(self, action.verb)(**arguments)
        except TypeError as error:
            if "argument" in str(error) and action.verb in str(error):
                raise JournalError(f"{action.call_text()}: {error}") from error
            raise

    def widget(self) -> Stepper:
        """Return buttons for a notebook that call these verbs; the one line a script will not have."""
        from workbench.widgets.stepper import Stepper

        return Stepper(self)

    def close(self) -> None:
        """Give back models and caches; the journal stays readable."""
        for side in self._both():
            side.close()
        self.journal.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Session at {place_text(self.points, self.position)}, {len(self.journal)} journal entries"

    @property
    def _reference(self) -> Side:
        return self._sides.reference

    def _side(self, name: SideName) -> Side:
        if name == "reference":
            return self._reference
        if name == "candidate":
            return self._expect_candidate("this")
        raise StepError(f"side: expected 'reference' or 'candidate', found {name!r}.")

    def _expect_candidate(self, verb: str) -> Side:
        if self._sides.candidate is None:
            raise StepError(f"{verb} needs a candidate side; give the plan a candidate placement.")
        return self._sides.candidate

    def _both(self) -> Iterator[Side]:
        yield self._reference
        if self._sides.candidate is not None:
            yield self._sides.candidate

    def _act(self, verb: str, arguments: Mapping[str, object]) -> None:
        self.journal.act(verb, arguments)

    def _record(self, record: _R) -> _R:
        return self.journal.append(record)

    def _stamp(self, index: int | None = None) -> Stamp:
        if index is None and not self.position:
            return Stamp()
        point = self.points[self.position - 1 if index is None else index]
        return Stamp(step=point.index, module=point.module, phase=point.phase)

    def _run_to(self, goal: int, stop_at: StopAt) -> RunResult:
        results: list[StepResult] = []
        ended: Literal["reached", "difference", "flip", "failure", "interrupted"] = "reached"
        told = self._clock()
        try:
            while self.position < goal:
                results.append(self._step())
                verdict = results[-1].verdict
                if verdict == "failed":
                    ended = "failure"
                    break
                if verdict == "differ" and stop_at == "difference":
                    ended = "difference"
                    break
                if verdict == "flipped" and stop_at != "never":
                    ended = "flip"
                    break
                if self._progress is not None and self._clock() - told > 2:
                    told = self._clock()
                    self._progress(f"{place_text(self.points, self.position)}")
        except KeyboardInterrupt:
            ended = "interrupted"
            self._level()
            self._record(Note(stamp=self._stamp(), text=f"interrupted at {place_text(self.points, self.position)}"))
        return RunResult(steps=tuple(results), stopped=ended)

    def _level(self) -> None:
        """Bring both sides to the same position after a step that one of them did not finish."""
        position = min(side.position for side in self._both())
        for side in self._both():
            if side.position > position:
                side.rewind(position)

    def _step(self) -> StepResult:
        if self.next_point is None:
            raise StepError("the run is over; use session.rewind(...) to go back.")
        began, first = self._clock(), len(self.journal.entries)
        point = self.next_point
        try:
            reference = self._advance("reference", self._reference)
            if self._sides.candidate is not None:
                candidate = self._advance("candidate", self._sides.candidate)
                self._compare(point, reference, candidate)
        except _StepFailed:
            self._level()
        records = tuple(entry for entry in self.journal.entries[first:] if isinstance(entry, Record))
        return StepResult(point=point, verdict=step_verdict(records), records=records, elapsed_s=self._clock() - began)

    def _advance(self, name: SideName, side: Side) -> Observed:
        began = self._clock()
        point = side.points[side.position]
        stamp = Stamp(step=point.index, module=point.module, phase=point.phase)
        with self._failures(name, point, stamp):
            observed = side.advance()
        self._last[name] = observed
        self._record(
            StepTiming(
                stamp=stamp,
                side=name,
                name=point.module,
                step_kind=point.kind,
                step_s=self._clock() - began,
                weight_bytes=observed.weight_bytes,
            )
        )
        for tensor_name, tensor in observed.tensors.items():
            self._record(TensorSummary(stamp=stamp, name=tensor_name, side=name, **summarize(tensor)))
        return observed

    def _compare(self, point: StepPoint, reference: Observed, candidate: Observed) -> None:
        stamp = Stamp(step=point.index, module=point.module, phase=point.phase)
        rules = self._rules()
        for record in compare_step(reference.tensors, candidate.tensors, error="accumulated", stamp=stamp, **rules):
            self._record(record)
        feed = self._reference.feed(point.index)
        side = self._sides.candidate
        if feed is None or side is None or not side.has_numbers or not self._reference.has_numbers:
            return
        with self._failures("candidate", point, stamp):
            alone = side.alone(point.index, feed)
        for record in compare_step(reference.tensors, alone.tensors, error="isolated", stamp=stamp, **rules):
            self._record(record)

    def _rules(self) -> _Rules:
        formats = [side.precision for side in self._both() if side.precision is not None]
        coarsest = max(formats, key=lambda dtype: torch.finfo(dtype).eps, default=None)
        return _Rules(rules=self.plan.tolerances, precision=coarsest)

    def _outputs_of_all(self) -> list[tuple[Mapping[str, Tensor], Mapping[str, Tensor]]]:
        """Run both sides from the start to the end and return what each step handed on, side by side."""
        candidate = self._expect_candidate("first_divergence")
        for side in self._both():
            # At the start there is nothing to take back, and edits of what is still to come shall stay.
            if side.position:
                side.rewind(0)
        seen: list[tuple[Mapping[str, Tensor], Mapping[str, Tensor]]] = []
        told = self._clock()
        for point in self.points:
            stamp = Stamp(step=point.index, module=point.module, phase=point.phase)
            with self._failures("reference", point, stamp):
                reference = self._reference.advance()
            with self._failures("candidate", point, stamp):
                found = candidate.advance()
            self._last = {"reference": reference, "candidate": found}
            seen.append((handed_on(reference), handed_on(found)))
            if self._progress is not None and self._clock() - told > 2:
                told = self._clock()
                self._progress(place_text(self.points, point.index))
        return seen

    @contextlib.contextmanager
    def _failures(self, side: SideName, point: StepPoint, stamp: Stamp) -> Iterator[None]:
        """Turn what a step raises into a record; the journal goes on."""
        try:
            yield
        except Exception as error:
            self._record(
                StepFailure(
                    stamp=stamp,
                    side=side,
                    name=point.module,
                    error=f"{type(error).__name__}: {error}",
                    traceback_text=traceback.format_exc(),
                )
            )
            raise _StepFailed(f"{point} failed on the {side} side: {type(error).__name__}: {error}") from error


class _Rules(TypedDict):
    """What decides when two tensors count as equal."""

    rules: tuple[Tolerance, ...]
    precision: torch.dtype | None


class _StepFailed(TargetCrash):
    """A step failed and has been recorded."""


def handed_on(observed: Observed) -> dict[str, Tensor]:
    """Return what a step hands on, and the choices it made: enough to tell where two runs part."""
    return {
        name: tensor for name, tensor in observed.tensors.items() if name in observed.outputs or is_choice(name, tensor)
    }


def versions() -> dict[str, str]:
    """Return what a journal says of the machine's software."""
    from importlib.metadata import PackageNotFoundError, version

    found = {"python": platform.python_version(), "torch": torch.__version__}
    with contextlib.suppress(PackageNotFoundError):
        found["neuron-workbench"] = version("neuron-workbench")
    return found


def _differs(records: Sequence[Record]) -> bool:
    return step_verdict(tuple(records)) in ("differ", "flipped") or any(
        getattr(record, "verdict", "") == "differ" or getattr(record, "flipped_rows", 0) for record in records
    )


def _stored_plan(plan: Plan, base: Path) -> dict[str, object]:
    """Return the plan with its paths relative to the journal's folder, so that both can be moved together."""
    body: dict[str, object] = dict(plan.to_json())
    for name in PATH_FIELDS:
        value = body.get(name)
        if isinstance(value, str):
            body[name] = _relative(value, base)
    return body


def _relative(path: str, base: Path) -> str:
    return path if Path(path).is_absolute() else os.path.relpath(path, base)


def _changed(given: Mapping[str, object], defaults: Mapping[str, object]) -> dict[str, object]:
    """Return the arguments that are not the default: what a reader of the script needs to see."""
    return {name: value for name, value in given.items() if value != defaults[name]}
