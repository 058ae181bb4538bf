"""Weights read from a checkpoint: every tensor checked from headers first, all read next, none handed out before that.

    tensors, report = load_tensors(checkpoint, model.state_dict(keep_vars=True))

What does not fit is one error that lists all of it, raised before a byte of data is read; a model that asked is left as
it was. What was loaded is said in a `LoadReport`, never only logged.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from port.checkpoint.audit import TensorAudit, audit_tensors
from port.checkpoint.dtypes import STORED_NAME
from port.checkpoint.families import family_of
from port.checkpoint.fp8_range import Fp8RangeReport, limit_fp8_weight
from port.checkpoint.index import Checkpoint
from port.checkpoint.names import TensorSpec
from port.checkpoint.problems import Problem, checkpoint_error, errors_in
from port.checkpoint.slices import RankSlice, read_rank_slice
from port.errors import CheckpointError

Progress = Callable[[int, int], None]
"""Called with (bytes read, bytes in all)."""

_OTHER_PARTS = ("draft", "vision")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadReport:
    """What became of every tensor.

    Attributes:
        loaded: names that were read; empty for a report made before reading.
        missing: names that are wanted and not there, or damaged where they lie.
        unexpected: names in the checkpoint that the model does not have.
        mis_shaped, mis_typed: names of another shape or dtype than wanted.
        left_out: names of parts the text model does not run (draft, vision).
        elsewhere: names that other ranks keep.
        nbytes: bytes read.
        elapsed_s: time spent reading.
        problems: the same as values, with what was expected, what was found and what to do.
        fp8_range: what keeping FP8 codes within a limit changed; None where no limit was asked for.
    """

    loaded: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()
    mis_shaped: tuple[str, ...] = ()
    mis_typed: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    elsewhere: tuple[str, ...] = ()
    nbytes: int = 0
    elapsed_s: float = 0.0
    problems: tuple[Problem, ...] = ()
    fp8_range: Fp8RangeReport | None = None

    @property
    def ok(self) -> bool:
        """Whether everything wanted is there as wanted."""
        return not errors_in(self.problems)

    def __str__(self) -> str:
        counts = ("loaded", "missing", "unexpected", "mis_shaped", "mis_typed", "left_out", "elsewhere")
        words = [f"{len(getattr(self, name))} {name.replace('_', '-')}" for name in counts if getattr(self, name)]
        changed = "" if self.fp8_range is None else f"; {self.fp8_range}"
        return f"{', '.join(words) or 'nothing'}; {self.nbytes:,} bytes{changed}"


def check_tensors(
    checkpoint: Checkpoint,
    wanted: Mapping[str, Tensor],
    *,
    whole: bool = True,
    slices: Mapping[str, RankSlice] | None = None,
    elsewhere: frozenset[str] = frozenset(),
) -> LoadReport:
    """Return what loading would meet, from headers alone; nothing is read and nothing raised.

    Args:
        checkpoint: opened, strictly or not.
        wanted: tensors to be filled, by name; only their shapes and dtypes matter, so they may be on `meta`.
        whole: whether `wanted` is all the model has; a part of it makes nothing unexpected.
        slices: what is kept of each tensor, where that is not all of it.
        elsewhere: names that other ranks keep.
    """
    cut: Mapping[str, RankSlice] = slices or {}
    specs = {name: cut[name].spec if name in cut else _spec_of(name, tensor) for name, tensor in wanted.items()}
    entries, left_out = checkpoint.entries, ()
    if whole:
        left_out = tuple(name for name in entries if name not in specs and family_of(name) in _OTHER_PARTS)
    else:
        entries = {name: entries[name] for name in specs if name in entries}
    others = tuple(name for name in entries if name in elsewhere)
    audit = audit_tensors(specs, entries, damaged=checkpoint.damaged, may_have=frozenset((*left_out, *others)))
    return _report_of(audit, left_out, others)


def load_tensors(
    checkpoint: Checkpoint,
    wanted: Mapping[str, Tensor],
    *,
    whole: bool = True,
    device: torch.device | str = "cpu",
    fp8_limit: float | None = None,
    slices: Mapping[str, RankSlice] | None = None,
    elsewhere: frozenset[str] = frozenset(),
    progress: Progress | None = None,
) -> tuple[dict[str, Tensor], LoadReport]:
    """Return every wanted tensor as stored, or this rank's part of it, on `device`, and what became of the rest.

    Args:
        checkpoint: opened.
        wanted: tensors to be filled, by name; only their shapes and dtypes matter, so they may be on `meta`.
        whole: whether `wanted` is all the model has; a part of it makes nothing unexpected.
        device: where the result goes.
        fp8_limit: largest magnitude that an FP8 code may have, 224 to 448: tiles above it are halved and their scales
            doubled, see `port/checkpoint/fp8_range.py`. None leaves everything as stored.
        slices: what is kept of each tensor, where that is not all of it; no other bytes are read.
        elsewhere: names that other ranks keep.
        progress: called after each tensor.

    Raises:
        CheckpointError: tensors that are missing or do not fit, all of them in one error, before anything is read; a
            file that changed since it was opened; or an FP8 weight that cannot be kept within the limit.
    """
    report = check_tensors(checkpoint, wanted, whole=whole, slices=slices, elsewhere=elsewhere)
    if not report.ok:
        raise checkpoint_error(f"{checkpoint.path}: the weights do not fit the model", errors_in(report.problems))
    started = time.perf_counter()
    cut = {name: piece for name, piece in (slices or {}).items() if piece.rows is not None}
    sizes = {name: checkpoint.entries[name].nbytes for name in wanted}
    sizes |= {name: cut[name].nbytes - cut[name].padding_bytes for name in wanted if name in cut}
    total = sum(sizes.values())
    done = 0
    tensors: dict[str, Tensor] = {}
    limited = _LimitedWeights(wanted, fp8_limit)
    with checkpoint.reader() as reader:
        for name in sorted(wanted, key=lambda name: _place(checkpoint, name)):  # in file order, for a spinning disk
            if name in cut:
                stored = read_rank_slice(checkpoint, cut[name], reader=reader)
            else:
                stored = reader.read(checkpoint.entries[name])
            for ready, tensor in limited.take(name, stored):
                tensors[ready] = tensor.to(device)
            done += sizes[name]
            if progress is not None:
                progress(done, total)
    return {name: tensors[name] for name in wanted}, LoadReport(
        loaded=tuple(wanted),
        unexpected=report.unexpected,
        left_out=report.left_out,
        elsewhere=report.elsewhere,
        nbytes=done,
        elapsed_s=time.perf_counter() - started,
        problems=report.problems,
        fp8_range=limited.report,
    )


class _LimitedWeights:
    """Holds an FP8 weight back until its scale is there too, and the other way round; the rest goes straight through.

    Args:
        wanted: what is loaded, by name.
        limit: None for no limit.
    """

    def __init__(self, wanted: Mapping[str, Tensor], limit: float | None) -> None:
        self.report = None if limit is None else Fp8RangeReport(limit=limit)
        self._limit = limit
        self._partner: dict[str, str] = {}
        self._held: dict[str, Tensor] = {}
        if limit is None:
            return
        for name, tensor in wanted.items():
            if tensor.dtype != torch.float8_e4m3fn:
                continue
            scale = f"{name.removesuffix('.weight')}.scale"
            if scale not in wanted:
                raise CheckpointError(
                    f"{name}: expected its scale among the tensors to load, since the two change together within "
                    f"{limit:g}; {scale} is not among them. Load the module, or use a profile that keeps 448."
                )
            self._partner |= {name: scale, scale: name}

    def take(self, name: str, tensor: Tensor) -> list[tuple[str, Tensor]]:
        """Return what can be handed on now that this tensor is read."""
        partner = self._partner.get(name)
        if partner is None:
            return [(name, tensor)]
        if partner not in self._held:
            self._held[name] = tensor
            return []
        pair = {name: tensor, partner: self._held.pop(partner)}
        weight, scale = sorted(pair, key=lambda one: pair[one].dtype != torch.float8_e4m3fn)
        assert self._limit is not None, "only limited weights have partners"
        assert self.report is not None, "a limit has a report"
        self.report = self.report + limit_fp8_weight(weight, pair[weight], pair[scale], limit=self._limit)
        return [(weight, pair[weight]), (scale, pair[scale])]


def _spec_of(name: str, tensor: Tensor) -> TensorSpec:
    dtype = STORED_NAME.get(tensor.dtype)
    if dtype is None:
        raise CheckpointError(
            f"{name}: expected a parameter of a dtype a checkpoint can hold; found {tensor.dtype}. "
            "Give the parameter the stored dtype and convert after loading."
        )
    return TensorSpec(name=name, dtype=dtype, shape=tuple(tensor.shape))


def _report_of(audit: TensorAudit, left_out: tuple[str, ...], elsewhere: tuple[str, ...]) -> LoadReport:
    return LoadReport(
        missing=tuple(spec.name for spec in audit.missing),
        unexpected=tuple(entry.name for entry in audit.unexpected),
        mis_shaped=tuple(item.spec.name for item in audit.mis_shaped),
        mis_typed=tuple(item.spec.name for item in audit.mis_typed),
        left_out=left_out,
        elsewhere=elsewhere,
        problems=audit.problems,
    )


def _place(checkpoint: Checkpoint, name: str) -> tuple[str, int]:
    entry = checkpoint.entries[name]
    return entry.file, entry.offset
