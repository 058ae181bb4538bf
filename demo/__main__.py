"""Run the tour headless: `python -m demo --out DIR`. Exit status 0 only where everything it shows held.

Writes the executed notebook as HTML, its journals and script, the replay as JUnit XML, and the plots; prints what came
out, and how to open the notebook.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from demo.output_folder import NotOurs, prepare

NOTEBOOK = Path(__file__).resolve().parents[1] / "notebooks" / "00_tour.ipynb"


def main(argv: Sequence[str], *, notebook: Path = NOTEBOOK) -> int:
    """Run the tour and return the exit status: 0 all held, 1 something did not, 2 wrong use."""
    parser = argparse.ArgumentParser(prog="python -m demo", description="Run the tour headless.")
    parser.add_argument(
        "--out", metavar="DIR", type=Path, default=Path("demo-output"), help="where to write (demo-output)"
    )
    args = parser.parse_args(list(argv))
    try:
        out = prepare(args.out.absolute())
    except NotOurs as refused:
        sys.stderr.write(f"demo: {refused}\n")
        return 2
    began = time.monotonic()
    # What follows imports torch and Jupyter; a refused folder is told of before that.
    from demo.notebook_run import run_notebook, write_html
    from demo.outcome import judge, summary_lines
    from demo.plots import draw
    from workbench.errors import JournalError

    def tell(text: str) -> None:
        print(f"  {time.monotonic() - began:5.1f} s  {text}", flush=True)

    print(f"the tour of {notebook.name}, in a kernel of its own:", flush=True)
    run = run_notebook(notebook, parameters={"out": str(out)}, tell=tell)
    tell("writing the HTML copy and the plots")
    write_html(run.notebook, out / "tour.html", title="The tour")
    answers = judge(out)
    try:
        plots = f"{len(draw(out))} plots in {out / 'plots'}"
    except JournalError as missing:
        plots = f"no plots: {missing}"
    print(f"\nwhat came out, in {time.monotonic() - began:.0f} s:")
    for line in summary_lines(answers):
        print(line)
    held = all(answer.held for answer in answers) and not run.error and not plots.startswith("no ")
    if run.error:
        print(f"  FAILED  the notebook stopped: {run.error}")
    print(f"\neverything is in {out}\n  read      tour.html\n  plots     {plots}")
    print("  journals  tour.wbj, golden.wbj, verify.wbj, dry.wbj, graphs.wbj; script.py and junit.xml beside them")
    python = Path(sys.executable)
    shown = python.relative_to(Path.cwd()) if python.is_relative_to(Path.cwd()) else python
    print(f"open the notebook itself:\n  {shown} -m jupyterlab {_from_here(notebook)}")
    if not held:
        print("\nFAILED: not everything held; see above", file=sys.stderr)
    return 0 if held else 1


def _from_here(path: Path) -> Path:
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
