"""Names of `torch.cuda` over a stand-in of `torch.neuron`: what is asked, with which core, in which layout."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from port.errors import PlatformError
from port.neuron_ops.cuda_table import cuda_functions
from port.neuron_ops.device_mapping import DeviceMapping

NAMES = cuda_functions(DeviceMapping(host=False))


def offer(monkeypatch: pytest.MonkeyPatch, **functions: object) -> None:
    monkeypatch.setattr(torch, "neuron", SimpleNamespace(**functions), raising=False)
    monkeypatch.setattr(torch, "accelerator", SimpleNamespace())


def test_figures_are_those_of_the_current_core_where_none_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, memory_reserved=lambda *one: 5 + len(one))
    assert NAMES["memory_reserved"]() == 5


def test_a_build_without_a_counterpart_is_told_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch)
    with pytest.raises(PlatformError, match=r"torch\.cuda\.memory_summary: torch\.neuron has no counterpart"):
        NAMES["memory_summary"]()


def test_names_that_only_the_accelerator_has_are_found_there(monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch)
    monkeypatch.setattr(torch, "accelerator", SimpleNamespace(get_memory_info=lambda *one: (3, 7), synchronize=list))
    assert NAMES["mem_get_info"]() == (3, 7)
    NAMES["synchronize"]()


@pytest.mark.parametrize(
    "given",
    [
        {"allocated_bytes": {"current": 3, "peak": 5}, "num_ooms": 1},
        {"allocated_bytes": {"all": {"current": 3, "peak": 5}}, "num_ooms": 1},
        {"allocated_bytes.all.current": 3, "allocated_bytes.all.peak": 5, "num_ooms": 1},
    ],
    ids=["nested", "nested with pools", "flat"],
)
def test_statistics_have_the_names_of_cuda_in_every_build(monkeypatch: pytest.MonkeyPatch, given: dict) -> None:
    offer(monkeypatch, memory_stats=lambda *one: given)
    flat = {"allocated_bytes.all.current": 3, "allocated_bytes.all.peak": 5, "num_ooms": 1}
    assert NAMES["memory_stats"]() == flat
    nested = {"allocated_bytes": {"all": {"current": 3, "peak": 5}}, "num_ooms": 1}
    assert NAMES["memory_stats_as_nested_dict"]() == nested


def test_free_memory_is_what_is_not_reserved_where_a_build_does_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    properties = SimpleNamespace(name="neuron:0", total_memory=100)
    offer(monkeypatch, get_device_properties=lambda *one: properties, memory_reserved=lambda *one: 30)
    assert NAMES["mem_get_info"]() == (70, 100)
    properties.total_memory = 0
    with pytest.raises(PlatformError, match="tells no total memory"):
        NAMES["mem_get_info"]()


def test_statistics_of_a_rule_are_asked_for_each_core(monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, device_count=lambda: 4, current_device=lambda: 2)
    assert (NAMES["device_count"](), NAMES["current_device"]()) == (1, 0)
    several = cuda_functions(DeviceMapping(host=False, devices="same_index"))
    assert (several["device_count"](), several["current_device"]()) == (4, 2)
