"""`model.safetensors.index.json`: which shard holds which tensor, checked before a path in it is followed.

    {"metadata": {"total_size": BYTES}, "weight_map": {"layers.0.attn.wq_a.weight":
    "model-00001-of-00048.safetensors", ...}}

An index comes from somebody else. A path in it that is absolute, climbs out of the folder or uses another system's
separators is reported and never opened.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from port.checkpoint.json_text import Json, parse_json
from port.checkpoint.problems import Problem, ProblemKind

INDEX_NAME = "model.safetensors.index.json"
_FETCH_AGAIN = "Fetch the index again, or rebuild it from the headers of the shards."


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexFile:
    """What an index says.

    Attributes:
        file: its file name.
        weight_map: tensor name as written in the index to shard file name; only entries whose path stays inside the
        folder.
        total_size: the bytes of tensor data it claims, None when it does not say.
        repeated_keys: tensor names that stand in it twice.
        paths_outside: shard paths that leave the folder, in order of appearance; never opened.
        text: the bytes of the file, for the fingerprint.
        problems: everything wrong with the file itself.
    """

    file: str
    weight_map: Mapping[str, str] = field(default_factory=dict[str, str])
    total_size: int | None = None
    repeated_keys: tuple[str, ...] = ()
    paths_outside: tuple[str, ...] = ()
    text: bytes = b""
    problems: tuple[Problem, ...] = ()


def find_index(folder: Path) -> Path | None:
    """Return the index of a folder: the usual name, else the only `*.safetensors.index.json`, else None."""
    usual = folder / INDEX_NAME
    if usual.is_file() or usual.is_symlink():
        return usual
    others = sorted(folder.glob("*.safetensors.index.json"))
    return others[0] if len(others) == 1 else None


def inspect_index(path: Path) -> IndexFile:
    """Return what the index at `path` says, with every problem found; raises for nothing the file contains."""
    try:
        text = path.read_bytes()
    except OSError as error:
        return _refused(path, "index_json", "a readable index", error.strerror or str(error))
    if text.startswith(b"version https://git-lfs"):
        remedy = "Run `git lfs pull` in the repository, or download the file itself."
        return _refused(path, "lfs_pointer", "an index in JSON", "a Git LFS pointer", remedy=remedy)
    try:
        value, repeated = parse_json(text)
    except ValueError as error:
        return _refused(path, "index_json", "JSON text in UTF-8", str(error))
    weight_map = value.get("weight_map") if isinstance(value, dict) else None
    if not isinstance(value, dict) or not isinstance(weight_map, dict):
        found = f"keys {sorted(value)[:8]}" if isinstance(value, dict) else type(value).__name__
        return _refused(path, "index_json", "an object with `weight_map`", found)
    return _check_map(path, value, weight_map, repeated, text)


def _check_map(
    path: Path, value: dict[str, Json], weight_map: dict[str, Json], repeated: tuple[str, ...], text: bytes
) -> IndexFile:
    problems: list[Problem] = []
    inside: dict[str, str] = {}
    outside: dict[str, list[str]] = {}
    leaves: dict[str, bool] = {}
    for name, shard in weight_map.items():
        if not isinstance(shard, str) or not shard:
            problems.append(_problem(path, "index_json", "a file name as text", repr(shard)[:80], tensor=name))
            continue
        if shard not in leaves:
            leaves[shard] = _leaves_folder(shard)
        if leaves[shard]:
            outside.setdefault(shard, []).append(name)
        else:
            inside[name] = shard
    for shard, names in outside.items():
        remedy = "It was not opened. Do not use this index unless you can explain the path."
        found = f"{shard!r} for {len(names)} tensor{'s' if len(names) > 1 else ''}"
        expected = "a file inside the checkpoint folder"
        problems.append(_problem(path, "path_outside_folder", expected, found, tensor=names[0], remedy=remedy))
    problems.extend(
        _problem(path, "duplicate_key", "each key once", "the same key twice, with only the last kept", tensor=name)
        for name in repeated
    )
    metadata = value.get("metadata")
    total = metadata.get("total_size") if isinstance(metadata, dict) else None
    if isinstance(total, float) and total.is_integer():
        total = int(total)  # some writers store the sum as a float
    if total is not None and type(total) is not int:
        found = repr(total)[:80]
        problems.append(_problem(path, "total_size", "total_size in bytes", found, severity="warning"))
    return IndexFile(
        file=path.name,
        weight_map=inside,
        total_size=total if type(total) is int else None,
        repeated_keys=repeated,
        paths_outside=tuple(outside),
        text=text,
        problems=tuple(problems),
    )


def _leaves_folder(shard: str) -> bool:
    if "\\" in shard or "\0" in shard or shard[1:2] == ":" or shard.startswith("~"):
        return True
    relative = PurePosixPath(shard)
    return relative.is_absolute() or ".." in relative.parts


def _refused(path: Path, kind: ProblemKind, expected: str, found: str, *, remedy: str = _FETCH_AGAIN) -> IndexFile:
    return IndexFile(file=path.name, problems=(_problem(path, kind, expected, found, remedy=remedy),))


def _problem(
    path: Path,
    kind: ProblemKind,
    expected: str,
    found: str,
    *,
    tensor: str | None = None,
    remedy: str = _FETCH_AGAIN,
    severity: str = "error",
) -> Problem:
    return Problem(
        kind=kind,
        severity="warning" if severity == "warning" else "error",
        file=path.name,
        tensor=tensor,
        expected=expected,
        found=found,
        remedy=remedy,
    )
