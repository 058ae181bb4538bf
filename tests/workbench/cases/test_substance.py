from __future__ import annotations

import pytest

from workbench.cases.substance import agrees, same_words


@pytest.mark.parametrize(
    ("expected", "said"),
    [
        (40, 40),
        (40, "248: 40 bytes are missing"),
        (4.0, 4),
        ([1, 2], [1, 2]),
        ([[0.5, 1.0]], [[0.5, 1.0]]),
        (["b", "a"], ["a", "b"]),
        ("a.safetensors", ["a.safetensors"]),
        ({"tensor": "x", "index": [0, 1]}, {"tensor": "x", "index": [0, 1], "more": 3}),
        ([8, 4], "a scale of [8, 4], one per 32 x 32 tile"),
        ("truncated", "the file was cut"),
        ("absent: shards found by name pattern", "absent: shards found by their names (pattern *.safetensors)"),
        (
            "halve the values and double the scale (0.5 -> 0.25)",
            "halve the stored values and double the scale of 1 tile",
        ),
        (None, None),
        (True, True),
    ],
)
def test_what_means_the_same_agrees(expected: object, said: object) -> None:
    assert agrees(expected, said)


@pytest.mark.parametrize(
    ("expected", "said"),
    [
        (40, 41),
        (40, "140 bytes are missing"),
        (True, 1),
        ([1, 2], [2, 1]),
        (["a"], ["a", "b"]),
        (["a", "a"], ["a", "b"]),
        ("a.safetensors", "b.safetensors"),
        ("model-00001", ["model-00001", "model-00002"]),
        ({"tensor": "x"}, {"index": [0]}),
        ("the copy in b.safetensors is used", "the copy in a.safetensors is used"),
        ("the block is constant", "the block is not constant"),
        ("each 128x128 block is constant", "each 32x32 block is constant"),
        (None, 0),
        ("truncated", "a missing shard"),
    ],
)
def test_what_means_something_else_differs(expected: object, said: object) -> None:
    assert not agrees(expected, said)


def test_a_forbidden_saying_is_found_by_its_words() -> None:
    assert same_words("the checkpoint is broken", "x.safetensors: this checkpoint is broken, fetch it again")
    assert not same_words("the checkpoint is broken", "this checkpoint is not broken")
    assert not same_words("the checkpoint is broken", "the shard is broken")
