"""Checkpoint folders: names and markers; which are complete, newest or best, and which are deleted.

A run keeps them under one root: `step_00000040/` is complete, because it was renamed into place after its
last byte; `.writing-…` is not, and is never read. `BEST` holds the name of the best one. Does not import torch.
The marker is written last and holds the checksum of `checksums.json`, which holds those of all other files.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

from rlrun.data import checksums

FORMAT = 2  # 1 had no checksums
COMPLETE = "COMPLETE"  # the last file written into a checkpoint
BEST = "BEST"
_NAME = re.compile(r"step_(\d{8,})")


def folder_of_step(root: Path, step: int) -> Path:
    """Return the folder of the checkpoint after training step `step`. Example: root/step_00000040."""
    return root / f"step_{step:08d}"


def is_complete(folder: Path) -> bool:
    """Return whether the checkpoint was written completely."""
    return (folder / COMPLETE).is_file()


def step_of(folder: Path) -> int | None:
    """Return the training step in a checkpoint's name, or None for another name."""
    match = _NAME.fullmatch(folder.name)
    return int(match[1]) if match else None


def named(root: Path) -> list[Path]:
    """Return all folders under `root` with a checkpoint's name, complete or not, ordered by step."""
    if not root.is_dir():
        return []
    steps = [(step, path) for path in root.iterdir() if (step := step_of(path)) is not None]
    return [path for _, path in sorted(steps)]


def is_checkpoint(folder: Path) -> bool:
    """Return whether a path is one checkpoint, complete or not, instead of a folder of checkpoints."""
    return is_complete(folder) or step_of(folder) is not None


def complete(root: Path) -> list[Path]:
    """Return the complete checkpoints under `root`, ordered by step; none if `root` does not exist."""
    return [path for path in named(root) if is_complete(path)]


def mark(folder: Path, digest: str) -> None:
    """Mark a checkpoint as complete. digest: that of its `checksums.json`. Raises OSError."""
    marker = folder / COMPLETE
    marker.write_text(f"{FORMAT} {digest}\n")
    checksums.flush(marker)
    checksums.flush(folder)


def damages(
    folder: Path,
    is_content_read: bool = True,
    share: tuple[int, int] = (0, 1),
    progress: Callable[[], None] = lambda: None,
) -> list[str]:
    """Return the damages of a checkpoint by file name, [] if there are none; arguments as of `checksums.damages`."""
    if not is_complete(folder):
        return [f"it has no {COMPLETE} marker: its save did not finish"]
    try:
        version, _, digest = (folder / COMPLETE).read_text().partition(" ")
    except (OSError, ValueError):
        return [f"{COMPLETE} is damaged"]
    if version.strip().isdigit() and int(version) != FORMAT:
        return [f"it is of format {int(version)}, and this version of rlrun reads format {FORMAT}"]
    try:
        is_known = digest == checksums.digest_of((folder / checksums.CHECKSUMS).read_bytes()) + "\n"
    except OSError as error:
        return [f"{checksums.CHECKSUMS} cannot be read ({error.strerror})"]
    if not is_known:
        return [f"{checksums.CHECKSUMS} or {COMPLETE} is damaged: they do not belong together"]
    return checksums.damages(folder, is_content_read, share, progress, beside=(COMPLETE,))


def latest(root: Path) -> Path | None:
    """Return the complete checkpoint of the highest step, or None."""
    folders = complete(root)
    return folders[-1] if folders else None


def best(root: Path) -> Path | None:
    """Return the checkpoint that `mark_best` marked, or None if it is not complete any more."""
    marker = root / BEST
    name = marker.read_text(errors="replace").strip() if marker.is_file() else ""
    return root / name if _NAME.fullmatch(name) and is_complete(root / name) else None


def mark_best(folder: Path) -> None:
    """Mark `folder` as the best checkpoint of its root, atomically."""
    marker = folder.parent / BEST
    fresh = marker.with_name(f".{BEST}-{os.getpid()}")
    fresh.write_text(folder.name + "\n")
    os.replace(fresh, marker)


def prune(saved: Path, keep_last: int, is_best_kept: bool) -> list[Path]:
    """Delete all but the newest `keep_last` complete checkpoints (and the best one). Returns the deleted ones.

    saved: the newest checkpoint. Checkpoints of higher steps, which a run that returned to an older one has skipped,
    stay until it overwrites them. Also deletes leftovers of interrupted saves, so no save may run at the same time.
    """
    root = saved.parent
    older = complete(root)[: complete(root).index(saved) + 1]
    kept = set(older[-keep_last:])
    if is_best_kept and (top := best(root)) is not None:
        kept.add(top)
    gone = [folder for folder in older if folder not in kept]
    leftovers = list(root.glob(".writing-*")) + list(root.glob(".replaced-*")) if root.is_dir() else []
    for folder in gone + leftovers:
        (folder / COMPLETE).unlink(missing_ok=True)  # first, since a partly deleted folder must not count as complete
        shutil.rmtree(folder)
    return gone
