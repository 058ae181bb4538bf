"""A session as a script and run again: the same findings, and what differs said where it differs."""

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch

from tests.workbench.session.models import CHECKPOINT, GOLDEN, MODULE, PROMPT, ROOT, Stack, example, text_plan
from workbench.errors import JournalError
from workbench.journal import Journal, JournalHeader
from workbench.junit import junit_xml, write_junit
from workbench.plan import Inputs, Placement, Plan, Tolerance
from workbench.records import Note
from workbench.replay import ReplayedAction, ReplayResult, replay
from workbench.script import to_script
from workbench.session import VERBS, Session


def record(path: Path, **changes: object) -> Path:
    """Use every verb that needs no other part than the session's own."""
    plan = text_plan(candidate=Placement(), checkpoint=os.path.relpath(CHECKPOINT), **changes)
    with Session(plan, path=path, title="every verb") as session:
        session.step()
        session.step(count=2)
        session.run(until="layers.2")
        session.capture("layers.2.ffn.out", side="candidate")
        session.edit("stream", session.inspect("stream") * 1.5, note="push")
        session.step()
        session.rewind("layers.2")
        session.run(stop_at="never")
        session.first_divergence()
        session.generate(2)
        session.verify(os.path.relpath(GOLDEN), prompts=("len1",))
        session.note("done")
    return path


@pytest.fixture(scope="module")
def recorded(tmp_path_factory) -> Path:
    return record(tmp_path_factory.mktemp("recorded") / "first.wbj")


def test_a_replay_finds_the_same(recorded: Path) -> None:
    result = replay(recorded)
    assert result.same, str(result)
    assert [step.action for step in result.steps][:3] == [
        "session.step()",
        "session.step(count=2)",
        "session.run(until='layers.2')",
    ]
    assert "same findings (12 actions, " in str(result)


