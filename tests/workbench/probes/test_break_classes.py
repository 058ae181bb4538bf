"""Every kind of torch's registry has a word of ours, and the registry is read for what it is."""

from __future__ import annotations

import json

from workbench.probes.break_classes import CLASSES, INTENTIONAL, reason_class
from workbench.probes.break_registry import find_entry, read_registry, registry_ids


def test_every_kind_of_the_registry_has_a_word():
    # torch's file holds its own template of an entry, too.
    kinds = [kind for kind in read_registry() if kind != "_gb_type"]
    assert len(kinds) > 400
    assert [kind for kind in kinds if reason_class(kind) == "other"] == []


def test_a_kind_no_pattern_knows_is_other():
    assert reason_class("Quantum entanglement") == "other"
    assert {"other", *INTENTIONAL} <= set(CLASSES)


def test_a_kind_is_found_with_its_id_explanation_and_hints():
    entry = find_entry("Call to `torch._dynamo.graph_break()`")
    assert entry.registry_id == "GB0025"
    assert "graph break" in entry.explanation
    assert find_entry("Quantum entanglement") is None


def test_earlier_wordings_lead_to_the_same_id(tmp_path):
    file = tmp_path / "registry.json"
    versions = [
        {"Gb_type": "new words", "Explanation": "e", "Hints": ["h"]},
        {"Gb_type": "old words", "Explanation": "f", "Hints": []},
    ]
    file.write_text(json.dumps({"GB0001": versions}))
    assert {find_entry(one, file).registry_id for one in ("new words", "old words")} == {"GB0001"}
    assert registry_ids(file) == ("GB0001",)


def test_a_torch_without_a_registry_still_has_its_breaks_listed(tmp_path):
    assert read_registry(tmp_path / "none.json") == {}
    (tmp_path / "list.json").write_text("[1]")
    assert read_registry(tmp_path / "list.json") == {}
