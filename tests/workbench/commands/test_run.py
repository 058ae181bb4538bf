"""`workbench run`, `verify`, `replay`: exit codes, text, JSON, files."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.workbench.commands.schemas import run_json, run_text
from tests.workbench.session.models import CHECKPOINT, GOLDEN
from workbench.cli import main
from workbench.commands.arguments import layers, placement, token_ids
from workbench.errors import PlanError
from workbench.journal import Journal
from workbench.plan import Inputs, Placement, Plan
from workbench.stepping import Stepping

FOLDER = str(CHECKPOINT)
IDS = ("--token-ids", "5,17,9,40")
WRONG_SIDE = ("--candidate", "host:bf16")


def test_equal_sides_exit_with_0_and_fit_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    code, text = run_text(capsys, "run", FOLDER, *IDS, "--candidate", "host", "--max-tokens", "1")
    assert code == 0
    assert "32 steps: match; ended: as asked" in text
    assert "layers.2.engram" in text


def test_sides_that_differ_exit_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    ids = ",".join(str(5 + 11 * number) for number in range(16))
    code, document = run_json(capsys, "run", FOLDER, "--token-ids", ids, *WRONG_SIDE, "--tensors")
    assert code == 1
    assert document["verdict"] in ("differ", "flipped")
    assert len(document["steps"]["rows"]) == 16
    assert {row["verdict"] for row in document["tensors"]["rows"]} <= {"differ"}
    assert document["flips"]["rows"]


def test_one_side_alone_is_observed(capsys: pytest.CaptureFixture[str]) -> None:
    code, document = run_json(capsys, "run", FOLDER, "--until", "layers.1", "--residency", "stream")
    assert code == 0
    assert {row["verdict"] for row in document["steps"]["rows"]} == {"observed"}
    assert all(row["weight_bytes"] > 0 for row in document["steps"]["rows"])


def test_golden_data_takes_the_references_part(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("run", FOLDER, "--golden", str(GOLDEN), "--golden-prompt", "window_plus1")
    assert run_json(capsys, *arguments)[0] == 0
    assert main([*arguments[:-1], "nobody"]) == 2
    assert "--golden-prompt: expected one of len1, " in capsys.readouterr().err


def test_a_search_for_the_first_divergence(capsys: pytest.CaptureFixture[str]) -> None:
    code, document = run_json(capsys, "run", FOLDER, *IDS, "--candidate", "host", "--first-divergence")
    assert (code, document["divergence"]["first"]) == (0, None)


def test_a_dry_run_needs_no_weights_and_compares_shapes(capsys: pytest.CaptureFixture[str]) -> None:
    code, document = run_json(capsys, "run", FOLDER, *IDS, "--candidate", "dry")
    assert code == 0
    assert document["verdict"] == "incomparable"
    assert {row["verdict"] for row in document["steps"]["rows"]} == {"incomparable"}


def test_a_python_file_is_run_too(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    source = tmp_path / "model.py"
    source.write_text("import torch\nmodel = torch.nn.Linear(2, 2)\ndef inputs():\n    return torch.ones(1, 2)\n")
    code, document = run_json(capsys, "run", str(source), "--candidate", "host:bf16")
    assert (code, [row["module"] for row in document["steps"]["rows"]]) == (0, ["", ""])
    source.write_text(
        "import torch\ndef model(x):\n    raise ValueError('no')\ndef inputs():\n    return torch.ones(1)\n"
    )
    code, text = run_text(capsys, "run", str(source))
    assert code == 5
    assert "reference failed in the call: TargetCrash: the target raised ValueError: no" in text
    code, document = run_json(capsys, "run", str(source))
    assert (code, document["verdict"], len(document["failures"])) == (5, "failed", 1)


def test_a_plan_file_decides(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    plan = Plan(checkpoint=FOLDER, inputs=Inputs(token_ids=((1, 2, 3),)), candidate=Placement())
    (tmp_path / "plan.json").write_text(json.dumps(plan.to_json()))
    code, document = run_json(capsys, "run", "--plan", str(tmp_path / "plan.json"), "--until", "embed")
    assert (code, document["verdict"]) == (0, "match")


def test_journal_script_and_plot_are_written_and_replayed(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    journal, script, plot = (Path(name) for name in ("a.wbj", "a.py", "a.png"))
    files = ("--journal", str(journal), "--script", str(script), "--plot", str(plot))
    assert run_text(capsys, "run", FOLDER, *IDS, *WRONG_SIDE, *files)[0] == 1
    assert plot.read_bytes()[:4] == b"\x89PNG"
    compile(script.read_text(), "a.py", "exec")
    junit = tmp_path / "out.xml"
    code, document = run_json(capsys, "replay", str(journal), "--junit", str(junit), "--save", str(tmp_path / "new"))
    assert (code, document["same"]) == (0, True)
    assert ElementTree.parse(junit).getroot().get("failures") == "0"
    assert Journal.open(tmp_path / "new" / "a.wbj").same_findings(Journal.open(journal))
    assert main(["run", FOLDER, *IDS, "--journal", str(journal)]) == 2
    assert "exists already" in capsys.readouterr().err


def test_a_replay_that_finds_something_else_exits_with_1(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    journal = Path("a.wbj")
    assert run_text(capsys, "run", FOLDER, *IDS, "--candidate", "host", "--journal", str(journal))[0] == 0
    journal.write_text(journal.read_text().replace('"verdict": "match"', '"verdict": "differ"', 1))
    code, text = run_text(capsys, "replay", str(journal))
    assert code == 1
    assert 'verdict: expected "differ", found "match"' in text


def test_one_unreadable_journal_does_not_hide_the_others(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    good, bad = tmp_path / "good.wbj", tmp_path / "bad.wbj"
    assert run_text(capsys, "run", FOLDER, *IDS, "--until", "embed", "--journal", str(good))[0] == 0
    bad.write_text("nothing\n")
    code, document = run_json(capsys, "replay", str(bad), str(good))
    assert code == 2
    assert [result["same"] for result in document["results"]] == [False, True]
    assert main(["replay", str(bad)]) == 2


def test_verification_exits_with_1_where_a_check_fails(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, document = run_json(capsys, "verify", FOLDER, "--golden", str(GOLDEN), "--prompts", "len1", "len3")
    assert (code, document["passed"]) == (0, True)
    code, text = run_text(capsys, "verify", FOLDER, "--golden", str(GOLDEN), "--prompts", "len3")
    assert code == 0
    assert "len3" in text
    wrong = tmp_path / "golden"
    wrong.mkdir()
    for file in GOLDEN.iterdir():
        if file.is_file():
            (wrong / file.name).write_bytes(file.read_bytes())
    body = json.loads((wrong / "golden.json").read_text())
    body["prompts"]["len3"]["token_ids"][1] ^= 1
    (wrong / "golden.json").write_text(json.dumps(body))
    code, document = run_json(capsys, "verify", FOLDER, "--golden", str(wrong), "--prompts", "len3", "--details")
    assert (code, document["passed"]) == (1, False)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run",), "expected a checkpoint folder, a Python file, or --plan FILE"),
        (("run", FOLDER, "--candidate", "gpu"), "placement: expected DEVICE"),
        (("run", FOLDER, "--prompt", "x", *IDS), "expected --prompt or --token-ids, found both"),
        (("run", FOLDER, "--layers", "3"), "layers: expected FIRST:END"),
        (("run", FOLDER, "--token-ids", "a"), "token ids: expected whole numbers and commas"),
        (("run", FOLDER, "--max-tokens", "-1"), "--max-tokens: expected at least 0"),
        (("run", FOLDER, "--until", "layer.2"), "Did you mean"),
        (("run", FOLDER, "--golden-prompt", "x"), "--golden-prompt names a prompt of --golden DIR"),
        (("run", "no/such/folder"), "no/such/folder"),
        (("verify", FOLDER, "--golden", "nowhere"), "expected golden data in nowhere"),
        (("replay", "no.wbj"), "cannot read the journal no.wbj"),
    ],
)
def test_wrong_use_exits_with_2_and_one_message(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    code, document = run_json(capsys, *arguments)
    assert code == 2
    assert message in document["error"]["message"]


def test_an_interrupted_run_is_neither_as_expected_nor_a_difference(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    step, seen = Stepping.step, []

    def interrupted(self):
        seen.append(1)
        if len(seen) == 4:
            raise KeyboardInterrupt
        return step(self)

    monkeypatch.setattr(Stepping, "step", interrupted)
    code, document = run_json(capsys, "run", FOLDER, "--candidate", "host")
    assert (code, document["stopped"], document["verdict"]) == (130, "interrupted", "match")


def test_a_placement_this_machine_lacks_exits_with_3(capsys: pytest.CaptureFixture[str]) -> None:
    code, document = run_json(capsys, "run", FOLDER, "--candidate", "neuron/0:bf16")
    assert (code, document["error"]["type"]) == (3, "DeviceError")


def test_placements_are_spelled_in_one_way() -> None:
    assert placement("host") == Placement()
    assert placement("dry/3:bf16") == Placement(device="dry", index=3, profile="bf16")
    assert placement("host:fp32+aot_eager") == Placement(compile="aot_eager")
    assert layers("2:5") == (2, 5)
    assert token_ids(["1,2", "3"]) == ((1, 2), (3,))
    for text in ("", "cpu", "dry/x"):
        with pytest.raises(PlanError, match="placement"):
            placement(text)
