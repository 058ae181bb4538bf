"""One rank of a test run: joins the others, does every check, writes down how each went.

python -m tests.port.collectives.rank WORLD FOLDER RANK
"""

from __future__ import annotations

import json
import sys
import traceback
from pathlib import Path

import torch

from port.collectives.groups import open_groups
from port.collectives.layout import ParallelLayout
from tests.port.collectives.exchange_checks import CHECKS as EXCHANGE_CHECKS
from tests.port.collectives.model_checks import CHECKS as MODEL_CHECKS
from tests.port.collectives.model_checks import other_layouts_have_the_same_bits


def plan(world):
    """Return (layout, checks) one after the other; with one rank the exchanges only."""
    everything = ParallelLayout(data_parallel=world, expert_parallel=world, engram_parallel=world)
    found = [(everything, EXCHANGE_CHECKS + (MODEL_CHECKS if world > 1 else ()))]
    if world == 4:
        mixed = ParallelLayout(data_parallel=4, expert_parallel=2, engram_parallel=4)
        beyond = ParallelLayout(data_parallel=2, expert_parallel=1, engram_parallel=4)
        found += [(layout, (other_layouts_have_the_same_bits,)) for layout in (mixed, beyond)]
    return found


def main() -> None:
    world, folder, rank = int(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    report: dict[str, str] = {}
    try:
        for number, (layout, checks) in enumerate(plan(world)):
            meeting = f"file://{folder}/meeting.{number}"
            with open_groups(layout, rank=rank, rendezvous=meeting, backend="gloo", timeout_s=60) as groups:
                for check in checks:
                    name = f"{check.__name__}.{number}"
                    report[name] = "began"
                    check(groups, folder)
                    report[name] = "ok"
    except BaseException:
        # The others cannot go on without this rank: they are told by the connection it closes.
        report[next(reversed(report), "start")] = traceback.format_exc()
    (folder / f"report.{rank}.json").write_text(json.dumps(report))


if __name__ == "__main__":
    main()
