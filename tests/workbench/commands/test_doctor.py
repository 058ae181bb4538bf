"""`workbench doctor`: its exit codes, and a document that fits its schema."""

from __future__ import annotations

import json

import pytest

from workbench.cli import main
from workbench.placement_trial import Trial


def test_doctor_passes_where_nothing_is_required(capsys, monkeypatch) -> None:
    trials = {"host": Trial(placement="host", able=True, words="ran")}
    monkeypatch.setattr(
        "workbench.doctor.try_placements",
        lambda names: {name: trials.get(name, Trial(placement=name, able=False, words="no")) for name in names},
    )
    assert main(["doctor"]) == 0
    text = capsys.readouterr().out
    assert "host     able" in text
    assert "neuron   NOT ABLE" in text


def test_a_required_placement_that_cannot_run_gives_3(capsys) -> None:
    assert main(["doctor", "--require", "host", "--require", "neuron", "--json"]) == 3
    document = json.loads(capsys.readouterr().out)
    assert (document["exit_code"], document["required"], document["not_able"]) == (3, ["host", "neuron"], ["neuron"])


def test_an_unknown_placement_is_wrong_use(capsys) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["doctor", "--require", "gpu"])
    assert ended.value.code == 2
    assert "host" in capsys.readouterr().err
