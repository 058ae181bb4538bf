"""A graph-break case passes when every key is answered in substance, and each key can fail it."""

from __future__ import annotations

import copy
import json

import pytest

from tests.shared import shared_path
from workbench.cases.graph_break import run_case
from workbench.cases.reason_words import same_meaning, words_agree
from workbench.errors import PlanError
from workbench.probes.break_classes import reason_class

_ITEM = "Unsupported Tensor.item() call with capture_scalar_outputs=False"
_PROGRAM = """
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, x):
        for row in x:
            peak = row.max().item()
            x = x / peak
        return x

    def fine(self, x, *, scale=None):
        return x * scale

def build_model():
    return Model().eval()

def example_inputs():
    return (torch.ones(2, 8),)
"""
_SITE = {
    "file": "model.py",
    "line": 8,
    "code": "peak = row.max().item()",
    "reason_class": "scalar_read",
    "torch_reason": _ITEM,
    "frame_skipped_to_eager": True,
    "log_records": 1,
}
_EXPECTED = {
    "id": "GB-99",
    "class": "graph_break",
    "note": "a value read in a loop",
    "entry": {
        "file": "model.py",
        "build": "build_model()",
        "inputs": "example_inputs()",
        "call": "model(*example_inputs())",
    },
    "graph_breaks_log": [
        {
            "file": "model.py",
            "line": 8,
            "reason": _ITEM,
            "reason_class": "tensor_item",
            "frame_skipped_to_eager": True,
            "secondary": "break_in_loop",
        }
    ],
    "tool_must_report": {"break_sites": [_SITE], "distinct_sites": 1, "no_break": False},
    "must_not": ["report 2 breaks", "name line 7"],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("GB-99")
    (path / "model.py").write_text(_PROGRAM)
    return path


def _run(folder, expected):
    (folder / "expected.json").write_text(json.dumps(expected))
    return run_case(folder)


def _changed(path, value):
    expected = copy.deepcopy(_EXPECTED)
    place = expected
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return expected


def test_a_break_in_a_loop_is_answered(folder):
    result = _run(folder, _EXPECTED)
    assert (result.status, result.differences) == ("passed", ())
    assert result.answers["breaks"][0]["line"] == 8


_SITE_PATH = ("tool_must_report", "break_sites", 0)


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        ((*_SITE_PATH, "line"), 9, "model.py:9: expected a break"),
        ((*_SITE_PATH, "code"), "other", "code: expected 'other'"),
        ((*_SITE_PATH, "frame_skipped_to_eager"), False, "frame_skipped_to_eager: expected False"),
        ((*_SITE_PATH, "log_records"), 4, "log_records: expected 4, reported 1"),
        ((*_SITE_PATH, "in_loop"), False, "in_loop: expected False, reported True"),
        ((*_SITE_PATH, "colour"), "red", "colour: a key this version does not know"),
        (("tool_must_report", "break_sites"), [], "expected no break at model.py:8"),
        (("tool_must_report", "distinct_sites"), 2, "distinct_sites: expected 2, reported 1"),
        (("tool_must_report", "no_break"), True, "no_break: expected True"),
        (("tool_must_report", "mood"), 1, "tool_must_report.mood: a key this version does not know"),
        (("graph_breaks_log", 0, "line"), 9, "graph_breaks_log model.py:9: not reported"),
        (("must_not",), ["name model.py:8"], "a break is reported there"),
        (("must_not",), ["report 1 different breaks"], "that is how many are reported"),
        (("must_not",), "tensor_item", "'tensor_item' is said"),
        (("verdict",), "good", "verdict: a key this version does not know"),
    ],
)
def test_each_key_can_fail_the_case(folder, path, value, told):
    result = _run(folder, _changed(path, value))
    assert result.status == "failed"
    assert any(told in line for line in result.differences), result.differences


def test_another_reason_fails_the_case(folder):
    expected = _changed((*_SITE_PATH, "torch_reason"), "attempted to trace numpy function")
    expected["tool_must_report"]["break_sites"][0]["reason_class"] = "numpy_unsupported"
    assert "expected numpy_unsupported, reported tensor_item" in _run(folder, expected).differences[0]


