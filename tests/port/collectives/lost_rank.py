"""One rank of a run in which the last one is killed, or stops, in the middle: what the others are told.

python -m tests.port.collectives.lost_rank WORLD FOLDER RANK
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import torch

from port.collectives.groups import open_groups
from port.collectives.layout import ParallelLayout
from port.collectives.transport import exchange_slots
from port.errors import CollectiveError
from port.runtime.generate import generate
from tests.port.collectives.model_checks import shared_model


def main() -> None:
    world, folder, rank = int(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    ending = signal.Signals[(folder / "signal").read_text()]
    layout = ParallelLayout(data_parallel=world, expert_parallel=2, engram_parallel=world)
    limit = 2 if ending is signal.SIGSTOP else 60
    report = {}
    meeting = f"file://{folder}/meeting"
    with open_groups(layout, rank=rank, rendezvous=meeting, backend="gloo", timeout_s=limit) as groups:
        slots = torch.full((world, 1), rank, dtype=torch.uint8)
        assert exchange_slots(slots, groups.engram).wait().flatten().tolist() == list(range(world))
        text_model = shared_model(groups)
        if rank == world - 1:
            os.kill(os.getpid(), ending)
        try:
            generate(text_model, [(3, 4, 5)], max_tokens=3)
        except CollectiveError as error:
            report["generate"] = str(error)
        pending = exchange_slots(slots, groups.engram)
        for attempt in ("exchange", "again"):
            try:
                pending.wait()
            except CollectiveError as error:
                report[attempt] = str(error)
    (folder / f"report.{rank}.json").write_text(json.dumps(report))


if __name__ == "__main__":
    main()
