"""Temporary folders for Ray: locked while in use; the next start removes those of dead processes."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Sequence
from pathlib import Path

_LOCK = "in-use"
_INNER = "r"  # short, since Ray's sockets in it have paths of limited length


class LockedFolder:
    """A new folder "<parent>/<prefix>…", removed by `close`, or after a crash by `remove_stale`.

    The kernel releases the lock when its process ends for any reason, so that a folder without a held lock is stale.
    Containers and hosts that share the disk see each other's locks. Only this user can enter the folder. Ray opens the
    one that it is given to everyone, and therefore gets `inner`.
    """

    def __init__(self, parent: str | None, prefix: str):
        """parent: None for the temporary folder of the system."""
        self.path = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        draft = self.path / f"{_LOCK}.draft"  # renamed once the lock is held
        self._lock = os.open(draft, os.O_CREAT | os.O_RDWR, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        os.write(self._lock, f"{os.getpid()}\n".encode())
        draft.rename(self.path / _LOCK)
        self.inner = self.path / _INNER
        self.inner.mkdir()

    def close(self) -> None:
        """Remove the folder with everything in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def open_parent(folder: Path) -> Path | None:
    """Return the folder above in which other users may rename this one: writable for all, and not sticky; None: none.

    Example: open_parent(Path("/data/rlrun-ray-1a2b3c4d")) == Path("/data")
    """
    modes = ((parent, parent.stat().st_mode) for parent in folder.absolute().parents)
    return next((parent for parent, mode in modes if mode & stat.S_IWOTH and not mode & stat.S_ISVTX), None)


def stale_folders(parents: Sequence[str], prefix: str) -> list[Path]:
    """Return the folders of dead processes of this user."""
    return [
        folder
        for parent in dict.fromkeys(parents)
        for folder in sorted(Path(parent).glob(f"{prefix}*"))
        if _is_stale(folder)
    ]


def remove_stale(parents: Sequence[str], prefix: str) -> list[Path]:
    """Remove the folders of dead processes of this user. Returns their paths."""
    removed = stale_folders(parents, prefix)
    for folder in removed:
        shutil.rmtree(folder, ignore_errors=True)
    return removed


def holder(folder: Path) -> int:
    """Return the id of the process that holds a folder, or held it. Raises OSError."""
    return int((folder / _LOCK).read_text())


def holders(parents: Sequence[str], prefix: str) -> list[int]:
    """Return the ids of this user's processes that hold such folders, from their lock files."""
    locks = [lock for parent in dict.fromkeys(parents) for lock in sorted(Path(parent).glob(f"{prefix}*/{_LOCK}"))]
    living = [lock for lock in locks if lock.stat().st_uid == os.getuid() and not _is_stale(lock.parent)]
    return sorted({holder(lock.parent) for lock in living})


def _is_stale(folder: Path) -> bool:
    """Return whether the folder is this user's and its lock is free. Without a lock file it is being created."""
    try:
        if folder.stat().st_uid != os.getuid():
            return False
        descriptor = os.open(folder / _LOCK, os.O_RDWR)
    except (FileNotFoundError, NotADirectoryError):
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True
