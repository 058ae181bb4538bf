"""Writes a tiny checkpoint in the released layout: every kind of layer, small enough to keep beside the program.

    write_tiny_checkpoint("tiny_v41", seed=0)

The same seed gives the same bytes. A folder is there whole or not at all: files are written into a folder beside it,
which is then renamed.
"""

import dataclasses
import hashlib
import json
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from port.checkpoint.index import open_checkpoint
from port.checkpoint.names import tensor_table
from port.checkpoint.shard_writer import write_shards
from port.checkpoint.tiny_config import TINY_CONFIG
from port.checkpoint.tiny_tokenizer import BOS, EOS, PAD, tiny_tokenizer_json
from port.checkpoint.tiny_weights import tiny_weights
from port.config import ModelConfig
from port.engram_primes import engram_table_rows
from port.errors import CheckpointError
from port.tokenizer import Tokenizer

SHARD_BYTES = 700_000


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenFile:
    """One file that was written: its name, size and sha256."""

    file: str
    nbytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenCheckpoint:
    """What was written.

    Attributes:
        path: the folder.
        seed: of all weights.
        tensor_count: tensors in it.
        files: all of them, by name.
        fingerprint: as `Checkpoint.fingerprint`.
    """

    path: Path
    seed: int
    tensor_count: int
    files: tuple[WrittenFile, ...]
    fingerprint: str

    @property
    def nbytes(self) -> int:
        """Bytes of all files."""
        return sum(file.nbytes for file in self.files)


def write_tiny_checkpoint(
    out: str | Path, *, seed: int = 0, config: ModelConfig = TINY_CONFIG, shard_bytes: int = SHARD_BYTES
) -> WrittenCheckpoint:
    """Write a checkpoint with random weights and a small tokenizer, and return what was written.

    Args:
        out: a folder that does not exist yet, or is empty.
        seed: of all weights.
        config: sizes and schedule; what depends on the tokenizer is filled in.
        shard_bytes: a shard is closed once it holds as much.

    Raises:
        CheckpointError: `out` is a file or a folder with something in it; nothing was changed.
        ConfigError: a configuration that cannot be stored so.
    """
    out = Path(out)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        what = "a folder with files in it" if out.is_dir() else "a file"
        raise CheckpointError(f"{out}: expected a new or empty folder to write into; found {what}. Name another one.")
    out.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix=f".{out.name}.", suffix=".part", dir=out.parent))
    try:
        _write_files(part, config, seed, shard_bytes)
        checkpoint = open_checkpoint(part)  # what cannot be opened is not handed out
        written = WrittenCheckpoint(
            path=out,
            seed=seed,
            tensor_count=len(checkpoint.entries),
            files=tuple(_written(path) for path in sorted(part.iterdir())),
            fingerprint=checkpoint.fingerprint,
        )
        part.chmod(0o755)
        part.rename(out)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    return written


def _write_files(folder: Path, config: ModelConfig, seed: int, shard_bytes: int) -> None:
    _write_text(folder / "tokenizer.json", tiny_tokenizer_json(config.vocab_size))
    if config.engram_layer_ids:
        tokens = int(Tokenizer(folder, bos_token_id=None).compression_map().max()) + 1
        config = dataclasses.replace(config, engram_compressed_vocab_size=tokens)
        config = dataclasses.replace(config, engram_num_embeddings=engram_table_rows(config))
    table = tensor_table(config)
    write_shards(folder, tiny_weights(config, table, seed=seed), target_bytes=shard_bytes)
    _write_json(folder / "config.json", config.to_dict())
    _write_json(folder / "tokenizer_config.json", _tokenizer_config(config))
    _write_json(folder / "generation_config.json", _generation_config(config))


def _tokenizer_config(config: ModelConfig) -> dict[str, object]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BOS,
        "eos_token": EOS,
        "pad_token": PAD,
        "add_bos_token": False,
        "add_eos_token": False,
        "model_max_length": config.max_position_embeddings,
        "clean_up_tokenization_spaces": False,
    }


def _generation_config(config: ModelConfig) -> dict[str, object]:
    return {
        "bos_token_id": config.bos_token_id,
        "eos_token_id": config.eos_token_id,
        "pad_token_id": config.pad_token_id,
        "do_sample": True,
        "temperature": 1.0,
        "top_p": 1.0,
        "transformers_version": config.transformers_version,
    }


def _write_json(path: Path, value: dict[str, object]) -> None:
    _write_text(path, json.dumps(value, indent=1) + "\n")


def _write_text(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8", newline="\n")


def _written(path: Path) -> WrittenFile:
    content = path.read_bytes()
    return WrittenFile(file=path.name, nbytes=len(content), sha256=hashlib.sha256(content).hexdigest())
