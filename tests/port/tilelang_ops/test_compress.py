"""The compressor's kernels against a sequence that is pooled whole."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from port import tilelang_ops as ops
from tests.port.tilelang_ops.numbers import bf16, f32, ints

WIDTH = 6


def pooled(score: Tensor, latent: Tensor, entry: int, ratio: int) -> Tensor:
    """One entry of a whole sequence, channel by channel."""
    out = torch.zeros(WIDTH)
    rows = range(entry * ratio, entry * ratio + ratio)
    for channel in range(WIDTH):
        top = max(score[row, channel] for row in rows)
        weights = [torch.exp(score[row, channel] - top) for row in rows]
        out[channel] = sum(w * latent[row, channel] for w, row in zip(weights, rows, strict=True)) / sum(weights)
    return out


def near(found: Tensor, wanted: Tensor) -> bool:
    return torch.allclose(found.float(), wanted, rtol=2**-8, atol=1e-6)  # one rounding to bfloat16


def prefill(ratio, chunks, slots, sequences, state, permutation=None):
    """Run chunks [(begin, end)] of sequences [(score, latent)]; return the entries of each request."""
    score = torch.cat([s[b:e] for (s, _), (b, e) in zip(sequences, chunks, strict=True)])
    latent = torch.cat([v[b:e] for (_, v), (b, e) in zip(sequences, chunks, strict=True)])
    counts = [max(1, e // ratio - b // ratio) for b, e in chunks]
    mapping = [i for i, count in enumerate(counts) for _ in range(count)]
    begins = [
        ints([0, *lengths]).cumsum(0).to(torch.int32)
        for lengths in ([e - b for b, e in chunks], [e for _, e in chunks], counts)
    ]
    if permutation is not None:
        score, latent = score[permutation.argsort()], latent[permutation.argsort()]
        permutation = permutation.to(torch.int32)
    out = torch.full((sum(counts), WIDTH), 7.0, dtype=torch.bfloat16)
    kernel = ops.compress_and_update_state_prefill_tl(WIDTH, ratio, permutation is not None)
    kernel(score, latent, state, ints(slots), ints(mapping), *begins, permutation, out)
    return out.split(counts)


@pytest.mark.parametrize(("ratio", "ring"), [(2, 2), (2, 4), (4, 5)])
def test_chunks_of_a_prefill_give_the_entries_of_the_whole(ratio: int, ring: int) -> None:
    lengths = (13, 9, 8)
    sequences = [(f32(n, WIDTH, seed=n), f32(n, WIDTH, seed=n + 50)) for n in lengths]
    state, slots = torch.zeros(5, ring, 2, WIDTH), [3, 1, 4]
    done = [0, 0, 0]
    for step in ((5, 1, 8), (1, 2, 0), (7, 6, 0)):
        active = [i for i in range(3) if step[i]]
        chunks = [(done[i], done[i] + step[i]) for i in active]
        found = prefill(ratio, chunks, [slots[i] for i in active], [sequences[i] for i in active], state)
        for i, (begin, end), entries in zip(active, chunks, found, strict=True):
            fresh = range(begin // ratio, end // ratio)
            for entry, row in zip(fresh, entries, strict=bool(fresh)):
                assert near(row, pooled(*sequences[i], entry, ratio))
            if not fresh:
                assert torch.equal(entries, torch.zeros(1, WIDTH, dtype=torch.bfloat16)), "a dummy is zero"
            done[i] = end
            score, latent = sequences[i]
            for position in range(max(begin, end - ring), end):
                held = state[slots[i], position % ring]
                assert torch.equal(held, torch.stack((score[position], latent[position])))
    assert not state[2].any(), "a slot of no request is left alone"


def test_a_permutation_names_the_row_of_each_token() -> None:
    sequence = (f32(6, WIDTH, seed=1), f32(6, WIDTH, seed=2))
    plain, permuted = torch.zeros(2, 2, 2, WIDTH), torch.zeros(2, 2, 2, WIDTH)
    (wanted,) = prefill(2, [(0, 6)], [1], [sequence], plain)
    (found,) = prefill(2, [(0, 6)], [1], [sequence], permuted, torch.tensor([4, 0, 2, 5, 1, 3]))
    assert torch.equal(found, wanted)
    assert torch.equal(permuted, plain)


@pytest.mark.parametrize(("ratio", "ring", "rows"), [(2, 2, 1), (2, 4, 3), (4, 6, 2)])
def test_decode_rows_finish_the_groups_of_the_whole(ratio: int, ring: int, rows: int) -> None:
    """Several rows of one request share a slot: all are kept before any group is read."""
    sequences = [(f32(12, WIDTH, seed=n), f32(12, WIDTH, seed=n + 9)) for n in range(2)]
    wide = torch.zeros(4, ring * 2 * WIDTH + 8)  # slots lie apart, as in a pool of several layers
    state = wide[:, : ring * 2 * WIDTH].unflatten(1, (ring, 2, WIDTH))
    kernel = ops.compress_and_update_state_decode_tl(WIDTH, ratio)
    for begin in range(0, 12, rows):
        positions = [(i, p) for i in range(2) for p in range(begin, begin + rows)]
        score = torch.stack([sequences[i][0][p] for i, p in positions])
        latent = torch.stack([sequences[i][1][p] for i, p in positions])
        out = torch.full((len(positions), WIDTH), 7.0, dtype=torch.bfloat16)
        kernel(score, latent, state, ints([i + 2 for i, _ in positions]), ints([p + 1 for _, p in positions]), out)
        for row, (i, p) in zip(out, positions, strict=True):
            done = (p + 1) % ratio == 0
            assert near(row, pooled(*sequences[i], p // ratio, ratio)) if done else not row.any()
    assert not wide[:, ring * 2 * WIDTH :].any()


def test_a_state_with_too_short_a_ring_is_refused() -> None:
    kernel = ops.compress_and_update_state_decode_tl(WIDTH, 4)
    with pytest.raises(ValueError, match=r"state: expected a ring of at least 4 tokens.*found a ring of 3"):
        kernel(f32(1, WIDTH), f32(1, WIDTH), torch.zeros(2, 3, 2, WIDTH), ints([1]), ints([1]), bf16(1, WIDTH))
