"""The largest entries of each row without a sort: ids in a fixed order, equal values by ascending column.

The device has no sort, and a top-k of its own for sorted floats in rows that are not too wide (see
`port/capabilities.py`). So the k-th largest value comes from `topk`, in two levels where a row is wide, and everything
else is comparisons and running counts. Static shapes, nothing is read back.

Shape letters: N rows, C columns, K kept.
"""

import torch
from torch import Tensor

MAX_COLUMNS = 16384
"""Columns a single `topk` looks at; rows of 32768 are reported to end in an internal compiler error."""


def top_columns(value_NC: Tensor, count: int, *, max_columns: int = MAX_COLUMNS) -> tuple[Tensor, Tensor]:
    """Return the largest values of each row and their columns, in descending order, equal ones by ascending column.

    Args:
        value_NC: float, (N, C); NaN counts as larger than everything, as for `torch.topk`.
        count: K, from 1 to C.
        max_columns: widest row that one `topk` is given.

    Returns:
        values (N, K), dtype kept, and columns int32 (N, K).

    Raises:
        ValueError: a count outside 1 to C, or values that are not floats.
    """
    rows, columns = value_NC.shape
    if not value_NC.is_floating_point():
        raise ValueError(
            f"top_columns: expected floats, since the device has no top-k of others; found {value_NC.dtype}."
        )
    if not 1 <= count <= columns:
        raise ValueError(f"top_columns: expected a count from 1 to the {columns} columns; found {count}.")
    ranked_NC = torch.where(value_NC.isnan(), torch.inf, value_NC)
    chosen_NC = top_mask(ranked_NC, count, max_columns=max_columns)
    column_NK = left_packed(chosen_NC, count)
    index_NK = column_NK.to(torch.int64)
    kept_NK = ranked_NC.gather(1, index_NK)
    # Columns ascend, so among equals the place is the order they stand in.
    before = kept_NK.unsqueeze(1) > kept_NK.unsqueeze(2)
    equal = kept_NK.unsqueeze(1) == kept_NK.unsqueeze(2)
    earlier = torch.ones(count, count, dtype=torch.bool, device=value_NC.device).tril(-1)
    rank_NK = (before | (equal & earlier)).sum(dim=2)
    order_NK = torch.zeros(rows, count, dtype=torch.int32, device=value_NC.device).scatter(1, rank_NK, column_NK)
    return value_NC.gather(1, order_NK.to(torch.int64)), order_NK


def top_mask(value_NC: Tensor, count: int, *, max_columns: int = MAX_COLUMNS) -> Tensor:
    """Return which entries are among the `count` largest of their row; of equal ones the first columns are.

    Args:
        value_NC: float, (N, C), no NaN.
        count: at most C, at least 1.
        max_columns: widest row that one `topk` is given.

    Returns:
        bool (N, C), exactly `count` of them true in each row.
    """
    last_N1 = _last_kept(value_NC, count, max_columns)
    above = value_NC > last_N1
    equal = value_NC == last_N1
    room = count - above.sum(dim=-1, keepdim=True, dtype=torch.int32)
    return above | (equal & (equal.cumsum(dim=-1, dtype=torch.int32) <= room))


def left_packed(chosen_NC: Tensor, width: int) -> Tensor:
    """Return the true columns of each row, ascending, then -1; int32 (N, width).

    Args:
        chosen_NC: bool (N, C), at most `width` of them true in a row.
        width: columns of the result.
    """
    rows, columns = chosen_NC.shape
    place = chosen_NC.cumsum(dim=-1) - 1
    place = torch.where(chosen_NC, place, width)  # what was not chosen lands in a spare last column
    column = torch.arange(columns, dtype=torch.int32, device=chosen_NC.device).expand(rows, columns)
    packed = torch.full((rows, width + 1), -1, dtype=torch.int32, device=chosen_NC.device)
    return packed.scatter_(1, place, column)[:, :width]


def select_columns(
    value_NC: Tensor,
    count: int,
    *,
    end_N: Tensor | None = None,
    by_column: bool = False,
    offset_N: Tensor | None = None,
    fill: int = -1,
    max_columns: int = MAX_COLUMNS,
) -> tuple[Tensor, Tensor]:
    """Return the largest valid entries of each row with a fixed number of columns, whatever there is to choose from.

    Args:
        value_NC: float, (N, C).
        count: K, any number of at least 1; what a row does not have is filled.
        end_N: int32 (N,), valid columns of each row are those before it; all of them when None.
        by_column: order by ascending column instead of descending value.
        offset_N: int32 (N,), added to the columns of a row.
        fill: column of a missing entry; its value is -inf.
        max_columns: widest row that one `topk` is given.

    Returns:
        values (N, K), dtype kept, and columns int32 (N, K); missing entries stand at the end.
    """
    rows, columns = value_NC.shape
    column_C = torch.arange(columns, dtype=torch.int32, device=value_NC.device)
    valid_NC = torch.ones_like(value_NC, dtype=torch.bool) if end_N is None else column_C < end_N.unsqueeze(-1)
    kept = min(count, columns)
    # Of what is masked the first columns come first, and each of them lies behind every valid one.
    masked_NC = torch.where(valid_NC, value_NC, -torch.inf)
    if by_column:
        ranked_NC = torch.where(masked_NC.isnan(), torch.inf, masked_NC)
        chosen_NC = top_mask(ranked_NC, kept, max_columns=max_columns) & valid_NC
        picked_NK = left_packed(chosen_NC, kept)
        present_NK = picked_NK >= 0
    else:
        _, picked_NK = top_columns(masked_NC, kept, max_columns=max_columns)
        number_K = torch.arange(kept, dtype=torch.int32, device=value_NC.device)
        limit = torch.full((rows,), columns, dtype=torch.int32, device=value_NC.device) if end_N is None else end_N
        present_NK = number_K < limit.unsqueeze(-1)
        # An entry of -inf that is valid must not lose its place to one that is not: valid columns are the first ones.
    index_NK = picked_NK.clamp(min=0).to(torch.int64)
    found_NK = torch.where(present_NK, value_NC.gather(1, index_NK), -torch.inf)
    shifted_NK = picked_NK if offset_N is None else picked_NK + offset_N.unsqueeze(-1)
    found_column_NK = torch.where(present_NK, shifted_NK, fill)
    if kept == count:
        return found_NK, found_column_NK
    missing = (rows, count - kept)
    return (
        torch.cat((found_NK, found_NK.new_full(missing, -torch.inf)), dim=1),
        torch.cat((found_column_NK, found_column_NK.new_full(missing, fill)), dim=1),
    )


def _last_kept(value_NC: Tensor, count: int, max_columns: int) -> Tensor:
    """Return the `count`-th largest value of each row, (N, 1)."""
    columns = value_NC.shape[-1]
    # Halving must gain something: with a count near the width of a piece, a second level would be as wide as the first.
    if columns <= max_columns or 2 * count > max_columns:
        return value_NC.topk(count, dim=-1, sorted=True).values[:, -1:]
    pieces = -(-columns // max_columns)
    padded = torch.nn.functional.pad(value_NC, (0, pieces * max_columns - columns), value=-torch.inf)
    best = padded.unflatten(-1, (pieces, max_columns)).topk(count, dim=-1, sorted=True).values
    return _last_kept(best.flatten(1), count, max_columns)
