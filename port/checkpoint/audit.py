"""A checkpoint's tensors held against the tensors it must hold: missing, unexpected, mis-shaped, mis-typed.

From headers alone. A part that is absent as a whole (a text-only copy without draft layers) is a warning; a part of
which some tensors are missing is an error, because such a copy is broken rather than smaller.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from port.checkpoint.entries import TensorEntry
from port.checkpoint.index import Checkpoint
from port.checkpoint.names import Part, TensorSpec, declared_parts, tensor_table
from port.checkpoint.problems import Problem, ProblemKind, Severity
from port.config import ModelConfig

_EXPERT = re.compile(r"^(?P<at>.+\.ffn\.experts)\.(?P<id>\d+)\.(?P<rest>.+)$")
_IGNORED = re.compile(r"^mtp\.\d+\.(embed|head)\.weight$")  # the draft shares them with the backbone
_UNFOLDED = re.compile(r"(^|\.)hc_\w*norm\.weight$")
_CONFIG_REMEDY = "Check that config.json belongs to this checkpoint."
_SHOWN_IDS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Mismatch:
    """A tensor that is there, but not as it must be."""

    spec: TensorSpec
    entry: TensorEntry


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorAudit:
    """What is wrong with a checkpoint's tensors.

    Attributes:
        matched: names that are as they must be.
        missing: tensors no shard holds, or that are damaged where they lie.
        unexpected: tensors that no part of the model has.
        mis_shaped, mis_typed: tensors of another shape or stored dtype; one tensor may be in both.
        absent_parts: parts that are declared and wholly absent.
        damaged: the reason, for missing tensors that are named but cannot be read.
    """

    matched: tuple[str, ...] = ()
    missing: tuple[TensorSpec, ...] = ()
    unexpected: tuple[TensorEntry, ...] = ()
    mis_shaped: tuple[Mismatch, ...] = ()
    mis_typed: tuple[Mismatch, ...] = ()
    absent_parts: tuple[Part, ...] = ()
    damaged: Mapping[str, Problem] = field(default_factory=dict[str, Problem])

    @property
    def ok(self) -> bool:
        """Whether every tensor that is needed is there as it must be."""
        return not (self.missing or self.mis_shaped or self.mis_typed)

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Everything found, errors first; experts that miss whole are one problem per layer."""
        return (*self._missing(), *self._mismatches(), *self._unexpected(), *self._absent())

    def _missing(self) -> Iterator[Problem]:
        reported: set[int] = set()
        experts: dict[str, list[TensorSpec]] = {}
        for spec in self.missing:
            reason = self.damaged.get(spec.name)
            if reason is None and (match := _EXPERT.match(spec.name)):
                experts.setdefault(match["at"], []).append(spec)
            elif reason is None:
                expected, remedy = f"{spec}", "Fetch the shard that holds it, or check that config.json belongs here."
                yield _problem("missing_tensor", spec.name, expected, "no such tensor", remedy)
            elif id(reason) not in reported:
                reported.add(id(reason))
                yield reason
        for at, specs in experts.items():
            yield from _missing_experts(at, specs)

    def _mismatches(self) -> Iterator[Problem]:
        for item in self.mis_shaped:
            spec, entry = item.spec, item.entry
            inferred = spec.name.startswith("aligner.")  # its widths were never read from a released header
            severity = "warning" if inferred else "error"
            expected, found = f"shape {list(spec.shape)}", f"{list(entry.shape)}"
            yield _problem("wrong_shape", spec.name, expected, found, _CONFIG_REMEDY, entry.file, severity)
        for item in self.mis_typed:
            spec, entry = item.spec, item.entry
            remedy = f"Nothing is converted silently; convert the weight to {spec.dtype} again."
            yield _problem("wrong_dtype", spec.name, f"dtype {spec.dtype}", entry.dtype, remedy, entry.file)

    def _unexpected(self) -> Iterator[Problem]:
        beyond: dict[str, list[TensorEntry]] = {}
        for entry in self.unexpected:
            if match := _EXPERT.match(entry.name):
                beyond.setdefault(match["at"], []).append(entry)
            elif _IGNORED.match(entry.name):
                remedy = "It is ignored."
                expected, found = "the draft to share the backbone's", f"{entry.dtype}{list(entry.shape)}"
                yield _problem("unexpected_tensor", entry.name, expected, found, remedy, entry.file, "note")
            elif _UNFOLDED.search(entry.name):
                expected = "the norm weight folded into the mixing matrix, hc_*_fn"
                remedy = "Fold it in when converting; the model would be wrong without it."
                yield _problem("unfolded_norm", entry.name, expected, "a separate tensor", remedy, entry.file)
            else:
                found = f"{entry.dtype}{list(entry.shape)}"
                expected, remedy = "a tensor this configuration names", f"It is not used. {_CONFIG_REMEDY}"
                yield _problem("unexpected_tensor", entry.name, expected, found, remedy, entry.file, "warning")
        for at, entries in beyond.items():
            ids = _expert_ids(entry.name for entry in entries)
            found = f"{len(entries)} tensors of experts {_id_text(ids)} beyond them"
            yield _problem("expert_ids", at, "experts numbered as config.json says", found, _CONFIG_REMEDY)

    def _absent(self) -> Iterator[Problem]:
        for part in self.absent_parts:
            expected, remedy = f"the tensors of the {part} part", "The text model runs without them."
            yield _problem("missing_tensor", None, expected, "none of them", remedy, None, "warning")


