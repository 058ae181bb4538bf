"""Where the hand-over folder with golden data and cases lies, for the tests that read it directly."""

import os
from pathlib import Path

import pytest

_CHECKOUT = Path(__file__).resolve().parent.parent


def shared_path(*parts: str) -> Path:
    """Return a path inside the hand-over folder, or skip the calling test with the reason when it is absent.

    The folder is `$NEURON_WORKBENCH_SHARED`, else `../shared` beside the checkout.
    """
    root = Path(os.environ.get("NEURON_WORKBENCH_SHARED", _CHECKOUT.parent / "shared"))
    path = root.joinpath(*parts)
    if not path.exists():
        pytest.skip(f"hand-over data absent: {Path(*parts)} not found beside the checkout (see CONTRIBUTING.md)")
    return path
