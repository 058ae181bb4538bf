"""`workbench show`: what a checkpoint holds, what is wrong with it, and what its configuration makes of it.

Output of neuron-ls and neuron-monitor is recognised and shown too, see `show_neuron`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from port.checkpoint.audit import audit_checkpoint
from port.checkpoint.inspection import CheckpointReport, inspect_checkpoint
from port.checkpoint.problems import Problem, Severity, errors_in
from port.config import ModelConfig
from port.errors import ConfigError
from workbench.checkpoint_tables import inventory_table, problem_lines, schedule_table
from workbench.commands.show_neuron import find_outputs, show_outputs
from workbench.errors import PlanError
from workbench.exit_codes import ExitCode
from workbench.output import Output
from workbench.units import bytes_text, count_text

NAME = "show"
HELP = "list what a checkpoint, or output of neuron-ls or neuron-monitor, holds"

_SUMMARY_KEYS = (
    "model_type",
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "head_dim",
    "n_routed_experts",
    "num_experts_per_tok",
    "n_shared_experts",
    "sliding_window",
    "index_topk",
    "engram_layer_ids",
    "num_nextn_predict_layers",
    "max_position_embeddings",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this command."""
    parser.add_argument(
        "path",
        metavar="PATH",
        type=Path,
        help="folder of a checkpoint; or output of neuron-ls or neuron-monitor: a file, a folder with stdout, stderr "
        "and exit_code, or - for what is piped in",
    )
    parser.add_argument("--no-schedule", action="store_true", help="leave the layer schedule out")


def run(args: argparse.Namespace, out: Output) -> ExitCode:
    """Show what is there; 0 when nothing is wrong, 1 with errors in single tensors, 2 when it cannot be opened."""
    path = Path(args.path)
    if outputs := find_outputs(path):
        return show_outputs(path, outputs, out)
    if not path.is_dir():
        found = "a file that is neither" if path.exists() else "nothing"
        raise PlanError(
            f"show: expected a checkpoint's folder, or output of neuron-ls or neuron-monitor; found {found} at {path}"
        )
    report = inspect_checkpoint(path)
    config, problems = _config_and_problems(report)
    checkpoint = report.checkpoint
    shards = report.contents.shards
    out.line(f"{path}: {count_text(len(shards), 'shard')}, {bytes_text(checkpoint.nbytes)} of tensors")
    out.line(f"fingerprint {checkpoint.fingerprint[:16]} (headers, index and configuration; not the data)")
    out.line()
    out.show("inventory", inventory_table(checkpoint.inventory()))
    if config is not None:
        out.line()
        out.line("Configuration")
        for key in _SUMMARY_KEYS:
            value = getattr(config, key)
            out.line(f"  {key:<26}{_short(value) if isinstance(value, tuple) else value}")
        if not args.no_schedule:
            out.line()
            out.show("schedule", schedule_table(config))
    out.line()
    for line in problem_lines(problems) or ["nothing is wrong with it"]:
        out.line(line)
    out.put("path", str(path))
    out.put("fingerprint", checkpoint.fingerprint)
    out.put("nbytes", checkpoint.nbytes)
    out.put("tensor_count", len(checkpoint.entries))
    out.put("shards", [{"file": file, "file_bytes": header.file_bytes} for file, header in shards.items()])
    out.put("index_file", checkpoint.index_file)
    out.put("config", None if config is None else {key: getattr(config, key) for key in _SUMMARY_KEYS})
    out.put("problems", problems)
    out.put("outcome", report.outcome)
    if report.outcome == "refuse":
        return ExitCode.WRONG_USE
    return ExitCode.DIFFERENCES if errors_in(problems) else ExitCode.OK


def _config_and_problems(report: CheckpointReport) -> tuple[ModelConfig | None, tuple[Problem, ...]]:
    """Return the configuration where it can be used, and all problems, those of the tensor table included."""
    problems = list(report.problems)
    if report.checkpoint.config is None:
        if not any(problem.kind == "config_json" for problem in problems):
            remedy = "Copy the config.json of the release into the folder."
            problems.append(_config_problem("a config.json", "none", remedy, severity="warning"))
        return None, tuple(problems)
    try:
        config = report.checkpoint.model_config()
    except ConfigError as error:
        remedy = "Check that it is the config.json of this model."
        first, *sentences = str(error).splitlines()
        problems += [
            _config_problem("a model this port runs", sentence.strip(), remedy) for sentence in sentences or [first]
        ]
        return None, tuple(problems)
    for sentence in config.unknown_keys:
        remedy = "It is ignored."
        problems.append(_config_problem("known keys", sentence, remedy, severity="note"))
    return config, (*problems, *audit_checkpoint(report.checkpoint, config).problems)


def _config_problem(expected: str, found: str, remedy: str, severity: Severity = "error") -> Problem:
    return Problem(
        kind="config_json", severity=severity, file="config.json", expected=expected, found=found, remedy=remedy
    )


def _short(values: Sequence[object]) -> str:
    return ", ".join(str(value) for value in values) or "none"
