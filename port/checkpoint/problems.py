"""What can be wrong with a checkpoint, as values: collected first, then raised all together.

A `Problem` names the file, the tensor, what was expected, what was found and what to do. Reading code never raises
the first one it meets; it collects them, so that one run over a damaged download lists every shard to fetch again.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from port.errors import CheckpointError

Severity = Literal["error", "warning", "note"]

ProblemKind = Literal[
    # the file itself
    "unreadable",
    "empty_file",
    "lfs_pointer",
    "not_safetensors",
    "header_length",
    "truncated_header",
    "header_json",
    "metadata",
    "duplicate_key",
    "tensor_record",
    "unknown_dtype",
    "shape",
    "size_mismatch",
    "offsets",
    "overlap",
    "hole",
    "truncated",
    "trailing_bytes",
    # the folder
    "no_shards",
    "config_json",
    "index_json",
    "path_outside_folder",
    "link_outside_folder",
    "missing_shard",
    "shard_numbering",
    "unindexed_shard",
    "wrong_shard",
    "ghost_tensor",
    "unindexed_tensor",
    "duplicate_tensor",
    "name_prefix",
    "total_size",
    # weights and their scales
    "missing_scale",
    "scale_without_weight",
    "scale_shape",
    "scale_dtype",
    "ambiguous_scale",
    "scale_in_other_shard",
    # the tensor table of the model
    "missing_tensor",
    "unexpected_tensor",
    "wrong_shape",
    "wrong_dtype",
    "unfolded_norm",
    "expert_ids",
    # stored values
    "nan_value",
    "nan_scale",
    "above_device_range",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing that is not as it should be.

    Attributes:
        kind: what it is, from a closed list.
        severity: "error" refuses, "warning" goes on and says so, "note" is worth knowing.
        file: name of the file inside the checkpoint folder, None when it concerns no single file.
        tensor: name of the tensor, None when it concerns no single tensor.
        expected: what was expected, in words with values.
        found: what came.
        remedy: what to do.
    """

    kind: ProblemKind
    severity: Severity = "error"
    file: str | None = None
    tensor: str | None = None
    expected: str
    found: str
    remedy: str

    def __str__(self) -> str:
        where = ": ".join(part for part in (self.file, self.tensor) if part)
        lead = f"{where}: " if where else ""
        return f"{lead}expected {self.expected}; found {self.found}. {self.remedy}"


def errors_in(problems: Iterable[Problem]) -> tuple[Problem, ...]:
    """Return the problems that refuse a checkpoint."""
    return tuple(problem for problem in problems if problem.severity == "error")


def checkpoint_error(subject: str, problems: Sequence[Problem], *, limit: int = 25) -> CheckpointError:
    """Return one error that lists every problem given.

    Args:
        subject: what was being done, as in `tiny_v41: cannot be opened`.
        problems: at least one; those beyond `limit` are counted in the text and kept in the error's `problems`.
        limit: lines in the text.
    """
    count = len(problems)
    lines = [f"{subject}: {count} problem{'' if count == 1 else 's'}"]
    lines.extend(f"  {problem}" for problem in problems[:limit])
    if count > limit:
        lines.append(f"  and {count - limit} more; inspect_checkpoint(...).problems lists all of them")
    return CheckpointError("\n".join(lines) if count != 1 else f"{subject}: {problems[0]}", problems=tuple(problems))
