"""Variables of the environment: defaults, checks, when they are read, and what the docs say of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from port.environment import SETTINGS, Environment, environment_table
from port.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]


def test_without_variables_everything_has_its_default() -> None:
    resolved = {item.name: item for item in Environment({}).resolve()}
    assert list(resolved) == list(SETTINGS)
    assert not any(item.is_set for item in resolved.values())
    assert resolved["DEEPINFER_USE_NEXTN_DECODE"].value == 0
    assert resolved["DEEPINFER_ZERO_OVERHEAD_SCHEDULING"].value is False
    assert resolved["DEEPINFER_ENFORCE_EAGER"].value is True


def test_defaults_follow_the_device() -> None:
    device, host = Environment({}), Environment({"DEEPINFER_NEURON_DEVICE": "cpu"})
    assert (device.DEEPINFER_NEURON_FP8_MAX, host.DEEPINFER_NEURON_FP8_MAX) == (224.0, 448.0)
    assert device.DEEPINFER_NEURON_COMPILE_BACKEND == "neuron"
    assert host.DEEPINFER_NEURON_COMPILE_BACKEND == "aot_eager"


def test_a_value_is_read_once_until_it_is_rearmed() -> None:
    source = {"DEEPINFER_ENFORCE_EAGER": "0"}
    environment = Environment(source)
    assert environment.DEEPINFER_ENFORCE_EAGER is False
    source["DEEPINFER_ENFORCE_EAGER"] = "1"
    assert environment.DEEPINFER_ENFORCE_EAGER is False
    environment.rearm("DEEPINFER_ENFORCE_EAGER")
    assert environment.DEEPINFER_ENFORCE_EAGER is True
    source["DEEPINFER_ENFORCE_EAGER"] = "false"
    environment.rearm_all()
    assert environment.DEEPINFER_ENFORCE_EAGER is False


def test_setting_a_variable_renews_the_defaults_that_follow_from_it() -> None:
    environment = Environment({})
    assert environment.DEEPINFER_NEURON_FP8_MAX == 224.0
    environment.set("DEEPINFER_NEURON_DEVICE", "cpu")
    assert environment.raw("DEEPINFER_NEURON_DEVICE") == "cpu"
    assert environment.DEEPINFER_NEURON_FP8_MAX == 448.0


@pytest.mark.parametrize("text", ["", "0", "false", "False", " 0 "])
def test_these_words_mean_off(text: str) -> None:
    assert Environment({"DEEPINFER_ENFORCE_EAGER": text}).DEEPINFER_ENFORCE_EAGER is False


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("DEEPINFER_NEURON_DEVICE", "gpu", "one of neuron, cpu"),
        ("DEEPINFER_NEURON_FP8_MAX", "nan", "a number above 0 and at most 448"),
        ("DEEPINFER_NEURON_FP8_MAX", "0", "a number above 0 and at most 448"),
        ("DEEPINFER_NEURON_FP8_MAX", "449", "a number above 0 and at most 448"),
        ("DEEPINFER_USE_NEXTN_DECODE", "-1", "a whole number of at least 0"),
        ("DEEPINFER_USE_NEXTN_DECODE", "two", "a whole number of at least 0"),
        ("DEEPINFER_NEURON_COMPILE_BACKEND", " ", "a name"),
        ("DEEPINFER_DECODE_TOKEN_BLACKLIST", "3,9..7", "token ids such as 3,10..20"),
        ("DEEPINFER_DECODE_TOKEN_BLACKLIST", "-3", "token ids such as 3,10..20"),
        ("DEEPINFER_GLOO_TIMEOUT", "inf seconds", "a number above 0"),
    ],
)
def test_a_value_that_cannot_be_used_says_what_was_expected(name: str, text: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        getattr(Environment({name: text}), name)
    assert str(caught.value) == f"{name}: expected {expected}; found {text!r}. Unset it for the default."


def test_all_bad_values_are_told_at_once() -> None:
    environment = Environment({"DEEPINFER_NEURON_DEVICE": "gpu", "DEEPINFER_GLOO_TIMEOUT": "0"})
    with pytest.raises(ConfigError, match=r"(?s)DEEPINFER_NEURON_DEVICE: .*\n.*DEEPINFER_GLOO_TIMEOUT: "):
        environment.resolve()


def test_black_listed_tokens_are_ids_and_ranges_with_both_ends() -> None:
    environment = Environment({"DEEPINFER_DECODE_TOKEN_BLACKLIST": " 12, 3,10..12 ,"})
    assert environment.DEEPINFER_DECODE_TOKEN_BLACKLIST == (3, 10, 11, 12)


def test_a_misspelt_variable_is_told_of_with_the_right_one() -> None:
    found = Environment({"DEEPINFER_ENFORCE_EAGR": "1", "PATH": "/bin"}).unknown()
    assert found == ("DEEPINFER_ENFORCE_EAGR is set and means nothing here. Did you mean DEEPINFER_ENFORCE_EAGER?",)


def test_only_known_variables_are_rearmed() -> None:
    with pytest.raises(ConfigError, match=r"found 'DEEPINFER_EAGER'\. Did you mean DEEPINFER_ENFORCE_EAGER"):
        Environment({}).rearm("DEEPINFER_EAGER")


def test_the_docs_hold_the_table() -> None:
    assert environment_table() in (ROOT / "docs" / "environment.md").read_text(encoding="utf-8")
