"""Factories of the compressor: entries of finished groups, and the state of unfinished ones."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from port.kernels.compress_state import compress_decode_rows, compress_prefill_rows
from port.tilelang_ops.neuron.arguments import Arguments, at_least

_INT32, _FLOAT32 = torch.int32, torch.float32


def compress_and_update_state_prefill_tl(DIM: int, RATIO: int, HAS_INDEX: bool) -> Callable[..., Tensor]:
    """Return the prefill kernel: rows of all requests in a line → bf16 [total_c, DIM]; `state` changes.

    `(score, latent, state, state_block_idx, batch_mapping, cu_q, cu_k, cu_c, index) → out`. `batch_mapping` names the
    request of each produced row; with HAS_INDEX, token t of the line is row `index[t]` of score and latent. The last
    min(tokens, ring) rows of every request go into its state, after the members before the chunk were read from it.
    """
    name = "compress_and_update_state_prefill_tl"
    at_least(name, 1, DIM=DIM, RATIO=RATIO)

    def kernel(
        score: Tensor,
        latent: Tensor,
        state: Tensor,
        state_block_idx: Tensor,
        batch_mapping: Tensor,
        cu_q: Tensor,
        cu_k: Tensor,
        cu_c: Tensor,
        index: Tensor | None,
        out: Tensor,
    ) -> Tensor:
        given = Arguments(name)
        _check_state(given, score, latent, state, DIM, RATIO)
        given.check("state_block_idx", state_block_idx, _INT32, ("n_seq",))
        given.check("batch_mapping", batch_mapping, _INT32, ("total_c",))
        begins = (state_block_idx.shape[0] + 1,)
        for argument, tensor in (("cu_q", cu_q), ("cu_k", cu_k), ("cu_c", cu_c)):
            given.check(argument, tensor, _INT32, begins)
        given.present("index", index, HAS_INDEX, f"HAS_INDEX is {HAS_INDEX}")
        given.check("out", out, torch.bfloat16, ("total_c", DIM))
        if index is not None:
            given.check("index", index, _INT32, ("tokens",))
            index = index.clamp(min=0)
            score, latent = F.embedding(index, score), F.embedding(index, latent)
        pooled = compress_prefill_rows(
            score, latent, state, state_block_idx, batch_mapping, cu_q, cu_k, cu_c, ratio=RATIO
        )
        return out.copy_(pooled)

    return kernel


def compress_and_update_state_decode_tl(DIM: int, RATIO: int) -> Callable[..., Tensor]:
    """Return the decode kernel: `(score, latent, state, state_block_idx [n], context_lens [n]) → out bf16 [n, DIM]`.

    Each row goes into `state` at (context_len - 1) % ring; rows whose context is a multiple of RATIO output the entry
    they finish, all others zeros.
    """
    name = "compress_and_update_state_decode_tl"
    at_least(name, 1, DIM=DIM, RATIO=RATIO)

    def kernel(
        score: Tensor, latent: Tensor, state: Tensor, state_block_idx: Tensor, context_lens: Tensor, out: Tensor
    ) -> Tensor:
        given = Arguments(name)
        _check_state(given, score, latent, state, DIM, RATIO)
        given.check("state_block_idx", state_block_idx, _INT32, ("rows",))
        given.check("context_lens", context_lens, _INT32, ("rows",))
        given.check("out", out, torch.bfloat16, ("rows", DIM))
        return out.copy_(compress_decode_rows(score, latent, state, state_block_idx, context_lens, ratio=RATIO))

    return kernel


def _check_state(given: Arguments, score: Tensor, latent: Tensor, state: Tensor, width: int, ratio: int) -> None:
    given.check("score", score, _FLOAT32, ("rows", width), strided=True)
    given.check("latent", latent, _FLOAT32, ("rows", width), strided=True)
    given.check("state", state, _FLOAT32, ("slots", "ring", 2, width), strided=True)
    inner = (2 * width, width, 1)
    if state.stride()[1:] != inner or state.shape[1] < ratio:
        raise ValueError(
            f"{given.kernel}: state: expected a ring of at least {ratio} tokens, each slot contiguous "
            f"(strides {inner} inside it); found a ring of {state.shape[1]}, strides {tuple(state.stride()[1:])}."
        )