def test_a_replay_of_another_checkpoint_differs_and_says_so(recorded: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    other = tmp_path / "checkpoint"
    shutil.copytree(CHECKPOINT, other)
    journal = tmp_path / "first.wbj"
    lines = recorded.read_text().splitlines()
    header = json.loads(lines[0])
    header["journal"]["plan"]["checkpoint"] = "checkpoint"
    journal.write_text("\n".join([json.dumps(header), *lines[1:]]) + "\n")
    shutil.copy(recorded.with_name("first.wbj.safetensors"), tmp_path)
    index = json.loads((other / "model.safetensors.index.json").read_text())["weight_map"]
    shard = other / index["layers.2.ffn_norm.weight"]
    tensors = load_file(shard)
    tensors["layers.2.ffn_norm.weight"] = tensors["layers.2.ffn_norm.weight"] * 2
    save_file(tensors, shard)
    result = replay(journal)
    assert not result.same
    assert [step.outcome for step in result.steps[:2]] == ["same", "same"]
    assert result.steps[2].outcome == "differ"
    assert "layers.2" in " ".join(result.steps[2].differences)


def test_the_script_finds_the_same_as_the_session(recorded: Path, tmp_path: Path) -> None:
    script = recorded.with_name("again.py")
    text = to_script(Journal.open(recorded))
    script.write_text(
        text.replace(
            "print(wb.step_table", f"session.journal.save({str(tmp_path / 'again.wbj')!r})\nprint(wb.step_table"
        )
    )
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, cwd=tmp_path, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert "Steps" in done.stdout
    answer = Journal.open(recorded).same_findings(Journal.open(tmp_path / "again.wbj"))
    assert answer, str(answer)


def test_every_verb_of_the_recording_stands_in_the_script(recorded: Path) -> None:
    text = to_script(Journal.open(recorded))
    own = set(VERBS) - {"memory", "trace_graphs", "bisect_compile"}
    assert {verb for verb in own if f"session.{verb}(" in text} == own
    assert "checkpoint=str(HERE / '../" in text


def test_public_verbs_are_the_recorded_verbs() -> None:
    looks = {"tensors", "inspect", "reissue", "close", "widget", "points", "position", "next_point"}
    public = {name for name in vars(Session) if not name.startswith("_")}
    assert public - looks == set(VERBS)


def test_a_handed_module_is_asked_for_in_the_script_and_given_to_the_replay(tmp_path: Path) -> None:
    path = tmp_path / "module.wbj"
    with Session(MODULE, target=Stack(), args=(example(),), path=path) as session:
        session.run(until="layers.1")
        session.edit("layers.1.down", torch.zeros(2, 8), side="reference")
        session.run()
    text = to_script(Journal.open(path))
    assert "raise NotImplementedError" in text
    assert "target=target(), args=arguments" in text
    compile(text, "script", "exec")
    assert replay(path, target=Stack(), args=(example(),)).same
    changed = Stack()
    with torch.no_grad():
        changed.layers[2].up.weight.mul_(1.1)
    result = replay(path, target=changed, args=(example(),))
    assert [step.outcome for step in result.steps] == ["same", "same", "differ"]


def test_an_interrupted_action_is_compared_as_far_as_it_came(recorded: Path, tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "cut.wbj"
    with Session(text_plan(), path=path) as session:
        step, seen = session._stepping.step, []

        def interrupted():
            if len(seen) == 3:
                raise KeyboardInterrupt
            seen.append(step())
            return seen[-1]

        monkeypatch.setattr(session._stepping, "step", interrupted)
        session.run()
    assert replay(path).same


def test_a_journal_written_until_a_kill_replays(tmp_path: Path) -> None:
    path = tmp_path / "killed.wbj"
    program = (
        "import os, signal, sys\n"
        "from workbench.session import Session\n"
        "from workbench.plan import Inputs, Plan\n"
        f"plan = Plan(checkpoint={str(CHECKPOINT)!r}, inputs=Inputs(token_ids=({PROMPT!r},)))\n"
        f"session = Session(plan, path={str(path)!r})\n"
        "session.step(count=4)\n"
        "session.capture('layers.1.engram.out')\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False, timeout=120)
    assert done.returncode == -9
    journal = Journal.open(path)
    assert [action.verb for action in journal.actions] == ["step", "capture"]
    assert len(journal.captures()) == 1
    assert replay(path).same


def test_a_journal_without_a_plan_cannot_be_replayed(tmp_path: Path) -> None:
    path = tmp_path / "bare.wbj"
    with Journal(JournalHeader(), path=path) as journal:
        journal.append(Note(text="x"))
    with pytest.raises(JournalError, match="no plan, so there is nothing to run again"):
        replay(path)
    with pytest.raises(JournalError, match="no plan"):
        to_script(Journal.open(path))


def test_an_unknown_verb_is_named(tmp_path: Path) -> None:
    path = tmp_path / "odd.wbj"
    with Session(text_plan(), path=path) as session:
        session.step()
    with path.open("a") as file:
        file.write(json.dumps({"action": "dance", "seq": 99, "arguments": {}}) + "\n")
        file.write(json.dumps({"kind": "note", "stamp": {}, "text": "never came"}) + "\n")
    result = replay(path)
    assert result.steps[-1].outcome == "error"
    assert "action 'dance': expected one of step, run" in result.steps[-1].differences[0]


def test_a_plan_survives_the_script() -> None:
    plan = Plan(
        checkpoint="some/where",
        inputs=Inputs(prompt='with "quotes" and \\', seed=3, max_tokens=2),
        reference=Placement(profile="D"),
        candidate=Placement(device="dry", index=1),
        tolerances=(Tolerance(reason="half a step", steps=0.5, names="*.out"),),
        layers=(0, 2),
        residency="stream",
    )
    text = to_script(Journal(JournalHeader(plan=plan.to_json())))
    made: dict[str, object] = {}
    exec(compile(text.split("with wb.Session")[0], "script", "exec"), {"__file__": str(Path.cwd() / "s.py")}, made)
    assert dataclasses.replace(made["plan"], checkpoint=None) == dataclasses.replace(plan, checkpoint=None)  # type: ignore[type-var]
    assert Path(made["plan"].checkpoint) == Path.cwd() / "some/where"  # type: ignore[attr-defined]


def test_junit_has_a_case_per_action(tmp_path: Path) -> None:
    steps = (
        ReplayedAction(action="session.step()", outcome="same", differences=(), records=3, elapsed_s=0.5),
        ReplayedAction(
            action="session.run()", outcome="differ", differences=("a\x00b < c", "d"), records=3, elapsed_s=1
        ),
        ReplayedAction(
            action="session.memory()", outcome="error", differences=("StepError: no",), records=0, elapsed_s=0
        ),
    )
    result = ReplayResult(name="x.wbj", steps=steps, notes=("torch 2.13 then, 2.14 now",))
    root = ElementTree.parse(write_junit(tmp_path / "deep" / "out.xml", [result, result])).getroot()
    assert root.attrib == {"name": "workbench replay", "tests": "6", "failures": "2", "errors": "2"}
    suite = root[0]
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors"), suite.get("time")) == (
        "3",
        "1",
        "1",
        "1.500",
    )
    failure = suite.find("testcase/failure")
    assert failure is not None
    assert failure.get("message") == "a\ufffdb < c"
    assert failure.text == "a\ufffdb < c\nd"
    assert suite.findtext("system-out") == "torch 2.13 then, 2.14 now"
    assert junit_xml([result]) == junit_xml([result])


def test_golden_data_that_is_gone_is_an_error_of_its_action(tmp_path: Path) -> None:
    golden = tmp_path / "golden"
    shutil.copytree(GOLDEN, golden, ignore=shutil.ignore_patterns("checkpoint"))
    path = tmp_path / "verified.wbj"
    with Session(text_plan(), path=path) as session:
        assert session.verify(str(golden), prompts=["len1"])
    assert replay(path).same
    shutil.rmtree(golden)
    (step,) = replay(path).steps
    assert step.outcome == "error"
    assert "PortError: verify: expected golden data" in step.differences[0]


@pytest.mark.parametrize(("verb", "arguments"), [("close", {}), ("step", {"far": 1})])
def test_an_action_that_is_none_of_ours_is_an_error_although_it_found_nothing(
    tmp_path: Path, verb: str, arguments: dict[str, object]
) -> None:
    path = tmp_path / "foreign.wbj"
    with Journal(JournalHeader(plan=text_plan().to_json()), path=path) as journal:
        journal.act(verb, arguments)
    (step,) = replay(path).steps
    assert step.outcome == "error"
    assert "JournalError" in step.differences[0]
