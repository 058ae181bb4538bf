"""The folder a demo writes: made new, replaced when it is our own, never taken from someone else."""

from __future__ import annotations

import shutil
from pathlib import Path

MARK = ".neuron-workbench-demo"
"""Name of the file that says that everything in the folder was written by a demo."""


class NotOurs(Exception):
    """A folder that holds something no demo wrote."""


def prepare(folder: Path) -> Path:
    """Return `folder`, empty but for the mark; what an earlier demo left in it is gone.

    Raises:
        NotOurs: it is a file, or holds files and no mark.
    """
    if folder.is_file() or folder.is_symlink():
        raise NotOurs(f"expected a folder or nothing at {folder}, found something else; choose another with --out")
    if folder.exists() and any(folder.iterdir()) and not _is_ours(folder):
        raise NotOurs(
            f"{folder} holds files that no demo wrote (there is no {MARK} in it), so it is left alone; "
            "choose another folder with --out, or empty this one"
        )
    if folder.exists():
        for path in folder.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
    folder.mkdir(parents=True, exist_ok=True)
    words = "Everything in this folder was written by a demo, and the next one replaces it.\n"
    (folder / MARK).write_text(words, encoding="utf-8")
    return folder


def _is_ours(folder: Path) -> bool:
    # A folder made only to hold folders of ours has no mark of its own.
    return (folder / MARK).is_file() or all(
        path.is_dir() and not path.is_symlink() and _is_ours(path) for path in folder.iterdir()
    )
