"""A failure is recognised by code, pass, operation and signal, and not by its numbers and names."""

from __future__ import annotations

import pytest

from workbench.bisection.signatures import error_code, is_same_failure, read_failure, signature_text
from workbench.bisection.trial_client import ChildReport
from workbench.records.compiling import FailureSignature


def report(output: str, exit_status: int | None = 70, ended_because: str = "") -> ChildReport:
    return ChildReport(
        exit_status=exit_status,
        ended_because=ended_because,  # type: ignore[arg-type]
        elapsed_s=0.1,
        output=output,
        output_bytes=len(output),
        peak_bytes=0,
        answer="",
        survivors=0,
    )


def signature(output: str, exit_status: int | None = 70, ended_because: str = "") -> FailureSignature:
    _, found = read_failure(report(output, exit_status, ended_because))
    assert found is not None
    return found


_TENSOR_INITIALIZATION = "[INTERNAL_ERROR] [NCC_ITIN902] TensorInitialization error: idx i_shard_{} is in no loop"


def test_code_and_pass_come_from_the_line_of_the_code() -> None:
    found = signature(_TENSOR_INITIALIZATION.format(1))
    assert (found.outcome, found.code, found.stage, found.signal) == (
        "compile_error", "NCC_ITIN902", "TensorInitialization", None,
    )  # fmt: skip
    assert signature_text(found) == "compile error: NCC_ITIN902 in TensorInitialization"


def test_an_assertion_of_a_pass_names_the_pass() -> None:
    assert signature("[NCC_ITRF901] TritiumFusion assertion error: Unexpected axes").stage == "TritiumFusion"


def test_numbers_and_names_do_not_make_another_failure() -> None:
    one, two = (signature(_TENSOR_INITIALIZATION.format(number)) for number in (1, 68001))
    assert is_same_failure(one, two)
    bound = "[NCC_INLA001] Unhandled exception with message: memory out of bound {{{}}}@SB<0,{}>({}x1024)"
    assert is_same_failure(signature(bound.format("I-203", 198880, 128)), signature(bound.format("I-7", 16, 64)))


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (_TENSOR_INITIALIZATION.format(1), "[INTERNAL_ERROR] [NCC_ISMP902] Simplifier error: is_subset()"),
        (
            "[ERROR] [NCC_EVRF029] Operation sort is not supported",
            "[ERROR] [NCC_EVRF029] Operation fft is not supported",
        ),
        (
            "[NCC_INLA001] Unhandled exception with message: transpose only supported for SB",
            "[NCC_INLA001] Unhandled exception with message: tensor size must be more than 0",
        ),
        ("boom: cannot lower", "boom: out of registers"),
        (
            "Traceback (most recent call last)\nRuntimeError: no kernel for sort",
            "Traceback (most recent call last)\nRuntimeError: shapes differ",
        ),
    ],
    ids=["code", "operation", "message behind a code for anything", "message without code", "message of an exception"],
)
def test_another_bug_is_told_apart(one: str, two: str) -> None:
    assert not is_same_failure(signature(one), signature(two))


def test_another_kind_of_end_is_another_bug() -> None:
    text = _TENSOR_INITIALIZATION.format(1)
    assert not is_same_failure(signature(text), signature(text, -11))
    assert not is_same_failure(signature(text), signature(text, None, "timeout"))


@pytest.mark.parametrize(
    ("status", "outcome", "signal"),
    [
        (-11, "crash", "SIGSEGV"),
        (139, "crash", "SIGSEGV"),
        (-6, "crash", "SIGABRT"),
        (-9, "killed", "SIGKILL"),
        (137, "killed", "SIGKILL"),
    ],
)
def test_signals_are_named_however_they_are_told(status: int, outcome: str, signal: str) -> None:
    found = signature("", status)
    assert (found.outcome, found.signal) == (outcome, signal)


def test_an_envelope_tells_the_signal_and_gives_way_to_the_cause() -> None:
    killed = signature("[F137] neuronx-cc was forcibly killed - insufficient system memory", 70)
    assert (killed.outcome, killed.code, killed.signal) == ("killed", "F137", "SIGKILL")
    crashed = signature("[NCC_ILSA902] LegalizeSundaAccess error\n[F139] neuronx-cc terminated abnormally", 70)
    assert (crashed.outcome, crashed.code, crashed.signal) == ("crash", "NCC_ILSA902", "SIGSEGV")


def test_a_hang_names_the_pass_it_was_in() -> None:
    text = "[sg0000/Tensorizer/Fusion]: Enter time region\n[Fusion]: Exit time region: delta=0.1s\n"
    found = signature(text + "[sg0000/Tensorizer/LICM]: Enter time region\n....", None, "timeout")
    assert (found.outcome, found.stage) == ("timeout", "LICM")


def test_the_inner_code_is_the_real_one() -> None:
    assert error_code("[NCC_INAS001] the error code ISGV902 does not exist") == "NCC_ISGV902"


def test_the_operation_may_stand_in_the_line_below() -> None:
    text = "[ERROR] [NCC_EVRF029] no\n  %sort.16 = (f32[16,256], s32[16,256]) sort(%p0, %iota.3), dimensions={1}"
    assert signature(text).operation == "sort"


def test_wrong_use_is_no_compile_error() -> None:
    assert signature("usage: cc FILE\ncc: error: unrecognized arguments: --fast", 2).outcome == "usage_error"
    assert signature("cannot start 'cc': No such file or directory", 127).outcome == "usage_error"


def test_status_zero_passes_unless_the_compiler_says_otherwise() -> None:
    assert read_failure(report("....\nCompiler status PASS", 0)) == ("ok", None)
    assert read_failure(report("Compiler status ERROR", 0))[0] == "compile_error"


def test_a_trial_that_was_not_seen_to_its_end_is_not_judged() -> None:
    assert read_failure(report("", None, "server died")) == ("skipped", None)


def test_terminal_escapes_do_not_hide_a_code() -> None:
    assert signature("\x1b[31m[ERROR]\x1b[0m \x1b[1m[NCC_EVRF004]\x1b[0m complex").code == "NCC_EVRF004"


def test_a_code_on_an_error_line_outweighs_a_status_of_zero_but_not_a_pass() -> None:
    line = "[INTERNAL_ERROR] [NCC_ITEN404] Internal tensorizer error"
    assert read_failure(report(line, 0))[0] == "compile_error"
    assert signature(line, 0).code == "NCC_ITEN404"
    assert read_failure(report(f"{line}\nCompiler status PASS", 0))[0] == "ok"
    assert read_failure(report("[ERROR] [DagPart] routine chatter", 0))[0] == "ok"


def test_a_refused_command_line_keeps_its_code() -> None:
    found = signature("usage: neuronx-cc [-h]\n[ERROR] [NCC_EARG001] Unsupported --lnc", 2)
    assert (found.outcome, found.code) == ("usage_error", "NCC_EARG001")
