"""Factories for the two-level selection: scores of blocks, lengths and entries of compact lists."""

from collections.abc import Callable

import torch
from torch import Tensor

from port.kernels.index_lists import compact_lengths, restore_candidates, shift_index
from port.kernels.index_selection import block_scores
from port.tilelang_ops.neuron.arguments import Arguments, at_least

_INT32 = torch.int32


def candidate_block_max_tl(max_len: int, block: int) -> Callable[..., tuple[Tensor, Tensor]]:
    """Return a kernel that scores blocks: `(logits bf16 [n, max_len], valid_lens [n]) → (scores, valid_blocks)`.

    `scores` bf16 [n, ceil(max_len / block)]: best visible entry of each block, at most the largest finite bf16; +inf
    for the block of the newest visible entry; -inf for blocks without one, which the contract leaves undefined.
    `valid_blocks` int32 [n]: blocks with a visible entry.
    """
    name = "candidate_block_max_tl"
    at_least(name, 1, max_len=max_len, block=block)
    blocks = -(-max_len // block)

    def kernel(logits: Tensor, valid_lens: Tensor, scores: Tensor, valid_blocks: Tensor) -> tuple[Tensor, Tensor]:
        given = Arguments(name)
        given.check("logits", logits, torch.bfloat16, ("n", max_len), strided=True)
        given.check("valid_lens", valid_lens, _INT32, ("n",))
        given.check("scores", scores, torch.bfloat16, ("n", blocks), strided=True)
        given.check("valid_blocks", valid_blocks, _INT32, ("n",))
        column = torch.arange(max_len, dtype=_INT32, device=logits.device)
        visible = torch.where(column < valid_lens.unsqueeze(-1), logits, -torch.inf)
        scores.copy_(block_scores(visible, valid_lens, block_size=block))
        valid_blocks.copy_(torch.div(valid_lens + (block - 1), block, rounding_mode="floor"))
        return scores, valid_blocks

    return kernel


def get_candidate_compact_lens_tl(topk_blocks: int, block: int) -> Callable[..., Tensor]:
    """Return a kernel that counts visible entries of candidates: `(blocks [n, topk_blocks], valid_lens) → lens [n]`."""
    name = "get_candidate_compact_lens_tl"
    at_least(name, 1, topk_blocks=topk_blocks, block=block)

    def kernel(blocks: Tensor, valid_lens: Tensor, lens: Tensor) -> Tensor:
        given = Arguments(name)
        given.check("blocks", blocks, _INT32, ("n", topk_blocks), strided=True)
        given.check("valid_lens", valid_lens, _INT32, ("n",))
        given.check("lens", lens, _INT32, ("n",))
        return lens.copy_(compact_lengths(blocks, valid_lens, block_size=block))

    return kernel


def restore_candidate_indices_inplace_tl(topk: int, tb: int, block: int, has_offset: bool) -> Callable[..., Tensor]:
    """Return a kernel that turns compact entries into entries of the sequence: `(idx [n, topk], blocks, offset)` → idx.

    `idx` changes in place: entry c becomes blocks[c // block] * block + c % block, plus the row's `offset` where the
    kernel was made for one; what names no candidate becomes -1.
    """
    name = "restore_candidate_indices_inplace_tl"
    at_least(name, 1, topk=topk, tb=tb, block=block)

    def kernel(idx: Tensor, blocks: Tensor, offset: Tensor | None = None) -> Tensor:
        given = Arguments(name)
        given.check("idx", idx, _INT32, ("n", topk), strided=True)
        given.check("blocks", blocks, _INT32, ("n", tb), strided=True)
        given.present("offset", offset, has_offset, f"has_offset is {has_offset}")
        entry = restore_candidates(idx, blocks, block_size=block)
        if offset is None:
            return idx.copy_(entry)
        given.check("offset", offset, _INT32, ("n",))
        return idx.copy_(shift_index(entry, offset.unsqueeze(-1)))

    return kernel
