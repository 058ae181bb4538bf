"""Numerics cases of kinds that were not handed: each is answered, and a wrong expectation fails."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from workbench.cases.base import CaseResult
from workbench.cases.numerics import run_case

_PROGRAM = """
import torch

def inputs():
    return (torch.arange(1.0, 9.0).reshape(2, 4),)

def host(x):
    return {host}

def device(x):
    return {device}
"""


def case(folder: Path, host: str, device: str, expected: dict[str, object]) -> CaseResult:
    (folder / "pair.py").write_text(_PROGRAM.format(host=host, device=device), encoding="utf-8")
    body = {"id": "NUM-90", "class": "numerics", "files": ["pair.py"], "expected": expected}
    (folder / "expected.json").write_text(json.dumps(body), encoding="utf-8")
    return run_case(folder)


_NAN = "torch.where(x == 3, torch.nan, x)"
_KINDS: list[tuple[str, str, dict[str, object]]] = [
    ("x", _NAN, {"nan_device": 1, "nan_host": 0, "first_nan": [0, 2], "max_abs_diff": None, "verdict": "wrong: NaN"}),
    ("x", "x * 2", {"ratio": 2.0, "verdict": "off by a factor 2, a scale error"}),
    ("x", "x.flip(-1)", {"sorted_equal": True, "verdict": "a permutation, not rounding"}),
    ("x * 100", "x * 100 + (x == 3)", {"wrong_elements": 1, "worst_index": [0, 2], "max_abs_diff": 1.0}),
    ("x.topk(2).indices", "(x * (x != 4)).topk(2).indices", {"flipped_rows": 1, "flipped_row_indices": [0]}),
]


@pytest.mark.parametrize(("host", "device", "expected"), _KINDS)
def test_every_kind_is_answered(tmp_path: Path, host: str, device: str, expected: dict[str, object]) -> None:
    assert case(tmp_path, host, device, expected).differences == ()


@pytest.mark.parametrize(
    ("device", "key", "wrong"),
    [
        ("x * 2", "ratio", 3.0),
        ("x * 2", "sorted_equal", True),
        ("x * 2", "verdict", "a permutation"),
        ("x.flip(-1)", "verdict", "a scale error"),
        ("x + (x == 3)", "ratio", 1.0),
        ("x * 2", "max_abs_diff", None),
        ("x * 2", "wrong_elements", 1),
    ],
)
def test_a_wrong_expectation_fails(tmp_path: Path, device: str, key: str, wrong: object) -> None:
    result = case(tmp_path, "x", device, {key: wrong})
    assert result.status == "failed"
    assert result.differences[0].startswith(key)
