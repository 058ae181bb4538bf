"""The primes of the Engram hash heads: they say how many rows each table has, so a configuration alone gives its size.

Source: DeepSeek-V4.1 `inference/engram.py`, revision dba1be0a.
"""

import numpy as np
from numpy.typing import NDArray

from port.config import ModelConfig


def prime_table(config: ModelConfig) -> NDArray[np.int64]:
    """Return the primes of every Engram layer, int64 (layers, n - 1, heads).

    The search restarts just below `engram_vocab_size` for every layer and order, and takes the next primes that no
    layer, order or head has taken before.
    """
    used: set[int] = set()
    table: list[list[list[int]]] = []
    for _ in config.engram_layer_ids:
        orders: list[list[int]] = []
        for _ in range(config.engram_max_ngram_size - 1):
            heads: list[int] = []
            candidate = config.engram_vocab_size - 1
            while len(heads) < config.engram_n_heads:
                candidate += 1
                if candidate not in used and _is_prime(candidate):
                    used.add(candidate)
                    heads.append(candidate)
            orders.append(heads)
        table.append(orders)
    return np.array(table, dtype=np.int64)


def engram_table_rows(config: ModelConfig) -> tuple[int, ...]:
    """Return the rows of each Engram layer's table: the sum of its primes, in the order of `engram_layer_ids`."""
    if not config.engram_layer_ids:
        return ()
    return tuple(int(rows) for rows in prime_table(config).sum(axis=(1, 2)))


def _is_prime(value: int) -> bool:
    if value < 4:
        return value >= 2
    if value % 2 == 0:
        return False
    return all(value % divisor for divisor in range(3, int(value**0.5) + 1, 2))