def test_a_case_that_calls_a_method_has_no_break(folder):
    expected = {
        "id": "GB-98",
        "class": "graph_break",
        "entry": {**_EXPECTED["entry"], "call": "model.fine(*example_inputs(), scale=2)"},
        "tool_must_report": {"break_sites": [], "distinct_sites": 0, "no_break": True},
    }
    assert _run(folder, expected).status == "passed"


def test_a_line_of_a_library_is_answered_with_the_users_line_that_led_there(tmp_path):
    program = _PROGRAM.replace("peak = row.max().item()", "peak = copy.deepcopy(row).sum()")
    (tmp_path / "model.py").write_text(program.replace("import torch", "import copy\nimport torch", 1))
    site = {"file": "copy.py", "line": 153, "torch_reason": "Attempted to copy.deepcopy a tensor", "log_records": 9}
    expected = {
        "id": "GB-96",
        "class": "graph_break",
        "entry": _EXPECTED["entry"],
        "tool_must_report": {"break_sites": [site], "distinct_sites": 1, "no_break": False},
    }
    assert _run(tmp_path, expected).differences == ()
    site["torch_reason"] = "attempted to trace numpy function"
    assert _run(tmp_path, expected).differences[0].startswith("copy.py:153: expected a break")


def test_a_case_without_anything_to_compare_with_fails(folder):
    result = _run(folder, {"id": "GB-97", "class": "graph_break"})
    assert result.differences == ("tool_must_report: expected an object, found nothing to compare with",)


@pytest.mark.parametrize(
    ("key", "value"), [("build", "import os"), ("call", "model[0]"), ("call", "a b"), ("call", "model(len)")]
)
def test_an_entry_that_is_no_call_is_refused(folder, key, value):
    with pytest.raises(PlanError, match="entry: expected"):
        _run(folder, _changed(("entry", key), value))


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("tensor_item", _ITEM),
        ("scalar_conversion", _ITEM),
        ("dynamic_shape_op", "Dynamic shape operator"),
        ("boolean_mask", "Dynamic shape operator"),
        ("data_dependent_op", "Data dependent operator"),
        ("data_dependent_branch", "Data-dependent branching"),
        ("control_flow_on_tensor", "Data-dependent branching"),
        ("skipped_function", "Attempted to call function marked as skipped"),
        ("print_call", "Failed to trace builtin operator"),
        ("unsupported_method", "Unsupported method call"),
        ("explicit_graph_break", "Call to `torch._dynamo.graph_break()`"),
        ("compiler_disabled", "Skip calling `torch.compiler.disable()`d function"),
        ("numpy_unsupported", "attempted to trace numpy function unsupported by PyTorch"),
    ],
)
def test_words_of_one_meaning_agree(word, reason):
    assert words_agree(word, reason_class(reason))
    assert same_meaning(word, reason)


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("numpy_unsupported", _ITEM),
        ("tensor_item", "Attempted to call function marked as skipped"),
        ("explicit_graph_break", "Dynamic shape operator"),
        ("unsupported_method", "Data-dependent branching"),
        ("compiler_disabled", "Unsupported method call"),
    ],
)
def test_words_of_different_meaning_disagree(word, reason):
    assert not same_meaning(word, reason)
    assert not same_meaning(word, reason, torch_reason="Something else entirely")


def test_the_words_of_every_handed_case_agree_with_ours():
    for file in sorted(shared_path("cases").glob("GB-*/expected.json")):
        for site in json.loads(file.read_text())["tool_must_report"]["break_sites"]:
            assert words_agree(site["reason_class"], reason_class(site["torch_reason"])), file


def test_the_handed_cases_with_the_hardest_lists_pass():
    for name in ("GB-05", "GB-23"):
        result = run_case(shared_path("cases", name))
        assert result.differences == ()
        assert result.status == "passed"
    behind = [one["line"] for one in run_case(shared_path("cases", "GB-05")).answers["behind_others"]]
    assert behind == [21]
