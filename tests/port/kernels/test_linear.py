"""Products over dense and stored weights: loops, pieces with the bits of the whole, and rows independent of a batch."""

import pytest
import torch

from port.kernels.linear import MIN_GEMM_ROWS, dense_weight, grouped_linear, linear, stored_linear
from port.kernels.quantize import quantize_fp4_rows, quantize_fp8_tiles

FLOAT32 = {"operands": torch.float32, "out_dtype": torch.float32}


def stored_weights(rows, columns, seed=0):
    weight = torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))
    return {"fp8": quantize_fp8_tiles(weight), "fp4": quantize_fp4_rows(weight)}


def test_worked_by_hand():
    found = linear(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 4.0], [5.0, 6.0], [0.0, -1.0]]), **FLOAT32)
    assert found.tolist() == [[11.0, 17.0, -2.0]]


def test_groups_worked_by_hand():
    x = torch.tensor([[[1.0, 2.0], [3.0, 4.0]]])
    weight = torch.tensor([[[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], [[2.0, 0.0], [0.0, 2.0], [2.0, 2.0]]])
    assert grouped_linear(x, weight, **FLOAT32).tolist() == [[[1.0, 2.0, 3.0], [6.0, 8.0, 14.0]]]


def test_groups_agree_with_one_linear_each():
    generator = torch.Generator().manual_seed(0)
    x, weight = torch.randn(9, 3, 16, generator=generator), torch.randn(3, 5, 16, generator=generator)
    found = grouped_linear(x, weight, **FLOAT32)
    for g in range(3):
        torch.testing.assert_close(found[:, g], linear(x[:, g], weight[g], **FLOAT32))


@pytest.mark.parametrize("stored", ["fp8", "fp4"])
@pytest.mark.parametrize("operands", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("max_elements", [1, 64 * 33, 1 << 25])
def test_stored_form_has_the_bits_of_the_dense_copy(stored, operands, max_elements):
    weight, scale = stored_weights(100, 64)[stored]
    x = torch.randn(12, 64, generator=torch.Generator().manual_seed(1))
    options = {"operands": operands, "out_dtype": torch.float32, "max_elements": max_elements}
    dense = dense_weight(weight, scale, out_dtype=operands)
    assert torch.equal(stored_linear(x, weight, scale, **options), linear(x, dense, **options))
    exact = x.to(operands).double() @ dense_weight(weight, scale, out_dtype=torch.float32).double().T
    torch.testing.assert_close(linear(x, dense, **options).double(), exact, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("rows", [1, 2, 3, 5, 8, 17])
def test_a_row_has_the_same_bits_in_every_batch(rows):
    generator = torch.Generator().manual_seed(2)
    x, weight = torch.randn(40, 96, generator=generator), torch.randn(64, 96, generator=generator)
    whole = linear(x, weight, **FLOAT32)
    assert torch.equal(linear(x[:rows], weight, **FLOAT32), whole[:rows])
    grouped, grouped_weight = x.unflatten(1, (3, 32)), weight.unflatten(1, (3, 32)).transpose(0, 1)
    whole = grouped_linear(grouped, grouped_weight, **FLOAT32)
    assert torch.equal(grouped_linear(grouped[:rows], grouped_weight, **FLOAT32), whole[:rows])


def test_short_batches_are_padded_and_cut_again():
    weight = torch.eye(4)
    for rows in range(1, MIN_GEMM_ROWS + 2):
        x = torch.arange(rows * 4.0).view(rows, 4)
        assert torch.equal(linear(x, weight, **FLOAT32), x)


def test_bfloat16_operands_are_summed_in_float32():
    x = torch.tensor([[256.0] + [1.0] * 64], dtype=torch.bfloat16)
    ones = torch.ones(1, 65)
    found = linear(x, ones, operands=torch.bfloat16, out_dtype=torch.float32)
    assert found.item() == 320.0, "adding ones to 256 in bfloat16 would leave 256"
