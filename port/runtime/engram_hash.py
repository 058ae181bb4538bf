"""Which table rows an Engram layer looks up: exact integer hashing of n-grams, on the host.

Products of token ids and multipliers need all 63 bits, so nothing here ever runs on a device; only row numbers go
there.

For every position the newest `max_ngram_size` compressed token ids form a window, newest first. An order-i hash is the
exclusive-or of the first i products of id and multiplier. Each order has `n_heads` primes of its own; a head's row
is the hash modulo its prime, plus the sum of all primes before it.
Source: DeepSeek-V4.1 `inference/engram.py`, revision dba1be0a.
"""

import functools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from port.config import ModelConfig
from port.engram_primes import prime_table
from port.errors import ConfigError, PortError

_SEED_FACTOR = 10007
_CHECK_VOCABULARY, _CHECK_LAYER = 99092, 1
_CHECK_MULTIPLIERS = (76632096046245, 4839876093313, 35959672319349, 73987337458391)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngramHash:
    """The hash functions of all Engram layers.

    Attributes:
        layers: layer ids, in configuration order.
        token_map: int64 (vocabulary of the tokenizer,), compressed id of each token id.
        pad_id: compressed id that stands where a window reaches before the first token.
        multipliers: int64 (layers, n), odd.
        primes: int64 (layers, n - 1, heads).
        offsets: int64 (layers, (n - 1) * heads), first row of each head.
    """

    layers: tuple[int, ...]
    token_map: NDArray[np.int64]
    pad_id: int
    multipliers: NDArray[np.int64]
    primes: NDArray[np.int64]
    offsets: NDArray[np.int64]

    @classmethod
    def from_config(cls, config: ModelConfig, token_map: NDArray[np.int64]) -> "EngramHash":
        """Return the hash functions of a model.

        Args:
            config: must have Engram layers.
            token_map: from `port.tokenizer.compression_map`.

        Raises:
            ConfigError: a map whose size is not `engram_compressed_vocab_size`, or tables whose rows are not the sum of
                the primes.
        """
        token_map = np.asarray(token_map, dtype=np.int64)
        compressed = int(token_map.max()) + 1
        if compressed != config.engram_compressed_vocab_size:
            raise ConfigError(
                f"engram_compressed_vocab_size: expected {config.engram_compressed_vocab_size}; the tokenizer gives "
                f"{compressed} different compressed tokens. Check that tokenizer.json belongs to this checkpoint."
            )
        primes = prime_table(config)
        rows = tuple(int(total) for total in primes.sum(axis=(1, 2)))
        if config.engram_num_embeddings and rows != config.engram_num_embeddings:
            raise ConfigError(
                f"engram_num_embeddings: expected {list(config.engram_num_embeddings)} table rows; the primes above "
                f"engram_vocab_size ({config.engram_vocab_size}) give {list(rows)}."
            )
        flat = primes.reshape(len(primes), -1)
        return cls(
            layers=config.engram_layer_ids,
            token_map=token_map,
            pad_id=int(token_map[config.engram_pad_token_id]),
            multipliers=multiplier_table(config),
            primes=primes,
            offsets=np.cumsum(flat, axis=1) - flat,
        )

    @property
    def ngram_size(self) -> int:
        """Token ids in a window."""
        return self.multipliers.shape[1]

    def compress(self, token_ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return compressed ids; -1 for ids outside the tokenizer's table (image sentinels)."""
        inside = (token_ids >= 0) & (token_ids < len(self.token_map))
        return np.where(inside, self.token_map[np.where(inside, token_ids, 0)], -1)

    def windows(self, token_ids: NDArray[np.int64], begin: int, end: int) -> NDArray[np.int64]:
        """Return the windows of positions `begin` to `end` of one sequence.

        Args:
            token_ids: int64, all tokens of the sequence up to `end` at least.
            begin: first position.
            end: position after the last.

        Returns:
            int64 (end - begin, n), newest first. Entry r is the pad id where position - r lies before the sequence,
            or where one of the r + 1 newest tokens has no compressed id. BOS and EOS do not stop the look-back.
        """
        compressed = self.compress(token_ids)
        columns = []
        broken = np.zeros(end - begin, dtype=bool)
        positions = np.arange(begin, end)
        for back in range(self.ngram_size):
            source = positions - back
            value = np.where(source >= 0, compressed[np.maximum(source, 0)], -1)
            broken = broken | (value < 0)
            columns.append(np.where(broken, self.pad_id, value))
        return np.stack(columns, axis=1)

    def rows(self, windows: NDArray[np.int64]) -> NDArray[np.int32]:
        """Return the table rows of each window.

        Args:
            windows: int64 (T, n), newest first.

        Returns:
            int32 (T, layers, (n - 1) * heads), orders ascending, heads within an order.
        """
        products = windows[:, None, :] * self.multipliers[None]
        hashes = np.bitwise_xor.accumulate(products, axis=-1)[..., 1:]
        rows = hashes[..., None] % self.primes[None]
        return (rows.reshape(len(windows), len(self.layers), -1) + self.offsets[None]).astype(np.int32)


def multiplier_table(config: ModelConfig) -> NDArray[np.int64]:
    """Return the odd multipliers of every Engram layer, int64 (layers, n).

    Raises:
        PortError: this NumPy draws other numbers than the ones the tables were trained with.
    """
    _verify_generator()
    return np.stack(
        [
            _draw_multipliers(layer, config.engram_max_ngram_size, config.engram_compressed_vocab_size)
            for layer in config.engram_layer_ids
        ]
    )


def _draw_multipliers(layer: int, count: int, compressed_vocabulary: int) -> NDArray[np.int64]:
    bound = max(1, (2**63 - 1) // compressed_vocabulary // 2)
    generator = np.random.default_rng(_SEED_FACTOR * layer)
    return generator.integers(0, bound, size=count, dtype=np.int64) * 2 + 1


@functools.cache
def _verify_generator() -> None:
    drawn = _draw_multipliers(_CHECK_LAYER, len(_CHECK_MULTIPLIERS), _CHECK_VOCABULARY)
    if tuple(drawn.tolist()) != _CHECK_MULTIPLIERS:
        raise PortError(
            f"Engram multipliers: expected {list(_CHECK_MULTIPLIERS)} for layer 1 of the release; NumPy "
            f"{np.__version__} drew {drawn.tolist()}. The tables cannot be addressed with these; use a NumPy whose "
            "default_rng agrees."
        )
