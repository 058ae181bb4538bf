"""A checkpoint folder with its index and its shards reconciled, from headers alone.

The index is the authority: where a name lies in several shards, the index says which one is meant; a tensor it does
not name is reported and left out. Without an index the shards are found by name, their numbering must be complete,
and a name in two of them is an error, because nothing says which one is meant.

Names may carry a leading `model.` in the index, in the shards, or in both; it is dropped everywhere.
"""

import gc
import hashlib
import re
from collections import defaultdict
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from port.checkpoint.entries import TensorEntry
from port.checkpoint.headers import ShardHeader, inspect_header
from port.checkpoint.index_file import IndexFile, find_index, inspect_index
from port.checkpoint.json_text import Json, parse_json
from port.checkpoint.problems import Problem, ProblemKind, Severity

_NAME_PREFIX = "model."
_NUMBERED = re.compile(r"^(?P<stem>.*?)-?(?P<number>\d+)-of-(?P<total>\d+)\.safetensors$")
_OTHER_WEIGHTS = ("*.bin", "*.pt", "*.pth", "*.gguf", "*.npz", "*.ckpt")


@dataclass(frozen=True, slots=True, kw_only=True)
class WrongShard:
    """A tensor that lies in another shard than the index says."""

    tensor: str
    index_says: str
    found_in: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DuplicateTensor:
    """A name stored in several shards; `used` is the shard the index names, None when nothing decides."""

    tensor: str
    files: tuple[str, ...]
    used: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderContents:
    """Everything the headers, the index and the file names of a folder say.

    Attributes:
        path: the folder.
        config: the parsed `config.json`, None when there is none.
        index: the index, None when there is none.
        shards: one per safetensors file that exists, by name.
        entries: the tensors that can be read, by name without prefix.
        damaged: tensors that are named but cannot be read, with the reason.
        missing_shards: files that should exist and do not.
        wrong_shard, duplicates: disagreements between index and shards.
        ghosts: names in the index that no shard holds.
        unindexed: names in shards that the index does not have.
        total_size: bytes of tensor data, each distinct name counted once.
        fingerprint: sha256 over names, sizes, headers, index and config; says nothing about tensor data.
        problems: all of it, as values.
    """

    path: Path
    config: Mapping[str, Json] | None
    index: IndexFile | None
    shards: Mapping[str, ShardHeader]
    entries: Mapping[str, TensorEntry]
    damaged: Mapping[str, Problem]
    missing_shards: tuple[str, ...]
    wrong_shard: tuple[WrongShard, ...]
    duplicates: tuple[DuplicateTensor, ...]
    ghosts: tuple[str, ...]
    unindexed: tuple[str, ...]
    total_size: int
    fingerprint: str
    problems: tuple[Problem, ...]


def read_folder(path: str | Path) -> FolderContents:
    """Return what a checkpoint folder holds; reads headers, index and config, and raises for nothing in them.

    Args:
        path: the folder, or one `.safetensors` file, which is then read alone.
    """
    with _collector_paused():
        return _Reconciliation(Path(path)).contents()


@contextmanager
def _collector_paused() -> Generator[None, None, None]:
    """Keep the garbage collector from looking: a release makes a million objects here, and no garbage in cycles."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def canonical_name(name: str) -> str:
    """Return a tensor's name without the optional leading `model.`."""
    return name.removeprefix(_NAME_PREFIX)


