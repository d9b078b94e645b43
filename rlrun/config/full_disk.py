"""A disk that is full, told as what it is, whoever was writing to it."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Sequence
from pathlib import Path

from rlrun.config.errors import RunError
from rlrun.config.exit_status import ExitStatus

_NUMBERS = {errno.ENOSPC, errno.EDQUOT}


def is_full(error: BaseException | None) -> bool:
    """Whether the system refused to write for want of room."""
    return isinstance(error, OSError) and error.errno in _NUMBERS


def full_disk(error: BaseException, writer: str, folders: Sequence[str] = ()) -> RunError:
    """writer: who could not write. folders: where that may have been; what is free there is told."""
    free = [f"{folder}: {_free_bytes(Path(folder)) / 1e6:.1f} MB free" for folder in folders]
    return RunError(
        f"{writer} could not write: a disk is full.",
        cause="\n".join([f"{type(error).__name__}: {error}", *free]),
        remedy="Free space there, or point output_dir and cache_dir to another disk, then start the same run again: "
        "checkpoints are whole, and it resumes from the latest.",
        exit_status=ExitStatus.storage,
    )


def _free_bytes(folder: Path) -> int:
    """On the disk that holds the folder, or would."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return shutil.disk_usage(folder).free
