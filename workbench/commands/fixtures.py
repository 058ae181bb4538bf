"""`workbench fixtures`: write a tiny checkpoint in the released layout; the same seed gives the same bytes."""

from __future__ import annotations

import argparse
from pathlib import Path

from port.checkpoint.writer import write_tiny_checkpoint
from workbench.exit_codes import ExitCode
from workbench.output import Output
from workbench.records.base import to_plain
from workbench.units import bytes_text
from workbench.views.base import TableView

NAME = "fixtures"
HELP = "write a tiny checkpoint in the released layout"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this command."""
    parser.add_argument("out", metavar="OUT_DIR", type=Path, help="a new or empty folder")
    parser.add_argument("--seed", metavar="N", type=int, default=0, help="of all weights (0)")


def run(args: argparse.Namespace, out: Output) -> ExitCode:
    """Write the checkpoint; a folder with something in it is left as it is."""
    written = write_tiny_checkpoint(args.out, seed=args.seed)
    table = TableView(
        title=f"Written with seed {written.seed}: {written.tensor_count} tensors, {bytes_text(written.nbytes)}",
        header=("file", "bytes", "sha256"),
        rows=tuple((item.file, f"{item.nbytes:,}", item.sha256[:16]) for item in written.files),
        data=(),
        align="lrl",
    )
    if not out.as_json:
        out.show("files", table)
    out.line(f"look at it with: workbench show {args.out}")
    out.put("path", str(written.path))
    out.put("seed", written.seed)
    out.put("nbytes", written.nbytes)
    out.put("tensor_count", written.tensor_count)
    out.put("files", [to_plain(item) for item in written.files])
    out.put("fingerprint", written.fingerprint)
    return ExitCode.OK
