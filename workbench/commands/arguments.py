"""Arguments several commands share, and how their text becomes values."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import cast, get_args

from workbench.errors import PlanError
from workbench.plan import DeviceName, Inputs, Placement

PLACEMENT_FORM = "DEVICE[/CORE][:PROFILE][+BACKEND]"


def placement(text: str) -> Placement:
    """Return the placement `host`, `host:bf16`, `dry/1` or `host:fp32+aot_eager` stands for.

    Raises:
        PlanError: another form, or no such device.
    """
    rest, _, backend = text.partition("+")
    rest, _, profile = rest.partition(":")
    device, _, core = rest.partition("/")
    if device not in get_args(DeviceName) or (core and not core.isdigit()):
        raise PlanError(
            f"placement: expected {PLACEMENT_FORM} with a device among {', '.join(get_args(DeviceName))}, "
            f"as in host:bf16; found {text!r}."
        )
    return Placement(
        device=cast("DeviceName", device),
        index=int(core or 0),
        profile=profile or "fp32",
        compile=backend or None,
    )


def layers(text: str) -> tuple[int, int]:
    """Return the half-open range `2:5` stands for.

    Raises:
        PlanError: another form.
    """
    first, colon, last = text.partition(":")
    if not (colon and first.isdigit() and last.isdigit() and int(first) < int(last)):
        raise PlanError(f"layers: expected FIRST:END with FIRST below END, as in 2:5; found {text!r}.")
    return int(first), int(last)


def token_ids(texts: list[str]) -> tuple[tuple[int, ...], ...]:
    """Return one tuple of ids per text such as `5,17,9`.

    Raises:
        PlanError: something else than whole numbers and commas.
    """
    try:
        return tuple(tuple(int(part) for part in text.split(",")) for text in texts)
    except ValueError as error:
        raise PlanError(f"token ids: expected whole numbers and commas, as in 5,17,9; found {texts!r}.") from error


def add_inputs(parser: argparse.ArgumentParser) -> None:
    """Add what is fed to the text model."""
    parser.add_argument("--prompt", metavar="TEXT", help="prompt, tokenised with the checkpoint's tokenizer")
    parser.add_argument(
        "--token-ids", metavar="IDS", action="append", default=[], help="a sequence of ids, as in 5,17,9 (repeatable)"
    )
    parser.add_argument("--max-tokens", metavar="N", type=int, default=0, help="decode steps after the prefill (0)")
    parser.add_argument("--seed", metavar="N", type=int, default=0, help="of everything random (0)")


PICTURE_FORMS = (".png", ".svg", ".pdf")


def picture_file(text: str) -> str:
    """Return the name of a picture's file; for `type=`, so that a wrong one is told before anything is run.

    Raises:
        argparse.ArgumentTypeError: another ending than those of `PICTURE_FORMS`.
    """
    if Path(text).suffix.lower() not in PICTURE_FORMS:
        raise argparse.ArgumentTypeError(f"expected a file ending in {', '.join(PICTURE_FORMS)}; found {text!r}")
    return text


DEFAULT_PROMPT = "The quick brown fox"


def inputs(args: argparse.Namespace) -> Inputs:
    """Return what `add_inputs` read; a default prompt where neither prompt nor ids were given.

    Raises:
        PlanError: both were given, or a count below 0.
    """
    if args.prompt is not None and args.token_ids:
        raise PlanError("inputs: expected --prompt or --token-ids, found both.")
    if args.max_tokens < 0:
        raise PlanError(f"--max-tokens: expected at least 0, found {args.max_tokens}.")
    if args.token_ids:
        return Inputs(token_ids=token_ids(args.token_ids), seed=args.seed, max_tokens=args.max_tokens)
    prompt = DEFAULT_PROMPT if args.prompt is None else args.prompt
    return Inputs(prompt=prompt, seed=args.seed, max_tokens=args.max_tokens)


def is_python_file(text: str) -> bool:
    """Say whether a target is a user's file, `file.py` or `file.py:name`, and not a checkpoint folder."""
    return Path(text.rpartition(":")[0] or text).suffix == ".py" or Path(text).suffix == ".py"
