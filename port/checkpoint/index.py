"""A checkpoint opened from its headers: every tensor known, none read.

    checkpoint = open_checkpoint("fixtures/tiny_v41")
    checkpoint.entries["embed.weight"]                    # shape, dtype, file, offset
    checkpoint.read_slice("embed.weight", [slice(0, 4)])  # only these bytes are fetched
    checkpoint.read_quantized("layers.0.attn.wkv.weight").dequantize()

Opening raises for what makes the whole folder untrustworthy: a truncated shard, an index that lies, a path that
leaves the folder. What concerns one tensor (a missing scale) is listed in `problems` and refused when that tensor is
used.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path

from torch import Tensor

from port.checkpoint.codecs import QuantizedTensor, cut_entry
from port.checkpoint.entries import TensorEntry
from port.checkpoint.folder import FolderContents, canonical_name, read_folder
from port.checkpoint.inventory import Inventory, take_inventory
from port.checkpoint.json_text import Json
from port.checkpoint.problems import Problem, checkpoint_error, errors_in
from port.checkpoint.reader import CheckpointReader
from port.checkpoint.scales import Pairing, QuantizedEntry, pair_scales
from port.config import ModelConfig
from port.errors import CheckpointError


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRef:
    """What a record keeps of a checkpoint: where it lay, and which one it was.

    Attributes:
        path: the folder, as given.
        fingerprint: see `Checkpoint`.
    """

    path: str
    fingerprint: str


@dataclass(frozen=True, kw_only=True, eq=False)
class Checkpoint:
    """An opened checkpoint folder; immutable, and cheap to keep. Weights and scales are paired when first asked for.

    Attributes:
        path: the folder.
        config: the parsed `config.json`, None when the folder has none.
        entries: every tensor that can be read, by name without `model.` prefix.
        damaged: tensors that are named somewhere but cannot be used, with the reason.
        fingerprint: sha256 over names, sizes, headers, index and config. Tensor data is no part of it.
        index_file: name of the index, None when the shards were found by name.
        folder_problems: what is wrong or worth knowing about the folder; no errors unless opened with `strict=False`.
    """

    path: Path
    config: Mapping[str, Json] | None
    entries: Mapping[str, TensorEntry]
    damaged: Mapping[str, Problem]
    fingerprint: str
    index_file: str | None
    folder_problems: tuple[Problem, ...]

    @cached_property
    def pairing(self) -> Pairing:
        """Weights with their scales, and the weights whose scale is missing or does not fit."""
        return pair_scales(self.entries, block=_block_size(self.config), unreadable=self.damaged)

    @cached_property
    def problems(self) -> tuple[Problem, ...]:
        """All that is wrong or worth knowing: of the folder first, then of single weights and scales."""
        return (*self.folder_problems, *self.pairing.problems)

    @property
    def ref(self) -> CheckpointRef:
        """Path and fingerprint, for records."""
        return CheckpointRef(path=str(self.path), fingerprint=self.fingerprint)

    @property
    def nbytes(self) -> int:
        """Bytes of all readable tensors."""
        return sum(entry.nbytes for entry in self.entries.values())

    def model_config(self) -> ModelConfig:
        """Return the validated model configuration.

        Raises:
            CheckpointError: the folder has no usable config.json.
            ConfigError: it has one that does not describe a model this port runs.
        """
        if self.config is None:
            raise CheckpointError(
                f"{self.path}: expected a config.json, which this operation needs; found none. "
                "Copy the config.json of the release into the folder."
            )
        return ModelConfig.from_dict(self.config)

    def inventory(self) -> Inventory:
        """Return what the checkpoint holds, by family and dtype."""
        return take_inventory(self.entries.values())

    def entry(self, name: str) -> TensorEntry:
        """Return where a tensor lies.

        Raises:
            CheckpointError: no such tensor (with the nearest name), or one that is damaged (with the reason).
        """
        found = self.entries.get(canonical_name(name))
        if found is not None:
            return found
        if problem := self.damaged.get(canonical_name(name)):
            raise checkpoint_error(f"{self.path.name}: {name} cannot be read", [problem])
        close = get_close_matches(canonical_name(name), self.entries, n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise CheckpointError(
            f"{self.path.name}: expected a tensor of the checkpoint; found no {name!r} among {len(self.entries)}.{hint}"
        )

    def reader(self) -> CheckpointReader:
        """Return a reader that keeps its files open; use it as a context manager when reading many tensors."""
        return CheckpointReader(self.path)

    def read(self, name: str) -> Tensor:
        """Return a whole tensor as stored; see `CheckpointReader.read`."""
        with self.reader() as reader:
            return reader.read(self.entry(name))

    def read_slice(self, name: str, slices: Sequence[slice | int]) -> Tensor:
        """Return a slice of a tensor as stored, reading no other bytes; see `CheckpointReader.read_slice`."""
        with self.reader() as reader:
            return reader.read_slice(self.entry(name), slices)

    def read_quantized(
        self,
        name: str,
        rows: slice = slice(None),
        columns: slice = slice(None),
        *,
        reader: CheckpointReader | None = None,
    ) -> QuantizedTensor:
        """Return a quantised weight, or a slice of one, together with exactly the scales it needs.

        Args:
            name: of the weight.
            rows: step 1, in elements.
            columns: step 1, in elements also where two share a byte.
            reader: an open reader to use; by default one is opened and closed.

        Raises:
            CheckpointError: no such tensor, one that is not quantised, or one whose scale is missing or does not fit.
        """
        if reader is None:
            with self.reader() as own:
                return self.read_quantized(name, rows, columns, reader=own)
        entry = self.quantized_entry(name)
        cut = cut_entry(entry, rows, columns)
        in_elements = entry.weight.dtype == "F4"  # an F4 axis counts codes; packed I8 and U8 axes count bytes
        stored_columns = cut.columns if in_elements else cut.weight[1]
        weight = reader.read_slice(entry.weight, [cut.weight[0], stored_columns])
        if len(entry.scale.shape) == 2:
            scale = reader.read_slice(entry.scale, cut.scale)
        else:
            grid = tuple(-(-size // part) for size, part in zip(entry.shape, entry.block, strict=True))
            scale = reader.read(entry.scale).view(grid)[cut.scale[0], cut.scale[1]]
        return QuantizedTensor(
            name=entry.name,
            weight=weight,
            scale=scale,
            block=entry.block,
            packed=entry.packed,
            scale_kind=entry.scale_kind,
            origin=cut.origin,
        )

    def quantized_entry(self, name: str) -> QuantizedEntry:
        """Return a quantised weight with its scale, as stored.

        Raises:
            CheckpointError: see `read_quantized`.
        """
        found = self.pairing.quantized.get(canonical_name(name))
        if found is not None:
            return found
        entry = self.entry(name)
        if refusal := self.pairing.refused.get(entry.name):
            raise checkpoint_error(f"{self.path.name}: {entry.name} cannot be dequantised", [refusal])
        raise CheckpointError(
            f"{entry.name}: expected a quantised weight with a scale; found {entry.dtype}{list(entry.shape)} "
            f"in {entry.file}. Read it with `read`."
        )


def open_checkpoint(path: str | Path, *, strict: bool = True) -> Checkpoint:
    """Return a checkpoint opened from its headers; no tensor is read.

    Args:
        path: the folder, or a single `.safetensors` file.
        strict: refuse a folder with structural errors. Otherwise they are in `problems`, and only sound tensors are
            readable.

    Raises:
        CheckpointError: with `strict`, every structural error found, in one error.
    """
    contents = read_folder(path)
    errors = errors_in(contents.problems)
    if strict and errors:
        raise checkpoint_error(f"{path}: the checkpoint cannot be opened", errors)
    return checkpoint_of(contents)


def checkpoint_of(contents: FolderContents) -> Checkpoint:
    """Return a folder's readable part as a checkpoint."""
    return Checkpoint(
        path=contents.path,
        config=contents.config,
        entries=contents.entries,
        damaged=contents.damaged,
        fingerprint=contents.fingerprint,
        index_file=contents.index.file if contents.index is not None else None,
        folder_problems=contents.problems,
    )


def _block_size(config: Mapping[str, Json] | None) -> tuple[int, int] | None:
    """Return the tile a configuration declares, None where it declares none."""
    quantization = config.get("quantization_config") if config is not None else None
    sizes = quantization.get("weight_block_size") if isinstance(quantization, dict) else None
    if isinstance(sizes, list) and len(sizes) == 2:
        rows, columns = sizes
        if isinstance(rows, int) and isinstance(columns, int) and rows > 0 and columns > 0:
            return rows, columns
    return None
