"""The counter generator against the published vectors, and against plain integers."""

from __future__ import annotations

import random

import pytest
import torch

from port.kernels.philox import draw_words, multiply_words, philox4x32

MASK = 0xFFFFFFFF


def words(*values: int) -> torch.Tensor:
    return torch.tensor([value - (1 << 32) if value >> 31 else value for value in values], dtype=torch.int32)


def flat(lists: list[list[int]]) -> list[int]:
    return [value for one in lists for value in one]


def unsigned(tensor: torch.Tensor) -> list[int]:
    return [int(value) & MASK for value in tensor.flatten().tolist()]


def slow_philox(counter: list[int], key: list[int], rounds: int = 10) -> list[int]:
    c, k = list(counter), list(key)
    for _ in range(rounds):
        left, right = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(right >> 32) ^ c[1] ^ k[0], right & MASK, (left >> 32) ^ c[3] ^ k[1], left & MASK]
        k = [(k[0] + 0x9E3779B9) & MASK, (k[1] + 0xBB67AE85) & MASK]
    return c


# Known answers published with Random123 for philox4x32 with 10 rounds.
KNOWN = [
    ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    ([MASK] * 4, [MASK] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    (
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
        [0xA4093822, 0x299F31D0],
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    ),
]


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN, ids=["zeros", "ones", "pi"])
def test_published_vectors(counter: list[int], key: list[int], expected: list[int]) -> None:
    assert unsigned(philox4x32(words(*counter), words(*key))) == expected
    assert slow_philox(counter, key) == expected


def test_any_counter_agrees_with_plain_integers() -> None:
    dice = random.Random(5)
    counters = [[dice.getrandbits(32) for _ in range(4)] for _ in range(50)]
    keys = [[dice.getrandbits(32) for _ in range(2)] for _ in range(50)]
    found = philox4x32(words(*flat(counters)).view(50, 4), words(*flat(keys)).view(50, 2))
    assert unsigned(found) == flat([slow_philox(c, k) for c, k in zip(counters, keys, strict=True)])


def test_products_of_words_are_exact() -> None:
    dice = random.Random(6)
    values = [0, 1, 0xFFFF, 0x10000, 0x7FFFFFFF, 0x80000000, MASK, *(dice.getrandbits(32) for _ in range(60))]
    for factor in (0, 1, 3, 0xFF, 0xD2511F53, MASK):
        high, low = multiply_words(words(*values), factor)
        expected = [value * factor for value in values]
        assert unsigned(high) == [product >> 32 for product in expected]
        assert unsigned(low) == [product & MASK for product in expected]


@pytest.mark.parametrize("case", [0, 1, 2])
def test_a_draw_is_addressed_by_its_seed_and_its_sequence(case: int) -> None:
    seeds = [0, 1, (1 << 64) - 1, 0x0123456789ABCDEF]
    positions = [0, 5, (1 << 31) - 1, 715827882]
    found = draw_words(torch.tensor(seeds, dtype=torch.uint64), torch.tensor(positions, dtype=torch.int32), case=case)
    for row, (seed, position) in enumerate(zip(seeds, positions, strict=True)):
        sequence = 3 * position + case
        expected = slow_philox([0, 0, sequence & MASK, sequence >> 32], [seed & MASK, seed >> 32])
        assert unsigned(found[row]) == expected


def test_seeds_may_come_as_words() -> None:
    seeds = torch.tensor([0x0123456789ABCDEF, 7], dtype=torch.int64)
    position = torch.tensor([3, 4], dtype=torch.int32)
    assert torch.equal(
        draw_words(seeds, position, case=0), draw_words(seeds.view(torch.int32).view(-1, 2), position, case=0)
    )


def test_it_is_made_of_32_bit_operations() -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    seed = torch.tensor([[1, 2]], dtype=torch.int32)
    graph = make_fx(lambda s, p: draw_words(s, p, case=1))(seed, torch.tensor([3], dtype=torch.int32))
    dtypes = {node.meta["val"].dtype for node in graph.graph.nodes if hasattr(node.meta.get("val"), "dtype")}
    assert dtypes == {torch.int32}
