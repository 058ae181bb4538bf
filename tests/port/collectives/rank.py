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
from tests.port.collectives import exchange_checks, model_checks

CHECKS = (*exchange_checks.CHECKS, *model_checks.CHECKS)


def main() -> None:
    world, folder, rank = int(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    layout = ParallelLayout(data_parallel=world, expert_parallel=world, engram_parallel=world)
    report: dict[str, str] = {}
    try:
        with open_groups(
            layout, rank=rank, rendezvous=f"file://{folder}/meeting", backend="gloo", timeout_s=60
        ) as groups:
            for check in CHECKS:
                report[check.__name__] = "began"
                check(groups)
                report[check.__name__] = "ok"
    except BaseException:
        # The others cannot go on without this rank: they are told by the connection it closes.
        report[next(reversed(report), "start")] = traceback.format_exc()
    (folder / f"report.{rank}.json").write_text(json.dumps(report))


if __name__ == "__main__":
    main()
