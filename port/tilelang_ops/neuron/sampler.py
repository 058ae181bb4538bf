"""Factories that turn logits into tokens, over the port's one sampler (`port/kernels/sampling.py`)."""

from collections.abc import Callable

import torch
from torch import Tensor

from port.kernels.fixed_point import draw_columns, fixed_point_weights
from port.kernels.philox import draw_words
from port.kernels.sampling import FRESH, draw_tokens, filtered_logprobs, sum_smaller_probs
from port.tilelang_ops.neuron.arguments import Arguments, at_least
from port.tilelang_ops.table import DRAFTS

_INT32, _FLOAT32 = torch.int32, torch.float32
_SEEDS = (torch.uint64, torch.int64)


def fused_sample_tl(V: int, do_sample: bool, do_reject: bool) -> Callable[..., tuple[Tensor, ...]]:
    """Return the sampler: `(logits, temperatures, top_p, top_k, positions, seeds, is_verify) → logprobs, candidate`.

    Args:
        V: columns of `logits` float32 [q, V], which are left as they are.
        do_sample: draw `candidate` int32 [q]; without, only `logprobs` float32 [q, V] are written.
        do_reject: False; verification of drafts.

    Parameters are per row, `seeds` uint64 or int64. `is_verify`, bool [q] or None, is for verification and is not
    read: every row gets a fresh token. Log-probabilities are those after temperature, top-p and top-k.

    Raises:
        NotImplementedError: `do_reject`.
    """
    name = "fused_sample_tl"
    at_least(name, 1, V=V)
    _refuse_drafts(name, "do_reject", do_reject)

    def kernel(
        logits: Tensor,
        temperatures: Tensor,
        top_p: Tensor,
        top_k: Tensor,
        positions: Tensor,
        seeds: Tensor,
        is_verify: Tensor | None,
        logprobs: Tensor,
        candidate: Tensor | None = None,
    ) -> tuple[Tensor, ...]:
        given = Arguments(name)
        given.check("logits", logits, _FLOAT32, ("q", V), strided=True)
        given.check("temperatures", temperatures, _FLOAT32, ("q",))
        given.check("top_p", top_p, _FLOAT32, ("q",))
        given.check("top_k", top_k, _INT32, ("q",))
        given.check("positions", positions, _INT32, ("q",))
        given.check("seeds", seeds, _SEEDS, ("q",))
        if is_verify is not None:
            given.check("is_verify", is_verify, torch.bool, ("q",))
        given.check("logprobs", logprobs, _FLOAT32, ("q", V), strided=True)
        given.present("candidate", candidate, do_sample, f"do_sample is {do_sample}")
        filtered = filtered_logprobs(logits, temperatures, top_p, top_k)
        logprobs.copy_(filtered)
        if candidate is None:
            return (logprobs,)
        given.check("candidate", candidate, _INT32, ("q",))
        return logprobs, candidate.copy_(draw_tokens(filtered, seeds, positions))

    return kernel


def random_sampling_tl(V: int, is_nextn: bool) -> Callable[..., Tensor]:
    """Return a kernel that draws one column a row: `(probs float32 [n, V], seeds, positions) → ids int32 [n]`.

    Args:
        V: columns.
        is_nextn: False; the streams of drafts.

    Raises:
        NotImplementedError: `is_nextn`.
    """
    name = "random_sampling_tl"
    at_least(name, 1, V=V)
    _refuse_drafts(name, "is_nextn", is_nextn)

    def kernel(probs: Tensor, seeds: Tensor, positions: Tensor, ids: Tensor) -> Tensor:
        given = Arguments(name)
        given.check("probs", probs, _FLOAT32, ("n", V), strided=True)
        given.check("seeds", seeds, _SEEDS, ("n",))
        given.check("positions", positions, _INT32, ("n",))
        given.check("ids", ids, _INT32, ("n",))
        words = draw_words(seeds, positions, case=FRESH)[:, :2]
        return ids.copy_(draw_columns(fixed_point_weights(probs), words))

    return kernel


def sum_smaller_probs_tl(V: int) -> Callable[..., Tensor]:
    """Return a kernel: `(logprobs float32 [n, V], ids int32 [n]) → out float32 [n]`.

    The output is the probability of every token less likely than the chosen one, of equal ones up to its column, and
    its own; 0 for a negative id.
    """
    name = "sum_smaller_probs_tl"
    at_least(name, 1, V=V)

    def kernel(logprobs: Tensor, ids: Tensor, out: Tensor) -> Tensor:
        given = Arguments(name)
        given.check("logprobs", logprobs, _FLOAT32, ("n", V), strided=True)
        given.check("ids", ids, _INT32, ("n",))
        given.check("out", out, _FLOAT32, ("n",))
        return out.copy_(sum_smaller_probs(logprobs, ids))

    return kernel


def _refuse_drafts(kernel: str, argument: str, asked: bool) -> None:
    if asked:
        raise NotImplementedError(
            f"{kernel}: {argument}: expected False, since platform neuron does not have {DRAFTS.name}; found True. "
            f"{DRAFTS.way_out}"
        )
