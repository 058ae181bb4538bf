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
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import torch
from torch import Tensor

from workbench.actions import Action
from workbench.captures import captured_tensor, keep_tensor, summarize
from workbench.compare.tolerances import ErrorKind
from workbench.errors import JournalError, PlanError, StepError
from workbench.journal import PATH_FIELDS, Journal, JournalHeader
from workbench.models import Target, open_sides
from workbench.plan import Plan
from workbench.records import (
    Divergence,
    Generated,
    Note,
    TensorEdit,
    TensorSummary,
)
from workbench.records.tensors import Side as SideName
from workbench.results import RunResult, StepResult
from workbench.stepper import StepPoint, place_text, point_after, point_before
from workbench.stepping import Progress, Stepping, StopAt

if TYPE_CHECKING:
    from workbench.bisection.findings import BisectionFindings
    from workbench.probes.graphs import GraphFindings
    from workbench.probes.memory import MemoryFindings
    from workbench.widgets.stepper import Stepper

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
    "bisect_compile",
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
        sides = open_sides(plan, handed)
        self._targets_given = target is not None
        self._base = base = Path.cwd() if path is None else Path(path).parent
        header = JournalHeader(
            versions=versions(), plan=_stored_plan(plan, base), title=title, fingerprint=sides.fingerprint
        )
        self.journal = Journal(header, path=path, clock=clock)
        self._record = self.journal.append
        self._stepping = Stepping(
            sides.reference,
            sides.candidate,
            tolerances=plan.tolerances,
            journal=self.journal,
            clock=clock,
            progress=progress,
        )

    @property
    def points(self) -> tuple[StepPoint, ...]:
        """Every place the session can stop at, in order."""
        return self._stepping.points

    @property
    def position(self) -> int:
        """How many of the points have run."""
        return self._stepping.position

    @property
    def next_point(self) -> StepPoint | None:
        """What `step` would run; None at the end."""
        return self._stepping.next_point

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
        result = self._stepping.step()
        for _ in range(count - 1):
            if result.verdict == "failed":
                break
            result = self._stepping.step()
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
        _expect_one_of("run: stop_at", stop_at, get_args(StopAt))
        self._act("run", {"until": until, **({"stop_at": stop_at} if stop_at != "difference" else {})})
        goal = point_after(self.points, until, self.position)
        return self._stepping.run_to(goal, stop_at)

    def rewind(self, to: str = "start") -> StepPoint | None:
        """Go back to before a module ran, so that it runs next; records stay in the journal.

        Args:
            to: module, or `start`.

        Raises:
            StepError: it has not run.
        """
        self._act("rewind", {"to": to})
        position = point_before(self.points, to, self.position)
        self._stepping.rewind(position)
        return self.next_point

    def tensors(self, side: SideName = "reference") -> dict[str, Tensor]:
        """Return what can be looked at now: the intermediates of the last step and what the next one will read."""
        shown = self._stepping.last[side].tensors if side in self._stepping.last else {}
        return {**shown, **self._stepping.side(side).tensors()}

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
        return self._record(
            TensorSummary(stamp=self._stepping.stamp(), name=name, side=side, capture=key, **summarize(tensor))
        )

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
        if value is not None and not isinstance(value, Tensor):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise StepError(f"edit of {name}: expected a tensor, found {value!r}.")
        if value is not None:
            capture = keep_tensor(self.journal, f"edit:{side}:{name}", value)
        assert capture is not None, "a value with numbers has been kept"
        self._act("edit", {"name": name, "side": side, "capture": capture, **({"note": note} if note else {})})
        new = captured_tensor(self.journal, capture)
        target = self._stepping.side(side)
        held = target.tensors()
        before = keep_tensor(self.journal, f"before:{side}:{name}", held[name]) if name in held else None
        target.edit(name, new)
        return self._record(
            TensorEdit(stamp=self._stepping.stamp(), name=name, side=side, before=before, after=capture, note=note)
        )

    def first_divergence(self, error: ErrorKind = "accumulated") -> Divergence:
        """Find the first step at which the sides differ, by halving, and stop the run there.

        Both sides are run to the end once; what the steps showed is then compared at about log2(steps) places, and
        at all of them only where the ends agree. The cursor is left after the step found, where it can be looked at;
        without one, at the end.

        Args:
            error: "accumulated", each side fed by itself, or "isolated", the candidate fed the reference's input.

        Raises:
            StepError: there is no candidate side.
        """
        _expect_one_of("first_divergence: error", error, get_args(ErrorKind))
        self._act("first_divergence", {"error": error})
        return self._stepping.first_divergence(error)

    def generate(self, max_tokens: int, *, side: SideName = "reference") -> Generated:
        """Continue the plan's first prompt greedily, in a cache of its own.

        Raises:
            StepError: the plan's model cannot generate.
        """
        self._act("generate", {"max_tokens": max_tokens, **({"side": side} if side != "reference" else {})})
        from workbench.subjects.generation import generate_text

        prompt, token_ids, text = generate_text(self._stepping.side(side), max_tokens, self._progress)
        return self._record(
            Generated(stamp=self._stepping.stamp(), side=side, prompt_token_ids=prompt, token_ids=token_ids, text=text)
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
            self._stepping.reference, Path(golden), mode or self.plan.reference.profile, tuple(prompts), self._progress
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

        chosen = self._stepping.side(side)
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

        if not self._stepping.side(side).has_numbers:
            raise StepError(
                f"trace_graphs: expected a side with numbers, found the dry {side}: Dynamo runs what it captures. "
                "Use a side on the host."
            )
        call = self._stepping.side(side).call(module, phase)
        return record_graph_breaks(
            call.function,
            call.args,
            call.kwargs,
            module=call.module,
            sink=self._record,
            phase=phase,
            progress=self._progress,
        )

    def bisect_compile(
        self,
        module: str = "",
        *,
        compiler: str,
        level: Sequence[str] = ("layers", "nodes"),
        phase: str = "decode",
        side: SideName = "reference",
        time_limit_s: float = 600.0,
        repro: str = "",
        cache: str = "",
    ) -> BisectionFindings:
        """Narrow a compile failure of a forward pass, or of one part of it, to the smallest part that still fails.

        Args:
            module: a module of the run, "" for everything.
            compiler: as in `workbench bisect --compiler`: `inductor`, `aot_eager`, `planted:...`, `neuron`, ...
            level: what to narrow on, coarse to fine: "layers", "modules", "nodes".
            phase: "prefill" or "decode"; no matter for a module of the user.
            side: whose model; one with numbers.
            time_limit_s: seconds a trial may take.
            repro: folder for `repro.py` and `report.md`; none is written when empty.
            cache: file of trials, made when absent; what it holds is not run again. In memory when empty.

        Raises:
            StepError: no such module, or a dry side.
            PlanError: a compiler or level that does not fit.
            DeviceError: this machine lacks what the compiler needs.
            TargetCrash: the call itself raises.
        """
        given = {
            "module": module,
            "compiler": compiler,
            "level": list(level),
            "phase": phase,
            "side": side,
            "time_limit_s": time_limit_s,
            "repro": repro,
            "cache": cache,
        }
        usual = {
            "module": "",
            "compiler": None,
            "level": ["layers", "nodes"],
            "phase": "decode",
            "side": "reference",
            "time_limit_s": 600.0,
            "repro": "",
            "cache": "",
        }
        self._act("bisect_compile", _changed(given, usual))
        from workbench.bisection.bisect import bisect_compile

        if not self._stepping.side(side).has_numbers:
            raise StepError(f"bisect_compile: expected a side with numbers, found the dry {side}. Use one on the host.")
        call = self._stepping.side(side).call(module, phase)
        return bisect_compile(
            call.function,
            call.args,
            call.kwargs,
            module=call.module,
            grad=False,
            compiler=compiler,
            level=tuple(level),
            time_limit_s=time_limit_s,
            sink=self._record,
            progress=self._progress,
            repro=repro or None,
            cache=cache or None,
        )

    def note(self, text: str) -> Note:
        """Write a remark into the journal."""
        self._act("note", {"text": text})
        return self._record(Note(stamp=self._stepping.stamp(), text=text))

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
        for side in self._stepping.both():
            side.close()
        self.journal.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Session at {place_text(self.points, self.position)}, {len(self.journal)} journal entries"

    def _act(self, verb: str, arguments: Mapping[str, object]) -> None:
        self.journal.act(verb, arguments)


def versions() -> dict[str, str]:
    """Return what a journal says of the machine's software."""
    from importlib.metadata import PackageNotFoundError, version

    found = {"python": platform.python_version(), "torch": torch.__version__}
    with contextlib.suppress(PackageNotFoundError):
        found["neuron-workbench"] = version("neuron-workbench")
    return found


def _expect_one_of(what: str, found: str, known: Sequence[str]) -> None:
    if found not in known:
        raise StepError(f"{what}: expected one of {', '.join(known)}; found {found!r}.")


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
