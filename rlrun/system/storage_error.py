"""Converts an OSError of a full, read-only or failing disk into the RunError that ends the run."""

from __future__ import annotations

import errno
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rlrun.system.errors import RunError
from rlrun.system.exit_status import ExitStatus

_FULL = {errno.ENOSPC: "a disk is full", errno.EDQUOT: "a disk is full"}
_BROKEN = {
    errno.EROFS: "the file system of {place} is read-only",
    errno.EIO: "the disk of {place} reports an error",
    errno.ESTALE: "the file server no longer knows {place}",
    errno.ENXIO: "the disk of {place} is gone",
    errno.ENODEV: "the disk of {place} is gone",
}


def is_storage_error(error: BaseException | None) -> bool:
    """Return whether a write failed because the disk is full, or because the disk or its server fails."""
    return isinstance(error, OSError) and error.errno in _FULL | _BROKEN


def storage_error(error: OSError, writer: str, folders: Sequence[str] = ()) -> RunError:
    """Return the error that ends the run.

    error: an error for which `is_storage_error` holds. writer: what could not write. folders: where that may have
    been; their free space is part of the cause.
    """
    place = _place(error, folders)
    what = (_FULL | _BROKEN)[error.errno or 0].format(place=place)
    free = [f"{folder}: {_free(folder)}" for folder in folders]
    return RunError(
        f"{writer} could not write: {what}.",
        cause="\n".join([f"{type(error).__name__}: {error}", *free]),
        remedy=_remedy(error, place),
        exit_status=ExitStatus.storage,
        row="storage",
    )


def _remedy(error: OSError, place: str) -> str:
    if error.errno in _FULL:
        return (
            "Free space there, or point output_dir and cache_dir to another disk, then resume the run: its checkpoints "
            "are whole."
        )
    return (
        f"Look at the kernel log and at the mount of {place}, and make it writable again (a file system that found "
        "damage turns read-only until it is checked); then resume the run. "
        "Or copy the run folder to another disk and set output_dir to it."
    )


def _place(error: OSError, folders: Sequence[str]) -> str:
    """Return the file of the error; else the first folder that cannot be written now, or all folders."""
    if isinstance(error.filename, str):
        return error.filename
    broken = [folder for folder in folders if not _is_writable(folder)]
    return " or ".join(broken[:1] or folders) or "a folder that it writes to"


def _is_writable(folder: str) -> bool:
    """Return whether a write succeeds; statvfs may report a file system as writable that an error has shut."""
    try:
        with tempfile.TemporaryFile(dir=_existing(Path(folder)), buffering=0) as probe:
            probe.write(b"?")
    except OSError:
        return False
    return True


def _free(folder: str) -> str:
    """Describe the free space on the disk of a folder, which may not exist yet. Example: "12.3 MB free"."""
    try:
        return f"{shutil.disk_usage(_existing(Path(folder))).free / 1e6:.1f} MB free"
    except OSError as error:
        return f"it cannot be read: {error.strerror}"


def _existing(folder: Path) -> Path:
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder
