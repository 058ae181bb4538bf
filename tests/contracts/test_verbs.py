"""What holds for every verb of a session: it is an action, stands in a script as a call that fits, and is replayed."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest

import workbench.session
from workbench.errors import JournalError
from workbench.journal import Journal, JournalHeader
from workbench.plan import Plan
from workbench.script import to_script
from workbench.session import VERBS, Session

# Arguments a recorded action of the verb may have: those without a default, and one with.
ARGUMENTS: dict[str, dict[str, object]] = {
    "step": {"count": 2},
    "run": {"until": "layers.1", "stop_at": "never"},
    "rewind": {"to": "layers.0"},
    "capture": {"name": "stream", "side": "candidate"},
    "edit": {"name": "stream", "side": "candidate", "capture": "edit:candidate:stream"},
    "first_divergence": {"error": "isolated"},
    "generate": {"max_tokens": 4},
    "verify": {"golden": "fixtures/golden_A", "mode": "fp32"},
    "memory": {"module": "layers.0", "allocator": True},
    "trace_graphs": {"module": "layers.0", "phase": "prefill"},
    "bisect_compile": {"module": "layers.0", "compiler": "planted:sort", "level": ["nodes"]},
    "note": {"text": 'it\'s "quoted"\nand has lines'},
}


def _methods_that_act() -> dict[str, str]:
    tree = ast.parse(Path(workbench.session.__file__).read_text(encoding="utf-8"))
    session = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Session")
    found: dict[str, str] = {}
    for method in session.body:
        for node in ast.walk(method):
            if (
                isinstance(node, ast.Call)
                and ast.unparse(node.func) == "self._act"
                and isinstance(method, ast.FunctionDef)
            ):
                found[method.name] = ast.literal_eval(node.args[0])
    return found


def test_every_method_that_writes_an_action_is_a_verb_of_its_own_name() -> None:
    assert _methods_that_act() == {verb: verb for verb in VERBS}
    assert set(ARGUMENTS) == set(VERBS)


@pytest.mark.parametrize("verb", VERBS)
def test_verb_stands_in_the_script_as_a_call_that_fits(verb: str, tmp_path: Path) -> None:
    with Journal(JournalHeader(plan=Plan().to_json()), path=tmp_path / "run.wbj") as journal:
        journal.act(verb, ARGUMENTS[verb])
    script = ast.parse(to_script(journal))
    call = next(
        node for node in ast.walk(script) if isinstance(node, ast.Call) and ast.unparse(node.func) == f"session.{verb}"
    )
    given = {str(keyword.arg): keyword.value for keyword in call.keywords}
    inspect.signature(getattr(Session, verb)).bind(None, *call.args, **given)
    if verb != "edit":
        assert {name: ast.literal_eval(value) for name, value in given.items()} == ARGUMENTS[verb]


@pytest.mark.parametrize("verb", VERBS)
def test_verb_is_documented_with_what_it_raises_and_takes_only_what_json_holds(verb: str) -> None:
    method = getattr(Session, verb)
    assert (inspect.getdoc(method) or "").strip()
    kinds = {one.kind for one in inspect.signature(method).parameters.values()}
    assert not kinds & {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}


def test_an_action_that_is_no_verb_is_refused_by_name(tmp_path: Path) -> None:
    from tests.workbench.session.models import text_plan

    journal = Journal(JournalHeader(plan=Plan().to_json()))
    action = journal.act("close", {})
    with Session(text_plan()) as session, pytest.raises(JournalError, match="action 'close': expected one of step"):
        session.reissue(action, journal)
