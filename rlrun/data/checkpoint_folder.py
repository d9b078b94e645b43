"""Names, markers and ages of checkpoint folders: which are complete, newest, best, and which may go.

A run keeps them under one root: `step_00000040/` is complete, because it was renamed into place after its
last byte; `.writing-…` is not, and nobody reads it. `BEST` holds the name of the best one. Files only: no torch.
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
COMPLETE = "COMPLETE"  # last file written into a checkpoint
BEST = "BEST"
_NAME = re.compile(r"step_(\d{8,})")


def folder_of_step(root: Path, step: int) -> Path:
    """Where the checkpoint after training step `step` lies. Example: root/step_00000040."""
    return root / f"step_{step:08d}"


def is_complete(folder: Path) -> bool:
    """Whether everything was written before the run ended."""
    return (folder / COMPLETE).is_file()


def step_of(folder: Path) -> int | None:
    """The training step in a checkpoint's name; None: it has another name."""
    match = _NAME.fullmatch(folder.name)
    return int(match[1]) if match else None


def named(root: Path) -> list[Path]:
    """Everything under `root` that has a checkpoint's name, complete or not, oldest step first."""
    if not root.is_dir():
        return []
    steps = [(step, path) for path in root.iterdir() if (step := step_of(path)) is not None]
    return [path for _, path in sorted(steps)]


def is_checkpoint(folder: Path) -> bool:
    """Whether it is meant as one checkpoint, complete or not, rather than as a folder of several."""
    return is_complete(folder) or step_of(folder) is not None


def complete(root: Path) -> list[Path]:
    """The complete checkpoints under `root`, oldest step first; a missing root has none."""
    return [path for path in named(root) if is_complete(path)]


def mark(folder: Path, digest: str) -> None:
    """Say that everything is written. digest: of its `checksums.json`. Raises OSError."""
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
    """What is wrong with a checkpoint, by file name; arguments as of `checksums.damages`. [] where it is whole."""
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
    """The complete checkpoint of the highest step, if there is one."""
    folders = complete(root)
    return folders[-1] if folders else None


def best(root: Path) -> Path | None:
    """The checkpoint that `mark_best` named, if it is still complete."""
    marker = root / BEST
    name = marker.read_text(errors="replace").strip() if marker.is_file() else ""
    return root / name if _NAME.fullmatch(name) and is_complete(root / name) else None


def mark_best(folder: Path) -> None:
    """Name `folder` as the best of its root, atomically."""
    marker = folder.parent / BEST
    fresh = marker.with_name(f".{BEST}-{os.getpid()}")
    fresh.write_text(folder.name + "\n")
    os.replace(fresh, marker)


def prune(saved: Path, keep_last: int, is_best_kept: bool) -> list[Path]:
    """Delete all but the newest `keep_last` complete checkpoints (and the best one); returns what went.

    saved: the newest. Those of higher steps, which a run that fell back to an older one has passed over, stay until
    it writes them anew. Leftovers of interrupted saves go too, so call it only while nobody saves.
    """
    root = saved.parent
    older = complete(root)[: complete(root).index(saved) + 1]
    kept = set(older[-keep_last:])
    if is_best_kept and (top := best(root)) is not None:
        kept.add(top)
    gone = [folder for folder in older if folder not in kept]
    leftovers = list(root.glob(".writing-*")) + list(root.glob(".replaced-*")) if root.is_dir() else []
    for folder in gone + leftovers:
        (folder / COMPLETE).unlink(missing_ok=True)  # first: a half-deleted folder must not count as complete
        shutil.rmtree(folder)
    return gone
