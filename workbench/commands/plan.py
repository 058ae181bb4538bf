"""`workbench plan`: the bytes of weights one rank keeps, from a checkpoint folder or a config.json alone."""

from __future__ import annotations

import argparse
from pathlib import Path

from port.checkpoint.index import Checkpoint, open_checkpoint
from port.checkpoint.names import PARTS, Part
from port.checkpoint.plan import HBM_BYTES, plan_weights
from port.config import ModelConfig
from workbench.checkpoint_tables import plan_table
from workbench.errors import PlanError
from workbench.exit_codes import ExitCode
from workbench.output import Output
from workbench.units import bytes_text

NAME = "plan"
HELP = "bytes of one rank, before a byte of data is read"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this command."""
    parser.add_argument(
        "source", metavar="CHECKPOINT|config.json", type=Path, help="a folder, or a configuration alone"
    )
    parser.add_argument("--world-size", metavar="N", type=int, default=1, help="ranks that share experts, tables (1)")
    parser.add_argument("--rank", metavar="R", type=int, default=0, help="whose share to show, from 0 (0)")
    parser.add_argument(
        "--parts", metavar="LIST", type=_parts, default=("text",), help=f"of {','.join(PARTS)}, with commas (text)"
    )


def run(args: argparse.Namespace, out: Output) -> ExitCode:
    """Show the plan and whether it fits; 0 also when it does not."""
    source = _source(args.source)
    plan = plan_weights(source, rank=args.rank, world_size=args.world_size, parts=args.parts)
    free, fits = plan.free_bytes(), plan.fits()
    out.show("plan", plan_table(plan))
    weights, memory = bytes_text(plan.weights_bytes), f"{bytes_text(HBM_BYTES)} of HBM"
    if fits:
        out.line(f"fits in {memory}: {bytes_text(free)} are left for caches, activations and workspaces")
    else:
        out.line(f"does not fit in {memory}: {weights} are {bytes_text(-free)} too many; add ranks (--world-size)")
    out.put("source", {"path": str(args.source), "kind": "checkpoint" if isinstance(source, Checkpoint) else "config"})
    out.put("rank", plan.rank)
    out.put("world_size", plan.world_size)
    out.put("parts", plan.parts)
    out.put("weights_bytes", plan.weights_bytes)
    out.put("weights_bytes_by_category", {row.category: row.rank_bytes for row in plan.rows})
    out.put("hbm_bytes", HBM_BYTES)
    out.put("free_bytes", free)
    out.put("fits", fits)
    return ExitCode.OK


def _source(path: Path) -> ModelConfig | Checkpoint:
    """Return a folder with shards as a checkpoint, anything else as a configuration."""
    if not path.exists():
        raise PlanError(f"plan: expected a checkpoint folder or a config.json; found nothing at {path}")
    if path.is_dir() and any(path.glob("*.safetensors*")):
        return open_checkpoint(path)
    return ModelConfig.from_file(path)


def _parts(text: str) -> tuple[Part, ...]:
    wanted = [word.strip() for word in text.split(",") if word.strip()]
    unknown = [word for word in wanted if word not in PARTS]
    if unknown or not wanted:
        raise argparse.ArgumentTypeError(f"expected some of {', '.join(PARTS)}; found {text!r}")
    return tuple(part for part in PARTS if part in wanted)
