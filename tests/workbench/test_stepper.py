"""Names become places: prefixes, phases, what lies behind, what was misspelt."""

import pytest

from workbench.errors import StepError
from workbench.stepper import StepPoint, covers, place_text, point_after, point_before

MODULES = ("embed", "layers.0.attn", "layers.0.ffn", "layers.1.engram", "layers.1.attn", "layers.1.ffn", "head")
POINTS = tuple(
    StepPoint(index=index, module=module, kind="x", phase=phase, forward_pass=number)
    for index, (module, phase, number) in enumerate(
        [(m, "prefill", 0) for m in MODULES] + [(m, "decode", 1) for m in MODULES]
    )
)


@pytest.mark.parametrize(
    ("name", "position", "reached"),
    [
        ("embed", 0, 1),
        ("layers.0", 0, 3),
        ("layers.0.attn", 0, 2),
        ("layers", 0, 6),
        ("layers.1", 4, 6),
        ("head", 0, 7),
        ("prefill", 0, 7),
        ("end", 0, 14),
        ("layers.0", 7, 10),
        ("layers.0", 5, 10),
    ],
)
def test_a_name_leads_to_the_end_of_everything_below_it(name: str, position: int, reached: int) -> None:
    assert point_after(POINTS, name, position) == reached


@pytest.mark.parametrize(
    ("name", "position", "back"),
    [("start", 9, 0), ("layers.0", 5, 1), ("layers.1", 6, 3), ("layers.0", 12, 8), ("layers.0.ffn", 3, 2)],
)
def test_going_back_leads_to_the_last_start_of_it(name: str, position: int, back: int) -> None:
    assert point_before(POINTS, name, position) == back


def test_a_name_is_no_prefix_of_a_longer_number() -> None:
    assert covers("layers.1", "layers.1.attn")
    assert not covers("layers.1", "layers.10.attn")


def test_what_has_run_must_be_rewound_first() -> None:
    with pytest.raises(StepError, match=r"layers\.0 has run already.*session\.rewind\('layers\.0'\)"):
        point_after(POINTS, "layers.0", 12)


def test_what_has_not_run_cannot_be_rewound() -> None:
    with pytest.raises(StepError, match=r"layers\.1 has not run yet.*session\.run\(until='layers\.1'\)"):
        point_before(POINTS, "layers.1", 2)


@pytest.mark.parametrize("function", [point_after, point_before])
def test_a_misspelt_name_gets_the_nearest(function) -> None:
    with pytest.raises(StepError, match=r"found 'layer\.1\.attn'\. Did you mean .*layers\.1\.attn"):
        function(POINTS, "layer.1.attn", 3)


def test_a_place_says_its_phase() -> None:
    assert place_text(POINTS, 8) == "layers.0.attn (decode 1) (step 8 of 14)"
    assert place_text(POINTS, 14) == "the end"
