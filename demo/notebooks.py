"""Run every notebook and keep an HTML copy of each: `python -m demo.notebooks --out DIR`. 1 where one stops early."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from demo.output_folder import NotOurs, prepare

FOLDER = Path(__file__).resolve().parents[1] / "notebooks"


def main(argv: Sequence[str], *, folder: Path = FOLDER) -> int:
    """Run the notebooks and return the exit status: 0 all ran to their end, 1 not all, 2 wrong use."""
    parser = argparse.ArgumentParser(prog="python -m demo.notebooks", description="Run every notebook.")
    parser.add_argument("--out", metavar="DIR", type=Path, default=Path("demo-output/notebooks"),
                        help="where to write (demo-output/notebooks)")  # fmt: skip
    args = parser.parse_args(list(argv))
    paths = sorted(folder.glob("[0-9]*.ipynb"))
    if not paths:
        sys.stderr.write(f"notebooks: expected at least one in {folder}, found none\n")
        return 2
    try:
        out = prepare(args.out.absolute())
    except NotOurs as refused:
        sys.stderr.write(f"notebooks: {refused}\n")
        return 2
    from demo.notebook_run import run_notebook, write_html

    stopped: list[str] = []
    for path in paths:
        began = time.monotonic()
        print(path.name, flush=True)
        run = run_notebook(path, parameters={}, tell=lambda heading: print(f"  {heading}", flush=True))
        page = write_html(run.notebook, out / f"{path.stem}.html", title=path.stem)
        print(
            f"  {f'STOPPED: {run.error}' if run.error else 'ran to its end'}, {time.monotonic() - began:.0f} s; {page}"
        )
        stopped += [path.name] if run.error else []
    print(f"{len(paths) - len(stopped)} of {len(paths)} notebooks ran to their end")
    return 1 if stopped else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
