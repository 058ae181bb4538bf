"""Expert dispatch and combine under the contract's names; see `port/collectives/expert_exchange.py` for what happens.

Differs from the upstream package: gap rows and padding rows are zeros where upstream leaves them undefined, results are
never added before they are back at their token (so no number of ranks changes a bit), and packed scales are row-major
whatever `use_tma_aligned_col_major_sf` says, which callers cannot tell from a column-major view.
Source: `deepinfer_ep` 2.5.0, described in the runtime contracts, section 14.1.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from port.collectives.expert_exchange import ReceivedRows, Route, add_slots, return_rows, send_rows
from port.collectives.expert_groups import ExpertGroups, group_by_expert, largest_expansion
from port.collectives.transport import Pending, group_size
from port.vendor.deep_ep.events import Event
from port.vendor.deep_ep.sizes import align

Rows = Tensor | tuple[Tensor, Tensor]
Dispatched = tuple[Rows, Tensor, Tensor, "EPHandle"]

_SCALE_DTYPES = (torch.int16, torch.int32, torch.uint8)


@dataclass(frozen=True, slots=True, kw_only=True)
class EPHandle:
    """What `combine` needs of a dispatch.

    Attributes:
        psum_num_recv_tokens_per_expert: int32 (local experts,), expanded row after the last one of each expert; expert
            i's rows start at the end of expert i - 1 rounded up to the alignment.
        expert_alignment: that alignment.
        num_expanded_tokens: expanded rows, gaps included.
        groups, route: how rows were written out and where they came from.
    """

    psum_num_recv_tokens_per_expert: Tensor
    expert_alignment: int
    num_expanded_tokens: int
    groups: ExpertGroups
    route: Route


class EPBuffer:
    """Dispatch and combine over one group.

    Args:
        group: the ranks that share the experts; None for this process alone.
        num_max_tokens_per_rank: most rows a rank sends at a time; the slots per pair of ranks without CPU sync.
        hidden: width of a row.
        num_topk: experts per row.
        use_fp8_dispatch: rows are sent as FP8 codes with packed scales; says which rows `dispatch` expects.
        allow_hybrid_mode, allow_multiple_reduction: no effect: there is one way, and it never adds on the way.
        explicitly_destroy: whether the owner promises to call `destroy`; here that is never needed.

    Raises:
        ValueError: a size below 1.
    """

    def __init__(
        self,
        group: ProcessGroup | None,
        num_max_tokens_per_rank: int,
        hidden: int,
        num_topk: int,
        use_fp8_dispatch: bool = False,
        allow_hybrid_mode: bool = True,
        allow_multiple_reduction: bool = True,
        explicitly_destroy: bool = True,
    ) -> None:
        _check_sizes(num_max_tokens_per_rank, hidden, num_topk)
        self.group = group
        self.num_max_tokens_per_rank = num_max_tokens_per_rank
        self.hidden = hidden
        self.num_topk = num_topk
        self.use_fp8_dispatch = use_fp8_dispatch
        self._is_destroyed = False

    @staticmethod
    def get_buffer_size_hint(
        group: ProcessGroup | None,
        num_max_tokens_per_rank: int,
        hidden: int,
        num_topk: int = 0,
        use_fp8_dispatch: bool = False,
        allow_hybrid_mode: bool = True,
        allow_multiple_reduction: bool = True,
    ) -> int:
        """Return the bytes that are sent and received at once at most: dispatch with fixed slots, and its combine."""
        _check_sizes(num_max_tokens_per_rank, hidden, max(num_topk, 1))
        row = hidden + hidden // 32 if use_fp8_dispatch else 2 * hidden
        slots = group_size(group) * num_max_tokens_per_rank
        return 2 * max(align(slots * (row + 8 * num_topk)), align(slots * max(num_topk, 1) * 2 * hidden))

    @staticmethod
    def get_theoretical_num_sms(num_experts: int, num_topk: int) -> int:
        """Return 0: exchanges take no compute cores of a NeuronCore (inferred), and none on the host."""
        return 0

    @staticmethod
    def capture() -> Event[None]:
        """Return an event for what was asked for so far: with one stream it has happened."""
        return Event(Pending(lambda: None))

    def destroy(self) -> None:
        """Give the buffer back; a second time does nothing. Afterwards `dispatch` and `combine` are refused."""
        self._is_destroyed = True

    def dispatch(
        self,
        x: Rows,
        topk_idx: Tensor,
        topk_weights: Tensor,
        cumulative_local_expert_recv_stats: Tensor | None = None,
        num_experts: int = 0,
        num_max_tokens_per_rank: int | None = None,
        expert_alignment: int = 1,
        num_sms: int = 0,
        previous_event: Event[object] | None = None,
        async_with_compute_stream: bool = True,
        allocate_on_comm_stream: bool = False,
        do_handle_copy: bool = False,
        do_cpu_sync: bool = True,
        do_expand: bool = True,
        use_tma_aligned_col_major_sf: bool = True,
        defer_epilogue: bool = True,
    ) -> Event[Dispatched]:
        """Send rows to their experts; every rank of the group calls this, with any number of rows.

        Args:
            x: bfloat16 (n, hidden), or float8_e4m3fn (n, hidden) and packed scales (n, packs) in int16, int32 or uint8.
            topk_idx: int64 (n, k), physical experts; -1 for an unused slot.
            topk_weights: float32 (n, k).
            cumulative_local_expert_recv_stats: int32 (local experts,); the rows each expert gets are added in place.
            num_experts: physical experts of all ranks.
            num_max_tokens_per_rank: slots per pair of ranks without CPU sync; the buffer's when None.
            expert_alignment: each expert's rows start at a multiple of it.
            num_sms: no effect, as `get_theoretical_num_sms` says.
            previous_event: waited for first.
            async_with_compute_stream: no effect: there is one stream.
            allocate_on_comm_stream: no effect, likewise.
            do_handle_copy: no effect: nothing changes a handle.
            do_cpu_sync: exact sizes, known after the host has waited; otherwise equal slots for every pair of ranks
                and worst-case sizes, without any wait (the form trn2 can do: documented).
            do_expand: must stay True, as it is in every call of the model.
            use_tma_aligned_col_major_sf: no effect, see the module.
            defer_epilogue: no effect: rows are always written out when the event is waited for.

        Returns:
            An event; its `current_stream_wait()` gives `(recv_x, recv_topk_idx, recv_topk_weights, handle)`:
            `recv_x` like `x`, one row per (row, expert) pair, grouped by local expert, in order of sending rank, row
            and slot; `recv_topk_idx` int64 (received rows, k), local experts, -1 elsewhere; `recv_topk_weights`
            float32, one per expanded row. Gap rows and their weights are zeros.

        Raises:
            ValueError: shapes or dtypes other than these, or `do_expand=False`.
            ShapeBucketError: more rows than slots, without CPU sync.
        """
        self._check_alive("dispatch")
        rows = (x,) if isinstance(x, Tensor) else tuple(x)
        self._check_rows(rows, topk_idx, topk_weights, do_expand)
        slots = self.num_max_tokens_per_rank if num_max_tokens_per_rank is None else num_max_tokens_per_rank
        local_experts = num_experts // group_size(self.group)
        stats = cumulative_local_expert_recv_stats
        if stats is not None and (stats.dtype != torch.int32 or tuple(stats.shape) != (local_experts,)):
            raise ValueError(
                f"cumulative_local_expert_recv_stats: expected int32[{local_experts}], one count per local expert; "
                f"found {stats.dtype}{list(stats.shape)}."
            )
        if previous_event is not None:
            previous_event.current_stream_wait()
        pending = send_rows(
            rows,
            topk_idx,
            topk_weights,
            num_experts=num_experts,
            group=self.group,
            max_rows=None if do_cpu_sync else slots,
        )
        return Event(Pending(lambda: _expanded(pending.wait(), local_experts, expert_alignment, stats, do_cpu_sync)))

    def combine(
        self,
        x: Tensor,
        handle: EPHandle,
        bias: Tensor | None = None,
        num_sms: int = 0,
        previous_event: Event[object] | None = None,
        async_with_compute_stream: bool = True,
        allocate_on_comm_stream: bool = False,
        defer_epilogue: bool = True,
    ) -> Event[tuple[Tensor, None]]:
        """Bring expert outputs back and add them; every rank of the group calls this.

        Args:
            x: bfloat16 (expanded rows, hidden), already weighted; gap rows are not looked at.
            handle: of the dispatch.
            bias: bfloat16 (n, hidden), the shared expert's output.
            num_sms: no effect, as for `dispatch`.
            previous_event: waited for first.
            async_with_compute_stream: no effect, likewise.
            allocate_on_comm_stream: no effect, likewise.
            defer_epilogue: no effect: sums are always made when the event is waited for.

        Returns:
            An event; its `current_stream_wait()` gives `(combined bfloat16 (n, hidden), None)`; no weights come back,
            since rows were weighted before the second product.

        Numerics: float32, `bias` first, then the row's experts in slot order, one rounding; never by arrival.

        Raises:
            ValueError: shapes or dtypes other than these.
        """
        self._check_alive("combine")
        expected = (handle.num_expanded_tokens, self.hidden)
        own = (handle.route.owner_NK.shape[0], self.hidden)
        if x.dtype != torch.bfloat16 or tuple(x.shape) != expected:
            raise ValueError(
                f"combine: expected bfloat16{list(expected)}, the rows of this dispatch; found {x.dtype}"
                f"{list(x.shape)}."
            )
        if bias is not None and (bias.dtype != torch.bfloat16 or tuple(bias.shape) != own):
            raise ValueError(f"bias: expected bfloat16{list(own)}; found {bias.dtype}{list(bias.shape)}.")
        if previous_event is not None:
            previous_event.current_stream_wait()
        pending = return_rows(handle.groups.collapse(x), handle.route)
        return Event(Pending(lambda: (add_slots(pending.wait(), first_ND=bias).to(torch.bfloat16), None)))

    def _check_alive(self, verb: str) -> None:
        if self._is_destroyed:
            raise ValueError(f"EPBuffer.{verb}: expected a buffer in use; this one was destroyed. Make another one.")

    def _check_rows(self, rows: tuple[Tensor, ...], ids: Tensor, weights: Tensor, do_expand: bool) -> None:
        problems = []
        codes = torch.float8_e4m3fn if self.use_fp8_dispatch else torch.bfloat16
        parts = 2 if self.use_fp8_dispatch else 1
        if len(rows) != parts or rows[0].dtype != codes or tuple(rows[0].shape[1:]) != (self.hidden,):
            found = ", ".join(f"{part.dtype}{list(part.shape)}" for part in rows)
            scales = " and packed scales" if self.use_fp8_dispatch else ""
            problems.append(f"x: expected {codes}[n, {self.hidden}]{scales}; found {found}")
        if len(rows) == 2 and rows[1].dtype not in _SCALE_DTYPES:
            problems.append(f"x[1]: expected packed scales in int16, int32 or uint8; found {rows[1].dtype}")
        for name, tensor, dtype in (("topk_idx", ids, torch.int64), ("topk_weights", weights, torch.float32)):
            if tensor.dtype != dtype or tuple(tensor.shape[1:]) != (self.num_topk,):
                problems.append(
                    f"{name}: expected {dtype}[n, {self.num_topk}]; found {tensor.dtype}{list(tensor.shape)}"
                )
        if not do_expand:
            problems.append("do_expand: expected True, one row per expert; found False")
        if problems:
            raise ValueError("dispatch: " + "; ".join(problems) + ".")


def _expanded(
    received: ReceivedRows, local_experts: int, alignment: int, stats: Tensor | None, do_cpu_sync: bool
) -> Dispatched:
    ids = received.route.ids_MK
    worst = largest_expansion(ids.shape[0], slots=ids.shape[1], local_experts=local_experts, alignment=alignment)
    groups = group_by_expert(
        ids, local_experts=local_experts, alignment=alignment, expanded_rows=None if do_cpu_sync else worst
    )
    if stats is not None:
        stats.add_(groups.counts_L)
    rows = tuple(groups.expand(part) for part in received.rows)
    handle = EPHandle(
        psum_num_recv_tokens_per_expert=groups.ends_L,
        expert_alignment=alignment,
        num_expanded_tokens=rows[0].shape[0],
        groups=groups,
        route=received.route,
    )
    x = rows[0] if len(rows) == 1 else (rows[0], rows[1])
    return x, ids.to(torch.int64), groups.expand_slots(received.weights_MK), handle


def _check_sizes(tokens: int, hidden: int, topk: int) -> None:
    sizes = {"num_max_tokens_per_rank": tokens, "hidden": hidden, "num_topk": topk}
    problems = [f"{name}: expected at least 1; found {size}" for name, size in sizes.items() if size < 1]
    if problems:
        raise ValueError("EPBuffer: " + "; ".join(problems) + ".")
