"""Slot numbers of the cache, and the bytes its packed form would take on a device.

Two pools. *Blocks* hold what grows with the sequence: compressed entries and index keys, one block for 128 tokens of
all owning layers. *State slots* hold what has a fixed size per running sequence: window rings and unfinished groups.
Block 0 and state 0 belong to padding rows and are never handed out.

| number | formula |
|---|---|
| window slot | `state_id * ring + position % ring` |
| compressed slot of entry j | `block_table[j // entries] * entries + j % entries`, entries = 128 / ratio |
| compressor slot | `state_id * compressor_ring + position % compressor_ring` |

A slot of -1 means "do not store", or "read zeros".
Source: deepinfer 0.1.0 cache engine, described in the runtime contracts, section 8.
"""

import math
from dataclasses import dataclass

from port.config import ModelConfig
from port.config_rules import TOKENS_PER_BLOCK
from port.schedule import LayerSchedule

_SECTION_ALIGNMENT = 32
_BLOCK_ALIGNMENT = 128
_STATE_ALIGNMENT = 32
_FLOAT32_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheLayout:
    """What a slot number means.

    Attributes:
        window: tokens a query sees uncompressed, itself included.
        backtracking: tokens that may be taken back, at least 1; rings are longer by as much.
        ratios: different compression ratios above 0, ascending.
        tokens_per_block: uncompressed tokens one block stands for.
    """

    window: int
    backtracking: int
    ratios: tuple[int, ...]
    tokens_per_block: int = TOKENS_PER_BLOCK

    def __post_init__(self) -> None:
        if self.backtracking < 1:
            raise ValueError(f"backtracking: expected at least 1; found {self.backtracking}")

    @classmethod
    def from_config(cls, config: ModelConfig, *, backtracking: int = 1) -> "CacheLayout":
        """Return the layout of a model whose last `backtracking` tokens may be taken back."""
        ratios = LayerSchedule.from_config(config).ratios
        return cls(window=config.sliding_window, backtracking=backtracking, ratios=ratios)

    @property
    def ring(self) -> int:
        """Slots in a window ring."""
        return self.window + self.backtracking

    def compressor_ring(self, ratio: int) -> int:
        """Slots in the ring of an unfinished group of `ratio` tokens."""
        return ratio + self.backtracking - 1

    def entries_per_block(self, ratio: int) -> int:
        """Compressed entries of one layer in a block."""
        return self.tokens_per_block // ratio

    def blocks_for(self, tokens: int) -> int:
        """Blocks a sequence of `tokens` tokens needs."""
        return -(-tokens // self.tokens_per_block)


def packed_block_bytes(config: ModelConfig) -> int:
    """Return the bytes of one block in the packed (FP4 or FP8) form, all owning layers together."""
    schedule = LayerSchedule.from_config(config)
    main_bytes = _main_entry_bytes(config)
    total = 0
    for role in schedule.roles:
        entries = TOKENS_PER_BLOCK // role.ratio if role.ratio else 0
        if role.owns_index_k:
            total += _round_up(entries * _index_entry_bytes(config), _SECTION_ALIGNMENT)
        if role.owns_kv:
            total += _round_up(entries * main_bytes, _SECTION_ALIGNMENT)
    return _round_up(total, math.lcm(_BLOCK_ALIGNMENT, main_bytes))


def packed_state_bytes(config: ModelConfig, *, backtracking: int = 1) -> int:
    """Return the bytes of one state slot in the packed form: a ring per layer (drafts too) and the group states."""
    layout = CacheLayout.from_config(config, backtracking=backtracking)
    record = config.head_dim + config.head_dim // 32
    rings = len(config.compress_ratios) * _round_up(layout.ring * record, _SECTION_ALIGNMENT)
    groups = sum(
        layout.compressor_ring(role.ratio) * 2 * config.head_dim * _FLOAT32_BYTES
        for role in LayerSchedule.from_config(config).roles
        if role.owns_kv and role.ratio > 1
    )
    return _round_up(rings + groups, math.lcm(_STATE_ALIGNMENT, record))


def _main_entry_bytes(config: ModelConfig) -> int:
    width = config.head_dim
    return width // 2 + width // 16 if config.use_fp4_sparse_kv else width + width // 32


def _index_entry_bytes(config: ModelConfig) -> int:
    return config.index_head_dim // 2 + config.index_head_dim // 32


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
