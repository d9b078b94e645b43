"""Checkpoint folders: names and markers; the complete, newest and best ones, and the deletion of old ones.

A run keeps them under one root: `step_00000040/` is complete, because it was renamed into place after its last byte;
`.writing-…` is not, and is never read. `BEST` holds the name of the best one. The marker `COMPLETE` is written last and
holds the checksum of `checksums.json`, which holds those of all other files. Does not import torch.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from rlrun.data import checksums
from rlrun.system.errors import ExitStatus, RunError

FORMAT = 2  # 1 had no checksums
COMPLETE = "COMPLETE"  # the last file written into a checkpoint
BEST = "BEST"
STATE = "state.json"  # counters, and the driver's state
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


def stored_step(folder: Path) -> int | None:
    """Return the training step in a checkpoint's state; None if the state is missing or corrupted.

    Raises OSError if the system refuses to read it.
    """
    try:
        return int(json.loads((folder / STATE).read_text())["driver"]["step"])
    except (OSError, ValueError, LookupError, TypeError) as error:
        checksums.as_corruption(error)
        return None


def list_all(root: Path) -> list[Path]:
    """Return all folders under `root` with a checkpoint's name, complete or not, ordered by step."""
    if not root.is_dir():
        return []
    steps = [(step, path) for path in root.iterdir() if (step := step_of(path)) is not None]
    return [path for _, path in sorted(steps)]


def is_checkpoint(folder: Path) -> bool:
    """Return whether a path is a checkpoint, complete or not, rather than a folder of checkpoints."""
    return is_complete(folder) or step_of(folder) is not None


def list_complete(root: Path) -> list[Path]:
    """Return the complete checkpoints under `root`, ordered by step; none if `root` does not exist."""
    return [path for path in list_all(root) if is_complete(path)]


def mark_complete(folder: Path, digest: str) -> None:
    """Mark a checkpoint as complete. digest: SHA-256 of its `checksums.json`. Raises OSError."""
    marker = folder / COMPLETE
    marker.write_text(f"{FORMAT} {digest}\n")
    checksums.flush(marker)
    checksums.flush(folder)


def find_corruption(
    folder: Path,
    is_content_read: bool = True,
    share: tuple[int, int] = (0, 1),
    progress: Callable[[], None] = lambda: None,
) -> list[str]:
    """Return a text on each corrupted file of a checkpoint; [] if it is valid. See `checksums.find_corruption`."""
    if not is_complete(folder):
        return [f"it has no {COMPLETE} marker: its save did not finish"]
    try:
        version, _, digest = (folder / COMPLETE).read_text().partition(" ")
        if version.strip().isdigit() and int(version) != FORMAT:
            return [f"it is of format {int(version)}, and this version of rlrun reads format {FORMAT}"]
        is_known = digest == checksums.sha256_hex((folder / checksums.CHECKSUMS).read_bytes()) + "\n"
    except (OSError, ValueError) as error:
        return [f"{COMPLETE} or {checksums.CHECKSUMS} cannot be read ({checksums.as_corruption(error)})"]
    if not is_known:
        return [f"{checksums.CHECKSUMS} or {COMPLETE} is damaged: they do not belong together"]
    damages = checksums.find_corruption(folder, is_content_read, share, progress, beside=(COMPLETE,))
    return damages or _name_fault(folder)


def _name_fault(folder: Path) -> list[str]:
    """Return a sentence if a checkpoint has the name of another step than its state."""
    list_all = step_of(folder)
    step = stored_step(folder)
    if list_all is None or step in (None, list_all):
        return []
    return [f"its name says step {list_all}, its {STATE} step {step}: it was renamed or copied"]


def require_format(folder: Path, is_newer_only: bool = False) -> None:
    """Raise RunError for a checkpoint of another format; skipping it would resume from an older one.

    is_newer_only: accept the formats of older versions.
    """
    try:
        format_number = int((folder / COMPLETE).read_text().partition(" ")[0])
    except (OSError, ValueError):
        return  # no marker, or a corrupted one
    if format_number == FORMAT or (is_newer_only and format_number < FORMAT):
        return
    age = "newer" if format_number > FORMAT else "older"
    raise RunError(
        f"The checkpoint {folder} was written by {'a' if age == 'newer' else 'an'} {age} version of rlrun.",
        key="checkpoint.resume",
        value=str(folder),
        cause=f"It is of format {format_number}, and this version reads format {FORMAT}. Nothing is wrong with it.",
        remedy=f"Resume with the {age} rlrun that wrote it (provenance.json in the run folder names it), or name a "
        "checkpoint of this format and another output_dir.",
        exit_status=ExitStatus.bad_input,
    )


def latest(root: Path) -> Path | None:
    """Return the complete checkpoint of the highest step, or None."""
    folders = list_complete(root)
    return folders[-1] if folders else None


def best(root: Path) -> Path | None:
    """Return the checkpoint that `mark_best` marked, or None if it is no longer complete."""
    name = _best_name(root)
    return root / name if _NAME.fullmatch(name) and is_complete(root / name) else None


def _best_name(root: Path) -> str:
    """Return the name that stands in the marker; "" without one."""
    marker = root / BEST
    return marker.read_text(errors="replace").strip() if marker.is_file() else ""


def _is_readable_version(folder: Path) -> bool:
    """Return whether a checkpoint is of this version of rlrun or an older one."""
    with suppress(RunError):
        require_format(folder, is_newer_only=True)
        return True
    return False


def mark_best(folder: Path) -> None:
    """Mark `folder` as the best checkpoint of its root, atomically."""
    marker = folder.parent / BEST
    fresh = marker.with_name(f".{BEST}-{os.getpid()}")
    fresh.write_text(folder.name + "\n")
    os.replace(fresh, marker)


def unmark_best(folder: Path) -> None:
    """Let no checkpoint be the best one if that is `folder`, which may be incomplete."""
    if _best_name(folder.parent) == folder.name:
        (folder.parent / BEST).unlink()


def set_later_aside(checkpoint: Path, place: Path) -> list[Path]:
    """Move the checkpoints beside one that have higher steps to another folder. Returns where they are now.

    A run that returns to an older checkpoint would otherwise resume from them again.
    """
    step = step_of(checkpoint) or 0
    later = [folder for folder in list_all(checkpoint.parent) if (step_of(folder) or 0) > step]
    if later:
        place.mkdir(parents=True, exist_ok=True)
    for folder in later:
        unmark_best(folder)
    return [folder.rename(place / folder.name) for folder in later]


def prune(saved: Path, keep_last: int, is_best_kept: bool) -> list[Path]:
    """Delete all but the newest `keep_last` complete checkpoints (and the best one). Returns the deleted ones.

    saved: the newest checkpoint. Checkpoints of higher steps, left by a loss of actor workers, remain until they are
    overwritten; those of a newer version of rlrun are never deleted. Also deletes leftovers of interrupted
    saves, so that no save may run at the same time.
    """
    root = saved.parent
    older = [
        checkpoint
        for checkpoint in list_complete(root)[: list_complete(root).index(saved) + 1]
        if checkpoint == saved or _is_readable_version(checkpoint)
    ]
    kept = set(older[-keep_last:])
    if is_best_kept and (top := best(root)) is not None:
        kept.add(top)
    gone = [folder for folder in older if folder not in kept]
    leftovers = list(root.glob(".writing-*")) + list(root.glob(".replaced-*")) if root.is_dir() else []
    for folder in gone + leftovers:
        (folder / COMPLETE).unlink(missing_ok=True)  # first, since a partly deleted folder must not count as complete
        shutil.rmtree(folder)
    return gone
