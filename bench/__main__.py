"""Run benchmarks and print their figures: `python -m bench [NAME...]`, all of them without a name.

Each prints its peer's figure in the same run; the ratios are what to look at. A benchmark that fails, or misses a
target it asserts, says so, and the exit status is 1; the others still run.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path

_FIRST = ("checkpoint", "model", "step", "memory", "breaks", "bisection")


def names() -> tuple[str, ...]:
    """Return the benchmarks there are, in the order a reader meets their subjects."""
    found = {path.stem for path in Path(__file__).parent.glob("*.py") if not path.stem.startswith("_")}
    return (*(name for name in _FIRST if name in found), *sorted(found - set(_FIRST)))


def run(name: str, out: Callable[[str], None]) -> bool:
    """Run one benchmark and say whether it held."""
    out(f"== {name}")
    began = time.perf_counter()
    try:
        import_module(f"bench.{name}").main(out)
    except Exception as error:
        # One benchmark must not hide the figures of the next; which line failed is what a reader needs.
        where = traceback.extract_tb(error.__traceback__)[-1]
        words = str(error).partition("\n")[0]
        out(f"FAILED: {type(error).__name__}: {words} ({Path(where.filename).name}:{where.lineno})")
        return False
    finally:
        out(f"   {time.perf_counter() - began:.1f} s\n")
    return True


def main(argv: Sequence[str], out: Callable[[str], None] = print) -> int:
    """Run the benchmarks named, print which failed, and return the exit status."""
    known = names()
    parser = argparse.ArgumentParser(
        prog="python -m bench", description="Benchmarks; ratios to a peer in the same run."
    )
    parser.add_argument("names", metavar="NAME", nargs="*", help=f"which ones: {', '.join(known)} (all)")
    chosen = parser.parse_args(list(argv)).names or list(known)
    unknown = [name for name in chosen if name not in known]
    if unknown:
        parser.error(f"expected names among {', '.join(known)}; found {', '.join(unknown)}")
    failed = [name for name in chosen if not run(name, out)]
    out(
        f"{len(chosen) - len(failed)} of {len(chosen)} benchmarks held"
        + (f"; FAILED: {', '.join(failed)}" * bool(failed))
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
