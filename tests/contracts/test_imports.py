"""The two packages keep the house rules on imports, and each rule can fail."""

from __future__ import annotations

import pytest

from tests.contracts.imports import ROOT, RULES, Rule, modules, violations

_BY_NAME = {"argvalues": RULES, "ids": [rule.name for rule in RULES]}


@pytest.mark.parametrize("rule", **_BY_NAME)
def test_rule_holds_in_every_module(rule: Rule) -> None:
    texts = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in modules()}
    assert len(texts) > 20, "the walk found next to nothing"
    assert [line for file, text in texts.items() for line in violations(rule, file, text)] == []


@pytest.mark.parametrize("rule", **_BY_NAME)
def test_rule_can_fail(rule: Rule) -> None:
    file, text = rule.example
    assert violations(rule, file, text), f"the example does not break the rule: {text}"


def test_rules_look_past_the_allowed_places() -> None:
    environment = next(rule for rule in RULES if "environment" in rule.name)
    assert violations(environment, "workbench/settings.py", environment.example[1]) == []
    pictures = next(rule for rule in RULES if "pictures" in rule.name)
    typing_only = "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    from matplotlib.figure import Figure\n"
    assert violations(pictures, "workbench/views/plots.py", typing_only) == []


def test_files_are_named_after_what_they_hold() -> None:
    refused = {"utils", "util", "helpers", "common", "misc", "manager", "handler"}
    assert [str(path.relative_to(ROOT)) for path in modules() if path.stem in refused] == []
