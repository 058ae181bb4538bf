"""Records about tensors: what one holds, how two differ, which discrete choices flipped."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from workbench.records.base import Record

Verdict = Literal["match", "differ", "incomparable"]
Side = Literal["reference", "candidate"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSummary(Record):
    """One tensor in one line.

    Attributes:
        name: fully qualified name of the intermediate, as the model's taps spell it.
        side: which side it was seen on.
        shape: logical shape.
        dtype: torch spelling without the `torch.` prefix.
        device: as in `neuron:0`.
        min, max, mean, std, norm: over the finite elements, None where there are none or numbers do not exist (dry).
        nan_count, inf_count, zero_count: elements; None in dry.
        digest: first 16 hex digits of the SHA-256 of the bytes; "" in dry. Neither it nor the mean is a finding:
            last bits differ between machines, and a mean of values that cancel is all last bits.
        capture: key into the journal's side file, or None when only the summary was kept.
    """

    kind: ClassVar[str] = "tensor_summary"
    volatile: ClassVar[frozenset[str]] = frozenset({"digest", "capture", "mean"})
    name: str
    side: Side
    shape: tuple[int, ...]
    dtype: str
    device: str
    min: float | None = None
    max: float | None = None
    mean: float | None = None
    std: float | None = None
    norm: float | None = None
    nan_count: int | None = None
    inf_count: int | None = None
    zero_count: int | None = None
    digest: str = ""
    capture: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorDiff(Record):
    """One tensor compared between the two sides.

    The finding is the verdict under its rule; the figures are differences of rounding, which another machine rounds
    otherwise.

    Attributes:
        name: what was compared.
        error: "accumulated" (the candidate was fed by itself) or "isolated" (it was fed the reference's input).
        max_abs, max_rel: largest absolute and relative difference; None when incomparable.
        rel_l2: norm of the difference over the norm of the reference.
        cosine: cosine of the two flattened tensors; informative only, never a verdict.
        worst_index: where `max_abs` sits.
        max_steps: largest difference counted in steps (ULP) of the coarser dtype of the two, None for integers.
        tolerance: the rule applied, in words, with its reason.
        verdict: the answer under that rule.
        note: what a reader must know (shapes differ, rows reported as flips, ...).
    """

    kind: ClassVar[str] = "tensor_diff"
    volatile: ClassVar[frozenset[str]] = frozenset(
        {"max_abs", "max_rel", "rel_l2", "cosine", "worst_index", "max_steps", "note"}
    )
    name: str
    error: Literal["accumulated", "isolated"]
    max_abs: float | None
    max_rel: float | None
    rel_l2: float | None
    cosine: float | None
    worst_index: tuple[int, ...] | None
    max_steps: float | None
    tolerance: str
    verdict: Verdict
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscreteFlip(Record):
    """Discrete choices (router ids, index selections, argmax) that the two sides made differently; not rounding.

    Attributes:
        name: which choice.
        error: accumulated or isolated, as in `TensorDiff`.
        rows: rows compared.
        flipped_rows: rows where the chosen sets differ.
        first_row: first such row, None when there is none.
        min_margin: smallest gap between the last chosen and the first rejected score over the flipped rows,
            None if unknown.
    """

    kind: ClassVar[str] = "discrete_flip"
    volatile: ClassVar[frozenset[str]] = frozenset({"min_margin"})
    name: str
    error: Literal["accumulated", "isolated"]
    rows: int
    flipped_rows: int
    first_row: int | None
    min_margin: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorEdit(Record):
    """A tensor the user replaced before going on.

    Attributes:
        name: which one.
        side: on which side.
        before, after: captures in the side file, None when not kept.
        note: the user's reason.
    """

    kind: ClassVar[str] = "tensor_edit"
    volatile: ClassVar[frozenset[str]] = frozenset({"before", "after"})
    name: str
    side: Side
    before: str | None
    after: str | None
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Divergence(Record):
    """The first step at which the two sides disagree.

    Attributes:
        question: what was asked: which error and which tolerance.
        first: module of the first step that differs, None when none does.
        index: its step index.
        comparisons: how many comparisons the search made.
        steps: how many steps it chose among.
        method: "bisection" or, where differences were not monotone, "bisection then scan".
    """

    kind: ClassVar[str] = "divergence"
    question: str
    first: str | None
    index: int | None
    comparisons: int
    steps: int
    method: str

    def __str__(self) -> str:
        where = "none" if self.first is None else f"{self.first or '(whole call)'} (step {self.index})"
        return f"{self.question}: {where}; {self.comparisons} comparisons of {self.steps} steps, by {self.method}"

    def __repr__(self) -> str:
        return str(self)