class _Reconciliation:
    """Reads one folder and matches index and shards; single use."""

    def __init__(self, path: Path) -> None:
        is_folder = path.is_dir() or (path.suffix != ".safetensors" and not path.exists())
        self.folder = path if is_folder else path.parent
        self.only_file = None if is_folder else path.name
        self.problems: list[Problem] = []
        self.shards: dict[str, ShardHeader] = {}
        self.entries: dict[str, TensorEntry] = {}
        self.damaged: dict[str, Problem] = {}
        self.missing_shards: list[str] = []
        self.wrong_shard: list[WrongShard] = []
        self.duplicates: list[DuplicateTensor] = []
        self.ghosts: list[str] = []
        self.unindexed: list[str] = []

    def contents(self) -> FolderContents:
        """Return the reconciled folder."""
        config, config_text = self._read_config()
        index = self._read_index()
        self._read_shards(index)
        holders = self._holders()
        if index is not None and index.weight_map:
            self._follow_index(index, holders)
        elif index is None:
            self._check_numbering(self.shards)
            self._take_all(holders)
        self._note_damage(holders)
        total = self._check_total(index, holders)
        return FolderContents(
            path=self.folder,
            config=config,
            index=index,
            shards=self.shards,
            entries=self.entries,
            damaged=self.damaged,
            missing_shards=tuple(self.missing_shards),
            wrong_shard=tuple(self.wrong_shard),
            duplicates=tuple(self.duplicates),
            ghosts=tuple(self.ghosts),
            unindexed=tuple(self.unindexed),
            total_size=total,
            fingerprint=self._fingerprint(config_text, index),
            problems=tuple(self.problems),
        )

    def _read_config(self) -> tuple[Mapping[str, Json] | None, bytes]:
        path = self.folder / "config.json"
        if not path.is_file():
            return None, b""
        try:
            text = path.read_bytes()
            value, repeated = parse_json(text)
            if not isinstance(value, dict):
                raise ValueError(f"a JSON {type(value).__name__}")
            if repeated:
                raise ValueError(f"the keys {', '.join(repeated)} twice")
        except (OSError, ValueError) as error:
            found = error.strerror or str(error) if isinstance(error, OSError) else str(error)
            self._problem("config_json", "config.json", None, "a JSON object", found, "Fetch config.json again.")
            return None, b""
        return value, text

    def _read_index(self) -> IndexFile | None:
        path = None if self.only_file else find_index(self.folder)
        if path is None:
            return None
        index = inspect_index(path)
        self.problems.extend(index.problems)
        return index

    def _read_shards(self, index: IndexFile | None) -> None:
        found = [self.only_file] if self.only_file else sorted(path.name for path in self.folder.glob("*.safetensors"))
        named = list(dict.fromkeys(index.weight_map.values())) if index is not None else []
        for file in sorted({*found, *named}):
            path = self.folder / file
            if not path.exists():
                self._report_missing(file, path, index)
                continue
            self._check_link(file, path)
            header = self.shards[file] = inspect_header(path, file=file)
            unused = bool(named) and file not in named
            if unused:
                self._problem(
                    "unindexed_shard",
                    file,
                    None,
                    "every shard in the index",
                    "a shard the index does not name",
                    "It is not used. Remove it, or rebuild the index.",
                    severity="warning",
                )
            # A damaged file that nothing refers to harms nobody, but it is still worth a word.
            self.problems.extend(replace(p, severity="warning") if unused else p for p in header.problems)
        if not self.shards and not self.missing_shards:
            self._report_no_shards()

    def _report_missing(self, file: str, path: Path, index: IndexFile | None) -> None:
        names = [name for name, shard in index.weight_map.items() if shard == file] if index is not None else []
        self.missing_shards.append(file)
        shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        found = f"a broken link to {path.readlink()}" if path.is_symlink() else "no such file"
        needs = f", needed by {len(names)} tensor{'s' if len(names) != 1 else ''} ({shown})" if names else ""
        problem = self._problem(
            "missing_shard", file, None, "a shard the index names", found + needs, "Download this shard."
        )
        self.damaged.update((canonical_name(name), problem) for name in names)

    def _check_link(self, file: str, path: Path) -> None:
        """Accept links inside the folder and into the blob store of a Hugging Face cache; mention all others."""
        folder, target = self.folder.resolve(), path.resolve()
        cache_root = folder.parent.parent if folder.parent.name == "snapshots" else folder
        if not target.is_relative_to(folder) and not target.is_relative_to(cache_root):
            self._problem(
                "link_outside_folder",
                file,
                None,
                "a file inside the checkpoint folder",
                f"a link to {target}",
                "It was followed, because a link in the folder is its owner's choice; check that it is meant.",
                severity="warning",
            )

    def _report_no_shards(self) -> None:
        folder = self.folder
        if not folder.is_dir():
            found, remedy = "no such folder", "Check the path."
        else:
            others = sorted(path.name for pattern in _OTHER_WEIGHTS for path in folder.glob(pattern))
            found = f"{others[0]} and no safetensors file" if others else f"no safetensors file in {folder}"
            remedy = "Use the safetensors release of the model; other formats are not loaded."
        self._problem("no_shards", None, None, "at least one .safetensors file", found, remedy)

    def _holders(self) -> dict[str, list[TensorEntry]]:
        """Return, for each name without prefix, the readable entries that carry it."""
        holders: dict[str, list[TensorEntry]] = defaultdict(list)
        for header in self.shards.values():
            here: set[str] = set()
            for stored, entry in header.entries.items():
                name = canonical_name(stored)
                if name != stored:
                    entry = replace(entry, name=name, stored_name=stored)
                if name in here:
                    self._problem(
                        "name_prefix",
                        header.file,
                        name,
                        f"one of {name} and {_NAME_PREFIX}{name}",
                        "both",
                        "The writer of this file is at fault; keep the one that is meant.",
                    )
                    continue
                here.add(name)
                holders[name].append(entry)
        return holders

    def _follow_index(self, index: IndexFile, holders: Mapping[str, Sequence[TensorEntry]]) -> None:
        claims: dict[str, str] = {}
        for written, file in index.weight_map.items():
            name = canonical_name(written)
            if claims.setdefault(name, file) != file:
                self._problem(
                    "name_prefix",
                    index.file,
                    name,
                    f"one of {name} and {_NAME_PREFIX}{name}",
                    f"both, in {claims[name]} and {file}",
                    "Rebuild the index from the headers of the shards.",
                )
        for name, file in claims.items():
            found = holders.get(name, ())
            if len(found) == 1 and found[0].file == file:
                self.entries[name] = found[0]
            else:
                self._follow_claim(index, name, file, found)
        named_files = set(claims.values())
        for name in holders.keys() - claims.keys():
            self.unindexed.append(name)
        self.unindexed.sort()
        for name in self.unindexed:
            files = [entry.file for entry in holders[name] if entry.file in named_files]
            if files:  # the shard as a whole has been mentioned where the index does not name it
                self._problem(
                    "unindexed_tensor",
                    files[0],
                    name,
                    "every tensor in the index",
                    "a tensor the index does not name",
                    "It is left out. Rebuild the index if it is meant to be part of the checkpoint.",
                    severity="warning",
                )

    def _follow_claim(self, index: IndexFile, name: str, file: str, found: Sequence[TensorEntry]) -> None:
        files = tuple(entry.file for entry in found)
        here = next((entry for entry in found if entry.file == file), None)
        if here is not None:
            self.entries[name] = here
            if len(found) > 1:
                self.duplicates.append(DuplicateTensor(tensor=name, files=files, used=file))
                self._problem(
                    "duplicate_tensor",
                    file,
                    name,
                    "each tensor in one shard",
                    f"it in {' and '.join(files)}",
                    f"The index is the authority: the one in {file} is used.",
                    severity="warning",
                )
            return
        shard = self.shards.get(file)
        if shard is None:
            return  # reported as missing, with every name in it
        reason = self._damage_of(shard, name) or (None if shard.data_start else shard.problems[0])
        if reason is not None:
            self.damaged[name] = reason
            return
        if found:
            self.wrong_shard.append(WrongShard(tensor=name, index_says=file, found_in=files))
            problem = self._problem(
                "wrong_shard",
                index.file,
                name,
                f"it in {file}, as the index says",
                f"it in {' and '.join(files)}",
                "Rebuild the index from the headers of the shards.",
            )
        else:
            self.ghosts.append(name)
            problem = self._problem(
                "ghost_tensor",
                index.file,
                name,
                f"it in {file}, as the index says",
                "it in no shard",
                "Fetch the shards again, or rebuild the index from their headers.",
            )
        self.damaged[name] = problem

    def _take_all(self, holders: Mapping[str, Sequence[TensorEntry]]) -> None:
        for name, found in holders.items():
            if len(found) == 1:
                self.entries[name] = found[0]
                continue
            files = tuple(entry.file for entry in found)
            self.duplicates.append(DuplicateTensor(tensor=name, files=files, used=None))
            self.damaged[name] = self._problem(
                "duplicate_tensor",
                files[-1],
                name,
                "each tensor in one shard",
                f"it in {' and '.join(files)}, and no index to say which is meant",
                "Remove the stale shards, or write an index.",
            )

    def _check_numbering(self, files: Iterable[str]) -> None:
        """Without an index, `model-00002-of-00003` promises two more files."""
        series: dict[tuple[str, str], set[int]] = defaultdict(set)
        for file in files:
            if match := _NUMBERED.match(file):
                series[match["stem"], match["total"]].add(int(match["number"]))
        for (stem, total), numbers in series.items():
            absent = sorted(set(range(1, int(total) + 1)) - numbers) if int(total) < 100_000 else []
            if 0 in numbers and absent == [int(total)]:
                continue  # counted from zero
            for number in absent:
                lead = f"{stem}-" if stem else ""
                file = f"{lead}{number:0{len(total)}d}-of-{total}.safetensors"
                self.missing_shards.append(file)
                found = f"no such file among the {len(numbers)} of {int(total)}"
                expected = "all shards of a numbered series"
                self._problem("missing_shard", file, None, expected, found, "Download this shard.")
        if len({total for _, total in series}) > 1:
            totals = " and ".join(sorted(f"-of-{total}" for _, total in series))
            expected, remedy = "shards of one series", "Remove the files of the older download."
            self._problem("shard_numbering", None, None, expected, totals, remedy, severity="warning")

    def _note_damage(self, holders: Mapping[str, Sequence[TensorEntry]]) -> None:
        for header in self.shards.values():
            for stored, problem in header.damaged.items():
                name = canonical_name(stored)
                if name not in self.entries and name not in holders:
                    self.damaged.setdefault(name, problem)

    def _damage_of(self, header: ShardHeader, name: str) -> Problem | None:
        return header.damaged.get(name) or header.damaged.get(_NAME_PREFIX + name)

    def _check_total(self, index: IndexFile | None, holders: Mapping[str, Sequence[TensorEntry]]) -> int:
        distinct = {name: found[0].nbytes for name, found in holders.items()}
        complete = not self.missing_shards
        for header in self.shards.values():
            complete = complete and bool(header.data_start)
            if header.missing_bytes:
                # The header still says what the damaged tensors should hold.
                gap = header.declared_bytes - sum(entry.nbytes for entry in header.entries.values())
                distinct[f"\0{header.file}"] = gap
        distinct.update((entry.name, entry.nbytes) for entry in self.entries.values())
        total = sum(distinct.values())
        claimed = index.total_size if index is not None else None
        named = sum(entry.nbytes for entry in self.entries.values())
        if index is not None and claimed is not None and complete and claimed not in (total, named):
            remedy = "Nothing depends on this number; a writer that gets it wrong may be wrong elsewhere."
            expected = f"total_size {total}, the sum over the shards"
            self._problem("total_size", index.file, None, expected, str(claimed), remedy, severity="warning")
        return total

    def _fingerprint(self, config_text: bytes, index: IndexFile | None) -> str:
        digest = hashlib.sha256()
        for text in (config_text, index.text if index is not None else b""):
            digest.update(len(text).to_bytes(8, "little") + text)
        for file, header in sorted(self.shards.items()):
            digest.update(f"{file}\0{header.file_bytes}\0{header.digest}\0".encode())
        return digest.hexdigest()

    def _problem(
        self,
        kind: ProblemKind,
        file: str | None,
        tensor: str | None,
        expected: str,
        found: str,
        remedy: str,
        *,
        severity: Severity = "error",
    ) -> Problem:
        problem = Problem(
            kind=kind, severity=severity, file=file, tensor=tensor, expected=expected, found=found, remedy=remedy
        )
        self.problems.append(problem)
        return problem
