"""What no checkpoint may get away with, tried in deed rather than read off a report.

Reading a damaged tensor must raise, naming the file; a weight whose scale is missing must not dequantise; opening a
folder with errors must raise one error that names each file; a scale byte must become a power of two, its NaN a NaN;
codes must come back unclamped; a name stored twice must give the data of the shard the index names; no file outside
the folder may have been opened.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath

import torch

from port.checkpoint.problems import errors_in
from port.errors import CheckpointError
from workbench.cases.checkpoint_facts import CheckpointFacts


def deed_faults(facts: CheckpointFacts) -> list[str]:
    """Return one sentence per thing the port should not have done; none when all is well."""
    return [
        *_damaged_read(facts),
        *_refused_dequantized(facts),
        *_errors_without_place(facts),
        *_scales_misread(facts),
        *_codes_changed(facts),
        *_wrong_duplicate(facts),
        *_outside_opened(facts),
    ]


def _damaged_read(facts: CheckpointFacts) -> Iterator[str]:
    for name in facts.checkpoint.damaged:
        try:
            facts.checkpoint.read(name)
        except CheckpointError as error:
            problem = facts.checkpoint.damaged[name]
            if problem.file and problem.file not in str(error):
                yield f"reading {name}: expected an error that names {problem.file}; found {error}"
        else:
            yield f"reading {name}: expected a refusal, because it is damaged; found data"


def _refused_dequantized(facts: CheckpointFacts) -> Iterator[str]:
    for name in facts.checkpoint.pairing.refused:
        try:
            facts.checkpoint.read_quantized(name)
        except CheckpointError:
            continue
        yield f"dequantising {name}: expected a refusal, because its scale is missing or does not fit; found numbers"


def _errors_without_place(facts: CheckpointFacts) -> Iterator[str]:
    errors = errors_in(facts.report.contents.problems)
    message = facts.message()
    if errors and not message:
        yield "opening: expected a refusal, because the folder has errors; found that it opened"
    for problem in errors[:25]:  # the text lists this many and counts the rest
        if problem.file and problem.file not in message:
            yield f"opening: expected an error that names {problem.file}; found {message!r}"
    for problem in facts.problems:
        if not (problem.expected and problem.found and problem.remedy):
            yield f"{problem.kind}: expected what was expected, what was found and a remedy; found {problem}"


def _scales_misread(facts: CheckpointFacts) -> Iterator[str]:
    for name, pair in facts.quantized.items():
        if pair.scale_kind == "number":
            continue
        stored = facts.checkpoint.read(pair.scale.name).view(torch.uint8).to(torch.float64).flatten()
        wanted = torch.where(stored == 255, torch.nan, torch.exp2(stored - 127))
        found = facts.scales[name].to(torch.float64).flatten()
        if not torch.equal(torch.nan_to_num(wanted, nan=-1.0), torch.nan_to_num(found, nan=-1.0)):
            yield f"{pair.scale.name}: expected 2**(byte - 127), and NaN for byte 255; found other numbers"
        if bool(torch.isinf(facts.dequantized[name]).any()):
            yield f"{name}: expected NaN where a scale is NaN; found infinity"


def _codes_changed(facts: CheckpointFacts) -> Iterator[str]:
    for report in facts.values:
        codes = facts.checkpoint.read_quantized(report.name)
        if codes.packed or codes.weight.dtype != torch.float8_e4m3fn:
            continue
        magnitudes = codes.weight.to(torch.float32).abs().nan_to_num(nan=0.0)
        largest = float(magnitudes.max()) if magnitudes.numel() else 0.0
        if largest != report.max_abs:
            yield f"{report.name}: expected codes as stored, up to {report.max_abs:g}; found {largest:g}"


def _wrong_duplicate(facts: CheckpointFacts) -> Iterator[str]:
    for item in facts.report.contents.duplicates:
        entry = facts.checkpoint.entries.get(item.tensor)
        used = entry.file if entry is not None else None
        if used != item.used:
            yield f"{item.tensor}: expected the copy in {item.used} (the index decides); found the one in {used}"


def _outside_opened(facts: CheckpointFacts) -> Iterator[str]:
    for file in facts.report.contents.shards:
        path = PurePosixPath(file)
        if path.is_absolute() or ".." in path.parts:
            yield f"{file}: expected that no file outside the folder is opened; found that it was"