def audit_checkpoint(checkpoint: Checkpoint, config: ModelConfig | None = None) -> TensorAudit:
    """Return how a checkpoint's tensors differ from those its configuration asks for.

    Args:
        checkpoint: opened, strictly or not.
        config: another configuration than the one in the folder.

    Raises:
        CheckpointError, ConfigError: the folder has no usable config.json, and none was given.
    """
    config = checkpoint.model_config() if config is None else config
    declared = declared_parts(config)
    table = tensor_table(config, declared)
    known = checkpoint.entries.keys() | checkpoint.damaged.keys()
    present = {spec.part for name, spec in table.items() if name in known}
    absent: tuple[Part, ...] = tuple(part for part in declared if part != "text" and part not in present)
    wanted = {name: spec for name, spec in table.items() if spec.part not in absent}
    return audit_tensors(wanted, checkpoint.entries, damaged=checkpoint.damaged, absent_parts=absent)


def audit_tensors(
    wanted: Mapping[str, TensorSpec],
    entries: Mapping[str, TensorEntry],
    *,
    damaged: Mapping[str, Problem] | None = None,
    absent_parts: Sequence[Part] = (),
    may_have: Collection[str] | None = None,
) -> TensorAudit:
    """Return how tensors differ from those that are wanted.

    Args:
        wanted: what must be there, by name.
        entries: what is there, by name.
        damaged: what is named but cannot be read, with the reason.
        absent_parts: parts left out of `wanted` because they are absent as a whole.
        may_have: names that are not wanted here and still not unexpected.
    """
    damaged = damaged or {}
    matched: list[str] = []
    missing: list[TensorSpec] = []
    mis_shaped: list[Mismatch] = []
    mis_typed: list[Mismatch] = []
    for name, spec in wanted.items():
        entry = entries.get(name)
        if entry is None:
            missing.append(spec)
            continue
        if entry.shape != spec.shape:
            mis_shaped.append(Mismatch(spec=spec, entry=entry))
        if entry.dtype != spec.dtype:
            mis_typed.append(Mismatch(spec=spec, entry=entry))
        if entry.shape == spec.shape and entry.dtype == spec.dtype:
            matched.append(name)
    allowed = may_have or ()
    return TensorAudit(
        matched=tuple(matched),
        missing=tuple(missing),
        unexpected=tuple(entry for name, entry in entries.items() if name not in wanted and name not in allowed),
        mis_shaped=tuple(mis_shaped),
        mis_typed=tuple(mis_typed),
        absent_parts=tuple(absent_parts),
        damaged={spec.name: damaged[spec.name] for spec in missing if spec.name in damaged},
    )


def _missing_experts(at: str, specs: Sequence[TensorSpec]) -> Iterator[Problem]:
    """Report experts that miss as a whole by their ids, and single tensors of other experts by name."""
    by_id: dict[int, list[TensorSpec]] = {}
    for spec in specs:
        match = _EXPERT.match(spec.name)
        assert match is not None, "only expert tensors are grouped"
        by_id.setdefault(int(match["id"]), []).append(spec)
    whole = [number for number, found in by_id.items() if len(found) == 6]  # three matrices and their scales
    if whole:
        expected = f"experts with these ids: {_id_text(whole)}"
        yield _problem("expert_ids", at, expected, "none of their tensors", "Fetch the shards that hold them.")
    for number, found in by_id.items():
        if number not in whole:
            for spec in found:
                remedy = "Fetch the shard that holds it."
                yield _problem("missing_tensor", spec.name, str(spec), "no such tensor", remedy)


def _expert_ids(names: Iterator[str]) -> list[int]:
    return sorted({int(match["id"]) for name in names if (match := _EXPERT.match(name))})


def _id_text(ids: Sequence[int]) -> str:
    shown = ", ".join(str(number) for number in ids[:_SHOWN_IDS])
    return shown + (f" and {len(ids) - _SHOWN_IDS} more" if len(ids) > _SHOWN_IDS else "")


def _problem(
    kind: ProblemKind,
    tensor: str | None,
    expected: str,
    found: str,
    remedy: str,
    file: str | None = None,
    severity: Severity = "error",
) -> Problem:
    return Problem(
        kind=kind,
        severity=severity,
        file=file,
        tensor=tensor,
        expected=expected,
        found=found,
        remedy=remedy,
    )
