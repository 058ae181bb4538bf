"""Real processes: what one, two and four ranks exchange, what the model gives on them, and what a lost rank costs.

Each number of ranks is started once, does every check, and reports; a check is one test here.
"""

from __future__ import annotations

import dataclasses
import json

import pytest

from port.verify import verify
from tests.port.collectives.rank import plan
from tests.port.collectives.ranks import run_ranks
from tests.port.golden import GOLDEN_A, model_a

WORLDS = (1, 2, 4)
# By number of ranks; () is all of them. On four ranks the others are left to the slow test.
PROMPTS = {1: ("len1",), 2: (), 4: ("len3", "window_plus1")}
CHECKS = [
    (world, f"{check.__name__}.{number}")
    for world in WORLDS
    for number, (_, checks) in enumerate(plan(world))
    for check in checks
]


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """Return what every rank said, by number of ranks; started when first asked for."""
    found = {}

    def of(world):
        if world not in found:
            folder = tmp_path_factory.mktemp(f"ranks{world}")
            write_figures(folder, PROMPTS[world])
            found[world] = run_ranks("tests.port.collectives.rank", world, folder)
        return found[world]

    return of


def write_figures(folder, prompts):
    """Write what one process finds on its own, for the ranks to find too."""
    figures = [dataclasses.asdict(result) for result in verify(model_a(), GOLDEN_A, prompts=prompts)]
    (folder / "figures.json").write_text(json.dumps(figures))


@pytest.mark.parametrize(("world", "check"), CHECKS)
def test_on_every_rank(reports, world, check):
    for rank, report in enumerate(reports(world)):
        assert report.get(check) == "ok", f"rank {rank}: {report.get(check) or list(report.items())[-1]}"


@pytest.mark.parametrize(("ending", "why"), [("SIGKILL", "closed"), ("SIGSTOP", "Timed out")])
def test_a_lost_rank_is_an_error_for_the_others_and_no_hang(ending, why, tmp_path):
    (tmp_path / "signal").write_text(ending)
    *others, lost = run_ranks("tests.port.collectives.lost_rank", 4, tmp_path, waited_for=(0, 1, 2))
    assert "generate" not in lost
    for rank, report in enumerate(others):
        text = report.get("generate", str(report))
        assert f"expected all 4 ranks of the group to take part; rank {rank} met:" in text
        assert "A rank has died, hangs, or ran another number of steps" in text
        assert "slots: expected all 4 ranks" in report["exchange"]
        assert "it failed when it was first waited for" in report["again"]
    assert any(why in report["generate"] for report in others)


@pytest.mark.slow
def test_full_golden_data_passes_on_four_ranks(tmp_path):
    write_figures(tmp_path, ())
    for report in run_ranks("tests.port.collectives.rank", 4, tmp_path):
        assert set(report.values()) == {"ok"}
