"""Text to token ids and back, and the token compression map of the Engram tables.

The `tokenizers` library does both; it is imported on first use, so that a configuration can be read without it. Chat
formatting is not here: the release ships its own prompt encoder.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from port.config import ModelConfig
from port.errors import CheckpointError

if TYPE_CHECKING:
    import tokenizers

_REPLACEMENT_CHARACTER = "\ufffd"
_LONE_SPACE_MARK = "\ue000"


class Tokenizer:
    """The tokenizer of one checkpoint.

    Args:
        path: a `tokenizer.json`, or the directory that holds one.
        bos_token_id: put before the ids of a text prompt; None to leave prompts as they are.

    Raises:
        CheckpointError: no readable tokenizer.json at `path`.
    """

    def __init__(self, path: str | Path, *, bos_token_id: int | None) -> None:
        self._tokenizer = _load(Path(path))
        self.bos_token_id = bos_token_id

    @classmethod
    def from_checkpoint(cls, path: str | Path, config: ModelConfig) -> "Tokenizer":
        """Return the tokenizer of a checkpoint directory; BOS is prepended to prompts unless it is "native"."""
        release = config.tokenizer_compatibility == "release"
        return cls(path, bos_token_id=config.bos_token_id if release else None)

    @property
    def vocab_size(self) -> int:
        """Ids in tokenizer.json, added tokens included."""
        return self._tokenizer.get_vocab_size(with_added_tokens=True)

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text prompt, BOS first."""
        ids = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids if self.bos_token_id is None else [self.bos_token_id, *ids]

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of token ids."""
        return self._tokenizer.decode(list(token_ids), skip_special_tokens=skip_special_tokens)

    def compression_map(self) -> NDArray[np.int64]:
        """Return the compressed id of every token id, int64 (vocab_size,).

        Tokens that differ only in case, accents or white space share an id. Ids are numbered by first
        appearance.

        Source: DeepSeek-V4.1 `inference/engram.py`, CompressedTokenizer, revision dba1be0a.
        """
        normalizer = _key_normalizer()
        numbers: dict[str, int] = {}
        ids = np.empty(self.vocab_size, dtype=np.int64)
        for token in range(self.vocab_size):
            text = self._tokenizer.decode([token], skip_special_tokens=False)
            if _REPLACEMENT_CHARACTER in text:
                # Part of a character: only the raw piece tells tokens apart.
                key = self._tokenizer.id_to_token(token) or text
            else:
                key = normalizer.normalize_str(text) or text
            ids[token] = numbers.setdefault(key, len(numbers))
        return ids


def _key_normalizer() -> "tokenizers.normalizers.Sequence":
    from tokenizers import Regex, normalizers

    return normalizers.Sequence(
        [
            normalizers.NFKC(),
            normalizers.NFD(),
            normalizers.StripAccents(),
            normalizers.Lowercase(),
            normalizers.Replace(Regex(r"[ \t\r\n]+"), " "),
            # A token that is one space keeps it through the strip.
            normalizers.Replace(Regex(r"^ $"), _LONE_SPACE_MARK),
            normalizers.Strip(),
            normalizers.Replace(_LONE_SPACE_MARK, " "),
        ]
    )


def _load(path: Path) -> "tokenizers.Tokenizer":
    from tokenizers import Tokenizer as FastTokenizer

    if path.is_dir():
        path = path / "tokenizer.json"
    if not path.is_file():
        raise CheckpointError(f"{path}: expected a tokenizer.json; there is no such file.")
    try:
        return FastTokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception for every malformed file
        raise CheckpointError(f"{path}: expected the tokenizers library's JSON; {error}.") from error
