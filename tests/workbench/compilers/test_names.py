"""A compiler is found by its text, and text that names none says what there is."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from workbench.bisection.subjects.base import WrittenSubject
from workbench.bisection.subjects.lines import LineSubject
from workbench.bisection.trial_client import CommandRequest
from workbench.compilers.base import CompileOutcome, compile_once
from workbench.compilers.command import CommandCompiler, PredicateCompiler
from workbench.compilers.dynamo import DynamoCompiler
from workbench.compilers.names import open_compiler
from workbench.compilers.planted import PlantedCompiler
from workbench.errors import DeviceError, PlanError


def test_each_form_opens_its_driver(tmp_path: Path) -> None:
    (tmp_path / "check.py").write_text("def good(file): pass\n")
    assert isinstance(open_compiler("inductor"), DynamoCompiler)
    assert isinstance(open_compiler("dynamo:aot_eager"), DynamoCompiler)
    assert isinstance(open_compiler("planted:sort"), PlantedCompiler)
    assert isinstance(open_compiler(f"{tmp_path / 'check.py'}:good"), PredicateCompiler)
    assert isinstance(open_compiler("neuronx-cc compile {file} --target trn2"), CommandCompiler)
    assert isinstance(open_compiler(["true"]), CommandCompiler)
    driver = PlantedCompiler("sort")
    assert open_compiler(driver) is driver


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("inductr", "found 'inductr'. Did you mean 'inductor'\\?"),
        ("dynamo:aot_eagr", "found 'aot_eagr'. Did you mean 'aot_eager'\\?"),
        ("absent.py:check", "expected a Python file, found no file"),
        ('cc "half', "expected a command line"),
    ],
)
def test_text_that_names_none_is_refused(text: str, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        open_compiler(text)


def test_neuron_without_its_packages_is_a_missing_device() -> None:
    with pytest.raises(DeviceError, match="expected torch-neuronx and neuronx-cc, found that") as caught:
        open_compiler("neuron").check()
    assert caught.value.exit_code == 3


def test_the_ladder_leads_from_the_plain_program_to_the_backend() -> None:
    names = [rung.name for rung in open_compiler("inductor").rungs()]
    assert names == [
        "no torch.compile",
        *(f"torch.compile backend={one}" for one in ("eager", "aot_eager", "inductor")),
    ]


def test_the_file_goes_where_the_command_says(tmp_path: Path) -> None:
    written = WrittenSubject(kind="lines", file=tmp_path / "graph.txt", operations=())
    first = CommandCompiler(["cc", "--in={file}", "-O1"]).request(written, tmp_path)
    assert first == CommandRequest(argv=("cc", f"--in={tmp_path}/graph.txt", "-O1"), cwd=str(tmp_path))
    last = CommandCompiler(["cc", "-O1"]).request(written, tmp_path)
    assert last.argv == ("cc", "-O1", f"{tmp_path}/graph.txt")


def test_a_changed_file_of_the_command_is_another_compiler(tmp_path: Path) -> None:
    script = tmp_path / "cc.py"
    script.write_text("1")
    before = CommandCompiler([sys.executable, str(script)]).identity
    script.write_text("2")
    assert CommandCompiler([sys.executable, str(script)]).identity != before


_PREDICATES = """
def good(file): return None
def yes(file): return True
def no(file): return False
def says(file): return "[ERROR] [NCC_EVRF029] Operation sort is not supported"
def raises(file): raise RuntimeError(f"no kernel for {open(file).read().strip()}")
"""


def test_a_python_function_is_a_compiler(tmp_path: Path) -> None:
    (tmp_path / "check.py").write_text(_PREDICATES)
    subject = LineSubject(("sort",))

    def outcome(name: str) -> CompileOutcome:
        driver = open_compiler(f"{tmp_path / 'check.py'}:{name}")
        return compile_once(driver, subject.write([0], tmp_path), time_limit_s=60)

    assert [outcome(name).outcome for name in ("good", "yes", "no")] == ["ok", "ok", "compile_error"]
    said, raised, absent = outcome("says"), outcome("raises"), outcome("missing")
    assert said.signature is not None
    assert (said.signature.code, said.signature.operation) == ("NCC_EVRF029", "sort")
    assert raised.signature is not None
    assert (raised.signature.code, raised.signature.detail) == ("RuntimeError", "no kernel for sort")
    assert absent.outcome == "usage_error"
