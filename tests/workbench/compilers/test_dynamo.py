"""`torch.compile` in a child: passes, fails, and is told from a program that fails by itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

import port.platform
from port.platform import PlatformNeuron
from workbench.bisection.bisect import bisect_compile
from workbench.bisection.findings import BisectionFindings
from workbench.bisection.repetition import Repetition
from workbench.bisection.subjects.base import WrittenSubject
from workbench.bisection.trial_client import TrialServer
from workbench.compilers.base import CompileOutcome, compile_once
from workbench.compilers.dynamo import DynamoCompiler

_ONCE = Repetition(whole=1, absent=1, confirm=0)
_PROGRAM = """
import torch

GRAD_ENABLED = False
INPUTS = {{"x": {{}}}}


def program(x):
    {body}


def example_inputs(exact=None, seed=0):
    return [(exact or {{}}).get("x", torch.ones(4, 4))]
"""


@pytest.fixture(scope="module")
def server() -> Iterator[TrialServer]:
    with TrialServer(DynamoCompiler("aot_eager").preload) as started:
        yield started


def outcome(body: str, backend: str, folder: Path, server: TrialServer) -> CompileOutcome:
    file = folder / "program.py"
    file.write_text(_PROGRAM.format(body=body), encoding="utf-8")
    written = WrittenSubject(kind="program", file=file, operations=())
    return compile_once(DynamoCompiler(backend), written, time_limit_s=120, server=server)


def test_a_program_that_compiles_passes(tmp_path: Path, server: TrialServer) -> None:
    found = outcome("return x + 1", "aot_eager", tmp_path, server)
    assert (found.outcome, found.signature, found.exit_status, found.error) == ("ok", None, 0, "")


def test_what_only_dynamo_refuses_is_a_compile_error_with_its_root(tmp_path: Path, server: TrialServer) -> None:
    found = outcome("return x.to_sparse().to_dense()", "eager", tmp_path, server)
    assert (found.outcome, found.exit_status) == ("compile_error", 1)
    assert found.signature is not None
    assert found.signature.code == "Unsupported"
    assert "sparse" in found.error


def test_what_fails_without_a_compiler_is_no_compile_error(tmp_path: Path, server: TrialServer) -> None:
    for backend in ("plain", "aot_eager"):
        found = outcome("return x.reshape(7)", backend, tmp_path, server)
        assert found.outcome == "run_error", backend


def test_a_crash_of_the_compiler_is_a_signal(tmp_path: Path, server: TrialServer) -> None:
    found = outcome("import os; os.kill(os.getpid(), 11)", "plain", tmp_path, server)
    assert (found.outcome, found.exit_status) == ("crash", -11)


FLAG = "--internal-hlo2tensorizer-options=--experimental-unsafe-fp8e4m3fn-as-fp8e4m3"


def test_compiling_for_trn2_reads_e4m3fn_as_the_hardwares(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEURON_CC_FLAGS", "--verbose=info")
    written = WrittenSubject(kind="program", file=tmp_path / "program.py", operations=())
    for backend in ("neuron", "deepinfer_neuron"):
        compiler = DynamoCompiler(backend)
        request = compiler.request(written, tmp_path)
        assert request.environment == {"NEURON_CC_FLAGS": f"--verbose=info {FLAG}"}
        assert FLAG in compiler.name, "a trial's record holds the driver and its flags"
        assert FLAG in compiler.identity
    assert DynamoCompiler("aot_eager").request(written, tmp_path).environment == {}


def test_the_flag_is_not_given_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEURON_CC_FLAGS", FLAG)
    assert DynamoCompiler("neuron").name.count(FLAG) == 1


def test_in_host_mode_fp8_as_bytes_goes_to_aot_eager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEEPINFER_NEURON_DEVICE", "cpu")
    compiler = DynamoCompiler("deepinfer_neuron")
    monkeypatch.setattr(port.platform, "_make", lambda: PlatformNeuron(host=True))
    compiler.check()
    with TrialServer(compiler.preload) as server:
        body = "return x.to(torch.float8_e4m3fn)[:2]"
        assert outcome(body, "deepinfer_neuron", tmp_path, server).outcome == "ok"


def failing(x: Tensor, packed: Tensor) -> tuple[Tensor, Tensor]:
    # Inductor has no C++ type for these bits; nothing in torch 2.13 below it minds. `geqrf` needs no C++ compiler.
    first, _ = torch.geqrf(x)
    return torch.geqrf(first)[0], packed.view(torch.bits8)


@pytest.fixture(scope="module")
def findings(tmp_path_factory: pytest.TempPathFactory) -> BisectionFindings:
    # Kept for all tests below: every trial of Inductor takes seconds.
    return bisect_compile(
        failing,
        (torch.eye(4), torch.arange(4, dtype=torch.int8)),
        compiler="inductor",
        level="nodes",
        grad=False,
        repetition=_ONCE,
        time_limit_s=300,
        repro=tmp_path_factory.mktemp("repro"),
    )


@pytest.mark.slow
def test_a_real_failure_of_inductor_is_narrowed_to_its_operation(findings: BisectionFindings) -> None:
    assert findings.result.verdict == "found"
    assert findings.result.minimal
    assert [name.split(" = ")[1].split(" in ")[0] for name in findings.result.culprit] == ["view"]
    ladder = [trial for trial in findings.trials if trial.phase_of_search == "ladder"]
    assert [trial.outcome for trial in ladder] == ["ok", "ok", "ok"]


@pytest.mark.slow
def test_its_script_shows_it_and_imports_torch_alone(findings: BisectionFindings) -> None:
    assert findings.result.repro is not None
    folder = Path(findings.result.repro).parent
    text = (folder / "repro.py").read_text()
    assert {line for line in text.splitlines() if line.startswith(("import ", "from "))} == {"import torch"}
    assert "`repro.py` shows the failure." in (folder / "report.md").read_text()
