"""Stand-in compilers as programs: each reads the lines of a file and decides by them how to end."""

from __future__ import annotations

import sys
from pathlib import Path

from workbench.compilers.command import CommandCompiler

_HEAD = """import os, signal, sys, time
ops = [line.strip() for line in open(sys.argv[-1]) if line.strip()]
"""

NEEDS_TWO = """if {"sort", "slice"} <= set(ops):
    print("[INTERNAL_ERROR] [NCC_ITIN902] TensorInitialization error: idx i_shard_%d" % len(ops))
    sys.exit(70)
"""


def compiler(folder: Path, body: str, name: str = "cc.py") -> CommandCompiler:
    """Return a compiler that runs `body` with `ops`, the lines of the file."""
    file = folder / name
    file.write_text(_HEAD + body, encoding="utf-8")
    return CommandCompiler([sys.executable, "-IS", str(file)])


def counted(folder: Path, body: str) -> str:
    """Return `body` with a line in `folder/runs` for every run, before anything else happens."""
    return f"open({str(folder / 'runs')!r}, 'a').write(' '.join(ops) + chr(10))\n" + body


def runs(folder: Path) -> list[str]:
    """Return what `counted` wrote."""
    file = folder / "runs"
    return file.read_text(encoding="utf-8").splitlines() if file.exists() else []
