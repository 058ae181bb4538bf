"""The platform of these tests: host mode, so that FP8 reaches 448, whatever the environment of the tests says."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from port.environment import ENV
from port.platform import forget_platform


@pytest.fixture(autouse=True)
def host_platform(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """Give the environment that these tests may change; the platform is made anew before and after."""
    source = {"DEEPINFER_NEURON_DEVICE": "cpu"}
    monkeypatch.setattr(ENV, "_source", source)
    ENV.rearm_all()
    forget_platform()
    yield source
    ENV.rearm_all()
    forget_platform()
