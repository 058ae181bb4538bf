"""Factories around sampling: rows of requests, parameters per row, look-ups, and masks of structured output."""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from port.kernels.sampling_rows import (
    STEP_STRIDE,
    look_up_column,
    look_up_key,
    mask_tokens,
    request_of_rows,
    spread_to_rows,
)
from port.tilelang_ops.neuron.arguments import Arguments, Dtype, as_dtype, at_least

_INT32, _FLOAT32 = torch.int32, torch.float32
_WORD_BITS = 32


def prepare_verification_metadata_tl(num_steps: int) -> Callable[..., tuple[Tensor, Tensor, Tensor]]:
    """Return a kernel: `(first_rows [r], seqlens_q [r]) → row_to_req [q], local_step [q], is_verify bool [q]`.

    `is_verify` marks rows that are not the last of their request: none of them without drafts. A row of no request
    gets -1, 0 and False.

    Args:
        num_steps: most rows of a request, which shapes the device kernel of other back ends; it changes no result.
    """
    name = "prepare_verification_metadata_tl"
    at_least(name, 1, num_steps=num_steps)

    def kernel(
        first_rows: Tensor, seqlens_q: Tensor, row_to_req: Tensor, local_step: Tensor, is_verify: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        given = Arguments(name)
        given.check("first_rows", first_rows, _INT32, ("r",))
        given.check("seqlens_q", seqlens_q, _INT32, ("r",))
        given.check("row_to_req", row_to_req, _INT32, ("q",))
        given.check("local_step", local_step, _INT32, ("q",))
        given.check("is_verify", is_verify, torch.bool, ("q",))
        request, step, followed = request_of_rows(first_rows, seqlens_q, rows=row_to_req.shape[0])
        return row_to_req.copy_(request), local_step.copy_(step), is_verify.copy_(followed)

    return kernel


def expand_sampling_params_tl() -> Callable[..., tuple[Tensor, ...]]:
    """Return a kernel that gives every row the parameters of its request, in the order of `fused_sample_tl`.

    `(temperatures, top_p, top_k, positions, seeds, row_to_req, local_step) → the first five per row`; the position of
    draft step s is 10000019 * s further on.
    """
    name = "expand_sampling_params_tl"

    def kernel(
        temperatures: Tensor,
        top_p: Tensor,
        top_k: Tensor,
        positions: Tensor,
        seeds: Tensor,
        row_to_req: Tensor,
        local_step: Tensor,
        row_temperatures: Tensor,
        row_top_p: Tensor,
        row_top_k: Tensor,
        row_positions: Tensor,
        row_seeds: Tensor,
    ) -> tuple[Tensor, ...]:
        given = Arguments(name)
        given.check("row_to_req", row_to_req, _INT32, ("q",))
        given.check("local_step", local_step, _INT32, ("q",))
        outputs = []
        for argument, values, out, dtypes in (
            ("temperatures", temperatures, row_temperatures, _FLOAT32),
            ("top_p", top_p, row_top_p, _FLOAT32),
            ("top_k", top_k, row_top_k, _INT32),
            ("positions", positions, row_positions, _INT32),
            ("seeds", seeds, row_seeds, (torch.uint64, torch.int64)),
        ):
            given.check(argument, values, dtypes, ("n",))
            given.check(f"row_{argument}", out, values.dtype, ("q",))
            spread = spread_to_rows(values, row_to_req)
            outputs.append(out.copy_(spread + local_step * STEP_STRIDE if argument == "positions" else spread))
        return tuple(outputs)

    return kernel


def map_lookup_tl(width: int, mode: Literal["key", "index"], dtype: Dtype) -> Callable[..., Tensor]:
    """Return a kernel that looks one number up in each row: `(key, value [q, width], query [q, 1]) → out [q]`.

    Args:
        width: columns.
        mode: "key": the value whose int32 `key` equals the query. "index": the value in column `query`; `key` is None.
        dtype: of the values; what is not found is -inf, or -1 for integers.
    """
    name = "map_lookup_tl"
    at_least(name, 1, width=width)
    value_dtype = as_dtype(name, "dtype", dtype)
    if mode not in ("key", "index"):
        raise ValueError(f"{name}: mode: expected 'key' or 'index'; found {mode!r}.")

    def kernel(key: Tensor | None, value: Tensor, query: Tensor, out: Tensor) -> Tensor:
        given = Arguments(name)
        given.check("value", value, value_dtype, ("q", width), strided=True)
        given.check("query", query, _INT32, ("q", 1))
        given.check("out", out, value_dtype, ("q",))
        given.present("key", key, mode == "key", f"mode is {mode!r}")
        if key is None:
            return out.copy_(look_up_column(value, query.squeeze(-1)))
        given.check("key", key, _INT32, ("q", width), strided=True)
        return out.copy_(look_up_key(key, value, query.squeeze(-1)))

    return kernel


def apply_token_bitmask_by_step_inplace_tl(V: int, has_ftp: bool) -> Callable[..., Tensor]:
    """Return a kernel that forbids tokens in place: `(logits [q, V], bitmask, indices, first_rows, step)` → logits.

    For every request i in `indices` int32 [m], row i of `bitmask` int32 [n, ceil(V / 32)] applies to row
    first_rows[i] + step of the logits, unless the request has fewer rows: `first_rows` ascends, and a request ends
    where the next begins. Without first rows (has_ftp False), it applies to row i, and `step` is not needed.
    """
    name = "apply_token_bitmask_by_step_inplace_tl"
    at_least(name, 1, V=V)
    words = -(-V // _WORD_BITS)

    def kernel(
        logits: Tensor, bitmask: Tensor, indices: Tensor, first_rows: Tensor | None = None, step: int = 0
    ) -> Tensor:
        given = Arguments(name)
        given.check("logits", logits, _FLOAT32, ("q", V), strided=True)
        given.check("bitmask", bitmask, _INT32, ("n", words), strided=True)
        given.check("indices", indices, _INT32, ("m",))
        given.present("first_rows", first_rows, has_ftp, f"has_ftp is {has_ftp}")
        row = indices
        if first_rows is not None:
            given.check("first_rows", first_rows, _INT32, ("n",))
            end = torch.cat((first_rows[1:], first_rows.new_full((1,), logits.shape[0])))
            target = torch.where((first_rows >= 0) & (first_rows + step < end), first_rows + step, -1)
            row = spread_to_rows(target, indices)
        return logits.copy_(mask_tokens(logits, bitmask, indices, row))

    return kernel
