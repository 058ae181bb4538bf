"""Top-k without a sort: the same columns as a stable sort, in the same order, for any width."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from port.kernels.routing import route
from port.kernels.topk import left_packed, select_columns, top_columns, top_mask


def tied(rows: int, columns: int, *, levels: int = 7, seed: int = 0) -> Tensor:
    """Return values of which many are equal, infinities among them."""
    generator = torch.Generator().manual_seed(seed)
    value = torch.randint(-levels, levels, (rows, columns), generator=generator).to(torch.float32)
    value[value == -levels] = -torch.inf
    value[value == levels - 1] = torch.inf
    return value


def slow_top(value: Tensor, count: int) -> tuple[list[list[float]], list[list[int]]]:
    columns = [sorted(range(len(row)), key=lambda c: (-row[c], c))[:count] for row in value.tolist()]
    return [[row[c] for c in picked] for row, picked in zip(value.tolist(), columns, strict=True)], columns


@pytest.mark.parametrize("count", [1, 2, 6, 40])
@pytest.mark.parametrize("max_columns", [16, 4096], ids=["in two levels", "at once"])
def test_equal_values_go_to_the_lower_column(count: int, max_columns: int) -> None:
    value = tied(9, 40)
    values, columns = top_columns(value, count, max_columns=max_columns)
    expected_values, expected_columns = slow_top(value, count)
    assert columns.tolist() == expected_columns
    assert values.tolist() == expected_values
    assert columns.dtype == torch.int32


@pytest.mark.parametrize("columns", [33, 64, 100, 257])
def test_two_levels_choose_what_one_does(columns: int) -> None:
    value = torch.randn(5, columns, generator=torch.Generator().manual_seed(columns))
    for count in (1, 3, 8, 9, 30):
        assert torch.equal(top_columns(value, count, max_columns=16)[1], value.topk(count).indices.to(torch.int32))


def test_a_row_without_a_number_puts_nan_first_like_torch() -> None:
    value = torch.tensor([[1.0, torch.nan, 3.0, torch.nan, torch.inf]])
    values, columns = top_columns(value, 4)
    assert columns.tolist() == [[1, 3, 4, 2]]
    assert values[0, :2].isnan().all()


def test_exactly_as_many_as_asked_for_are_chosen() -> None:
    value = tied(20, 31, levels=2)
    for count in (1, 5, 31):
        assert top_mask(value, count).sum(dim=1).tolist() == [count] * 20


def test_packed_columns_ascend_and_end_in_minus_one() -> None:
    chosen = torch.tensor([[False, True, True, False], [False] * 4])
    assert left_packed(chosen, 3).tolist() == [[1, 2, -1], [-1, -1, -1]]


@pytest.mark.parametrize("by_column", [False, True])
def test_selection_keeps_to_the_valid_columns(by_column: bool) -> None:
    value = tied(6, 12, levels=3, seed=2)
    end = [0, 1, 3, 12, 12, 7]
    offset = torch.arange(6, dtype=torch.int32) * 100
    values, columns = select_columns(
        value, 5, end_N=torch.tensor(end, dtype=torch.int32), by_column=by_column, offset_N=offset
    )
    for row, length in enumerate(end):
        _, [picked] = slow_top(value[row : row + 1, :length], 5)
        picked = sorted(picked) if by_column else picked
        missing = 5 - len(picked)
        assert columns[row].tolist() == [column + 100 * row for column in picked] + [-1] * missing
        assert values[row].tolist() == [value[row, column].item() for column in picked] + [-torch.inf] * missing


def test_more_than_there_is_comes_filled() -> None:
    values, columns = select_columns(torch.tensor([[1.0, 2.0]]), 4, fill=-7)
    assert columns.tolist() == [[1, 0, -7, -7]]
    assert values.tolist() == [[2.0, 1.0, -torch.inf, -torch.inf]]


def test_integers_and_wrong_counts_are_refused() -> None:
    with pytest.raises(ValueError, match=r"expected floats.*found torch\.int32"):
        top_columns(torch.zeros(1, 3, dtype=torch.int32), 1)
    with pytest.raises(ValueError, match="a count from 1 to the 3 columns; found 4"):
        top_columns(torch.zeros(1, 3), 4)


def test_no_operation_sorts() -> None:
    def program(value: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
        return (*route(value, bias, topk=3, scaling=1.0), *select_columns(value, 5), *top_columns(value, 4))

    graph = make_fx(program)(torch.randn(2, 40), torch.zeros(40))
    calls = [node for node in graph.graph.nodes if node.op == "call_function"]
    assert not [node for node in calls if "sort" in str(node.target) or "argsort" in str(node.target)]
    top = [node for node in calls if "topk" in str(node.target)]
    assert top
    for node in top:
        assert node.args[0].meta["val"].dtype.is_floating_point
        assert node.kwargs.get("sorted", True) is True
        assert not node.args[4:5] or node.args[4] is True
