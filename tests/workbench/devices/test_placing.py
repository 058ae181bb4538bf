"""Placing: what holds a replaced tensor is rebuilt, ties and circles stay, and everything else is the same object."""

from __future__ import annotations

import functools
from collections import OrderedDict, namedtuple
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from workbench.devices.placing import Placing

Pair = namedtuple("Pair", ["first", "second"])


def doubled(tensor: Tensor) -> Tensor:
    return tensor.detach() * 2


def place(value):
    return Placing(doubled).of(value)


@dataclass(frozen=True, slots=True)
class Frozen:
    tensor: Tensor
    note: str


class Cache:
    def __init__(self) -> None:
        self.rows = [torch.ones(2)]
        self.size = 2


class Tree(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Linear(2, 2)
        self.right = nn.Linear(2, 2)
        self.right.weight = self.left.weight
        self.register_buffer("rows", torch.ones(1))
        self.cache = Cache()
        self.back = [self]
        self.bound = self.forward

    def forward(self, x: Tensor) -> Tensor:
        return self.right(self.left(x))


def test_containers_are_rebuilt_with_their_types() -> None:
    one = torch.ones(1)
    value = {"a": (one, 3), "b": [one], "c": Pair(one, "x"), "d": Frozen(one, "y"), "e": OrderedDict(z=one)}
    placed = place(value)
    assert placed["a"] == (torch.tensor([2.0]), 3)
    assert placed["b"][0] is placed["a"][0], "a tensor met twice is replaced once"
    assert isinstance(placed["c"], Pair)
    assert placed["d"].tensor is placed["a"][0]
    assert isinstance(placed["e"], OrderedDict)
    assert value["a"][0] is one, "the original stays as it was"


def test_what_reaches_no_changed_tensor_is_the_same_object() -> None:
    kept = {"config": [1, 2], "nested": {"name": "x"}}
    value = {"kept": kept, "tensor": torch.ones(1)}
    assert place(value)["kept"] is kept
    unchanged = [torch.ones(1), Cache()]
    assert Placing(lambda tensor: tensor).of(unchanged) is unchanged


def test_a_module_is_copied_with_its_ties_buffers_objects_and_circles() -> None:
    tree = Tree()
    placed = place(tree)
    assert placed is not tree
    assert placed.left.weight is placed.right.weight
    assert placed.rows.item() == 2.0
    assert placed.cache.rows[0][0].item() == 2.0
    assert placed.cache.size == 2
    assert placed.back[0] is placed
    assert placed.bound.__self__ is placed
    assert tree.cache.rows[0][0].item() == 1.0


def test_hooks_and_children_of_a_copy_are_its_own() -> None:
    tree = Tree()
    placed = place(tree)
    placed.register_forward_hook(lambda *_: None)
    placed.extra = nn.Identity()
    assert not tree._forward_hooks
    assert not hasattr(tree, "extra")


def test_a_parent_without_tensors_of_its_own_is_rebuilt_through_a_child_that_points_back() -> None:
    parent, child = {}, {}
    child["parent"] = parent
    parent["child"], parent["tensor"] = [child], torch.ones(1)
    holder = Cache.__new__(Cache)
    holder.rows, holder.size = [holder], torch.ones(1)
    placed = place(holder)
    assert placed.rows[0] is placed
    assert placed.size.item() == 2.0


def test_bound_methods_and_partials_follow_their_owner() -> None:
    tree = Tree()
    call = functools.partial(tree.forward, torch.ones(1, 2))
    placed = place({"module": tree, "call": call, "method": tree.forward})
    assert placed["method"].__self__ is placed["module"]
    assert placed["call"].func.__self__ is placed["module"]
    assert placed["call"].args[0][0, 0].item() == 2.0


def test_gradients_go_with_their_tensors() -> None:
    leaf = torch.ones(2, requires_grad=True)
    leaf.sum().backward()
    assert torch.equal(place(leaf).grad, torch.full((2,), 2.0))
