"""Records about capture: compiled graphs, graph breaks with their source lines, recompiles."""

from dataclasses import dataclass
from typing import ClassVar

from workbench.records.base import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFrame:
    """One frame of user code.

    Attributes:
        file: path as Python reports it, relative to the working folder where possible.
        line: from 1.
        function: name of the function.
        text: the source line, stripped.
    """

    file: str
    line: int
    function: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CapturedGraph(Record):
    """One graph Dynamo handed to the backend.

    Attributes:
        index: in order of compilation.
        node_count: call nodes in the graph.
        op_counts: (operation, count), most frequent first.
        modules: module paths whose code the graph holds, in order of first appearance.
        guard_count: None where unknown.
    """

    kind: ClassVar[str] = "captured_graph"
    index: int
    node_count: int
    op_counts: tuple[tuple[str, int], ...]
    modules: tuple[str, ...]
    guard_count: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphBreak(Record):
    """One place in the source where Dynamo stopped capturing; many log records of one place are one break.

    Attributes:
        file, line, function, text: the user's line (the leaf, not the caller).
        reason: Dynamo's own words.
        reason_class: our short word for the kind, as in `tensor_item`; "other" where none fits.
        registry_id: id in torch's graph-break registry, as in `GB0059`, None when not found.
        explanation: Dynamo's explanation.
        hints: Dynamo's hints, one each.
        frames: user frames, the leaf first.
        modules: module paths through which the place was reached.
        frame_skipped: the whole frame ran eagerly because of this break.
        in_loop: the break sits in a loop (then everything else in the frame was not looked at by Dynamo itself).
        intentional: the author asked for it (`torch.compiler.disable`, `graph_break()`).
        log_records: how many raw records were folded into this one.
        calls: how often the place was reached during the observed call, None when not counted.
        pass_index: in which pass of the search it was found: 0 for the plain run, 1.. for the passes that look
            past earlier breaks.
    """

    kind: ClassVar[str] = "graph_break"
    volatile: ClassVar[frozenset[str]] = frozenset({"file", "frames"})
    file: str
    line: int
    function: str
    text: str
    reason: str
    reason_class: str
    registry_id: str | None
    explanation: str
    hints: tuple[str, ...]
    frames: tuple[SourceFrame, ...]
    modules: tuple[str, ...]
    frame_skipped: bool
    in_loop: bool
    intentional: bool
    log_records: int
    calls: int | None = None
    pass_index: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Recompile(Record):
    """A frame that was compiled again.

    Attributes:
        function: which.
        file, line: where it is defined.
        reason: the guard that failed, in Dynamo's words.
    """

    kind: ClassVar[str] = "recompile"
    volatile: ClassVar[frozenset[str]] = frozenset({"file", "reason"})
    function: str
    file: str
    line: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphSummary(Record):
    """Totals of one capture.

    Attributes:
        backend: name of the Dynamo backend used to capture.
        graph_count, break_sites, recompile_count: what the lists hold.
        skipped_frames: frames that ran wholly eagerly.
        warnings: Dynamo warnings worth a reader's eye (environment reads, bypassed caches).
        complete: every line of every reached frame was examined; False when something could not be looked past.
        modules: paths of the modules whose code ran, in order of first call, to tell those that are in no graph; empty
            where it was not watched.
    """

    kind: ClassVar[str] = "graph_summary"
    volatile: ClassVar[frozenset[str]] = frozenset({"warnings"})
    backend: str
    graph_count: int
    break_sites: int
    recompile_count: int
    skipped_frames: int
    warnings: tuple[str, ...]
    complete: bool
    modules: tuple[str, ...] = ()
