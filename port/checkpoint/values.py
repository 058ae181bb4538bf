"""Reads stored values and says what is odd about them: NaN, infinity, FP8 codes a device reads differently.

Nothing is changed. Data is read in pieces of whole tiles, about `PIECE_BYTES` each, so that a checkpoint of any size
can be checked.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import torch

from port.checkpoint.entries import TensorEntry
from port.checkpoint.index import Checkpoint
from port.checkpoint.problems import Problem
from port.checkpoint.reader import CheckpointReader
from port.checkpoint.scales import QuantizedEntry
from port.checkpoint.value_tally import DEVICE_FP8_MAX, ValueReport, ValueTally

PIECE_BYTES = 16 << 20
_PLAIN_FLOATS = ("F32", "BF16", "F16", "F64")
_SHOWN = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class NonFinite:
    """NaN or infinite elements of one tensor that is stored as plain floats.

    Attributes:
        name: of the tensor.
        count: such elements.
        indices: where the first few are.
    """

    name: str
    count: int
    indices: tuple[tuple[int, ...], ...]


def check_values(
    checkpoint: Checkpoint,
    names: Sequence[str] | None = None,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[ValueReport, ...]:
    """Read quantised weights and return a report on each.

    Args:
        checkpoint: an opened checkpoint.
        names: weights to read, None for all quantised ones.
        progress: called with bytes done and bytes in all after each weight.

    Raises:
        CheckpointError: a name that is no quantised weight.
    """
    chosen = [checkpoint.quantized_entry(name) for name in (checkpoint.pairing.quantized if names is None else names)]
    total, done = sum(entry.nbytes for entry in chosen), 0
    reports: list[ValueReport] = []
    with checkpoint.reader() as reader:
        for entry in chosen:
            reports.append(_check_entry(checkpoint, entry, reader))
            done += entry.nbytes
            if progress is not None:
                progress(done, total)
    return tuple(reports)


def find_nonfinite(checkpoint: Checkpoint, names: Sequence[str] | None = None) -> tuple[NonFinite, ...]:
    """Read tensors stored as plain floats and return those that hold NaN or infinity.

    Args:
        checkpoint: an opened checkpoint.
        names: tensors to read, None for all stored as F32, BF16, F16 or F64, scales of quantised weights left out.
    """
    scales = {pair.scale.name for pair in checkpoint.pairing.quantized.values()}
    chosen = (
        [entry for entry in checkpoint.entries.values() if entry.dtype in _PLAIN_FLOATS and entry.name not in scales]
        if names is None
        else [checkpoint.entry(name) for name in names]
    )
    found: list[NonFinite] = []
    with checkpoint.reader() as reader:
        for entry in chosen:
            count, indices = 0, list[tuple[int, ...]]()
            for rows in _pieces(entry, 1):
                piece = reader.read_slice(entry, [rows] if entry.shape else [])
                bad = ~torch.isfinite(piece)
                count += int(bad.sum())
                found_at = bad.nonzero()[: _SHOWN - len(indices)]
                shown = cast("list[list[int]]", found_at.tolist())  # pyright: ignore[reportUnknownMemberType]
                indices.extend((index[0] + rows.start, *index[1:]) if index else () for index in shown)
            if count:
                found.append(NonFinite(name=entry.name, count=count, indices=tuple(indices)))
    return tuple(found)


def value_problems(
    checkpoint: Checkpoint, reports: Sequence[ValueReport], nonfinite: Sequence[NonFinite] = ()
) -> tuple[Problem, ...]:
    """Return what a user of the checkpoint should know about its values; all of it warnings."""
    problems = [problem for report in reports for problem in _report_problems(checkpoint, report)]
    for item in nonfinite:
        problems.append(
            Problem(
                kind="nan_value",
                severity="warning",
                file=checkpoint.entry(item.name).file,
                tensor=item.name,
                expected="finite numbers",
                found=f"{item.count} NaN or infinite at {_places(item.indices)}",
                remedy="Convert the weight again.",
            )
        )
    return tuple(problems)


def _report_problems(checkpoint: Checkpoint, report: ValueReport) -> Iterator[Problem]:
    pair = checkpoint.pairing.quantized[report.name]
    if report.nan_scale_count:
        yield Problem(
            kind="nan_scale",
            severity="warning",
            file=pair.scale.file,
            tensor=pair.scale.name,
            expected="finite scales",
            found=f"{report.nan_scale_count} NaN or infinite at {_places(report.nan_scale_indices)}",
            remedy=f"{report.nan_element_count} elements of {report.name} become NaN. Convert the weight again.",
        )
    if report.nan_value_count:
        yield Problem(
            kind="nan_value",
            severity="warning",
            file=pair.weight.file,
            tensor=report.name,
            expected="no NaN codes",
            found=f"{report.nan_value_count} at {_places(report.nan_value_indices)}",
            remedy="Convert the weight again.",
        )
    if report.fix is not None:
        yield Problem(
            kind="above_device_range",
            severity="warning",
            file=pair.weight.file,
            tensor=report.name,
            expected=f"codes up to {DEVICE_FP8_MAX:g} for a device whose e4m3 ends there",
            found=f"{report.above_device_count} of {report.element_count} codes above it, up to {report.max_abs:g}",
            remedy=f"They are valid on the host. For such a device, {report.fix}.",
        )


def _check_entry(checkpoint: Checkpoint, entry: QuantizedEntry, reader: CheckpointReader) -> ValueReport:
    tally = ValueTally(entry)
    for rows in _pieces(entry.weight, entry.block[0]):
        tally.add(checkpoint.read_quantized(entry.name, rows, reader=reader), rows.start)
    return tally.report()


def _pieces(entry: TensorEntry, tile_rows: int) -> Iterator[slice]:
    """Yield row ranges of whole tiles, each of about `PIECE_BYTES`; one range for a scalar."""
    rows = entry.shape[0] if entry.shape else 1
    row_bytes = max(1, entry.nbytes // max(1, rows))
    step = max(1, PIECE_BYTES // row_bytes // tile_rows) * tile_rows
    for first in range(0, rows, step):
        yield slice(first, min(rows, first + step))


def _places(indices: Sequence[Sequence[int]]) -> str:
    return ", ".join(str(list(index)) for index in indices)
