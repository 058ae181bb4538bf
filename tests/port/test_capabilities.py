"""The capability table: every row has a source and a mark, and the docs hold it."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest
import torch

from port.capabilities import CAPABILITIES, HOST_OPERATIONS, Mark, capability, capability_table

ROOT = Path(__file__).resolve().parents[2]


def test_every_row_says_where_it_comes_from_and_how_far_to_trust_it() -> None:
    for row in CAPABILITIES:
        assert row.source
        assert row.fact
        assert row.mark in get_args(Mark)
    assert len({row.name for row in CAPABILITIES}) == len(CAPABILITIES)


def test_what_the_device_lacks_has_a_way_round_it_where_the_port_needs_one() -> None:
    for name in ("sort", "int64", "float8_e4m3fn", "topk_integer", "topk_wide", "dynamic_shapes", "as_strided"):
        row = capability(name)
        assert row.supported is False
        assert row.instead


def test_limits_are_the_documented_figures() -> None:
    assert capability("float8_e4m3fn").limit == 240
    assert capability("core_memory").limit == 25_769_803_776
    assert capability("topk_wide").limit == 32768


def test_operations_of_the_host_exist_in_this_torch() -> None:
    assert [name for name in HOST_OPERATIONS if not hasattr(torch.ops.aten, name)] == []


def test_an_unknown_row_has_the_nearest_one() -> None:
    with pytest.raises(ValueError, match=r"found 'topk_integers'\. Did you mean 'topk_integer'"):
        capability("topk_integers")


def test_the_docs_hold_the_table() -> None:
    assert capability_table() in (ROOT / "docs" / "device.md").read_text(encoding="utf-8")
