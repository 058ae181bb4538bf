"""The state between two steps is a value whose tensors have names."""

from __future__ import annotations

import pytest
import torch

from port.model.forward_state import ForwardState


def example():
    return ForwardState(
        stream=torch.ones(2, 3, 4),
        pre=torch.ones(2, 3),
        selection={2: torch.zeros(2, 5, dtype=torch.int32)},
        compressed={2: torch.ones(6, 4), 4: torch.ones(7, 4)},
    )


def test_tensors_are_named_and_what_is_absent_is_left_out():
    assert list(example().tensors()) == ["stream", "pre", "selection.2", "compressed.2", "compressed.4"]
    assert ForwardState().tensors() == {}


def test_tensors_are_replaced_by_name_in_a_new_value():
    state = example()
    changed = state.with_tensors({"compressed.4": torch.zeros(7, 4), "pre": torch.zeros(2, 3)})
    assert changed.compressed[4].sum() == 0
    assert changed.pre.sum() == 0
    assert changed.compressed[2] is state.compressed[2]
    assert state.pre.sum() == 6


def test_a_name_it_does_not_hold_is_refused():
    with pytest.raises(ValueError, match=r"expected names among stream, pre, .*; found logits"):
        example().with_tensors({"logits": torch.zeros(1)})


def test_mapping_reaches_every_tensor():
    assert {tensor.device.type for tensor in example().map(lambda tensor: tensor.to("meta")).tensors().values()} == {
        "meta"
    }


def test_changing_the_dtype_spares_weights_and_indices():
    state = example().to(dtype=torch.bfloat16)
    assert state.stream.dtype == state.compressed[2].dtype == torch.bfloat16
    assert state.pre.dtype == torch.float32
    assert state.selection[2].dtype == torch.int32
    assert {tensor.device.type for tensor in example().to("meta").tensors().values()} == {"meta"}
