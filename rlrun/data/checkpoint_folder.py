"""Names, markers and ages of checkpoint folders: which are complete, newest, best, and which may go.

A run keeps them under one root: `step_00000040/` is complete, because it was renamed into place after its
last byte; `.writing-…` is not, and nobody reads it. `BEST` holds the name of the best one. Files only: no torch.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

COMPLETE = "COMPLETE"  # last file written into a checkpoint
BEST = "BEST"
_NAME = re.compile(r"step_(\d{8,})")


def folder_of_step(root: Path, step: int) -> Path:
    """Where the checkpoint after training step `step` lies. Example: root/step_00000040."""
    return root / f"step_{step:08d}"


def is_complete(folder: Path) -> bool:
    """Whether everything was written before the run ended."""
    return (folder / COMPLETE).is_file()


def complete(root: Path) -> list[Path]:
    """The complete checkpoints under `root`, oldest step first; a missing root has none."""
    if not root.is_dir():
        return []
    named = [(int(match[1]), path) for path in root.iterdir() if (match := _NAME.fullmatch(path.name))]
    return [path for _, path in sorted(named) if is_complete(path)]


def latest(root: Path) -> Path | None:
    """The complete checkpoint of the highest step, if there is one."""
    folders = complete(root)
    return folders[-1] if folders else None


def best(root: Path) -> Path | None:
    """The checkpoint that `mark_best` named, if it is still complete."""
    marker = root / BEST
    folder = root / marker.read_text().strip() if marker.is_file() else None
    return folder if folder is not None and is_complete(folder) else None


def mark_best(folder: Path) -> None:
    """Name `folder` as the best of its root, atomically."""
    marker = folder.parent / BEST
    fresh = marker.with_name(f".{BEST}-{os.getpid()}")
    fresh.write_text(folder.name + "\n")
    os.replace(fresh, marker)


def prune(root: Path, keep_last: int, is_best_kept: bool) -> list[Path]:
    """Delete all but the newest `keep_last` complete checkpoints (and the best one); returns what went.

    Leftovers of interrupted saves go too, so call it only while nobody saves.
    """
    kept = set(complete(root)[-keep_last:])
    if is_best_kept and (top := best(root)) is not None:
        kept.add(top)
    gone = [folder for folder in complete(root) if folder not in kept]
    leftovers = list(root.glob(".writing-*")) + list(root.glob(".replaced-*")) if root.is_dir() else []
    for folder in gone + leftovers:
        (folder / COMPLETE).unlink(missing_ok=True)  # first: a half-deleted folder must not count as complete
        shutil.rmtree(folder)
    return gone
