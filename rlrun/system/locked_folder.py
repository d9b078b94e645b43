"""Folders that Ray fills: locked while in use, and removed by the next start once whoever made them is dead."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

_LOCK = "in-use"


class LockedFolder:
    """A new folder "<parent>/<prefix>…"; removed by `close`, or after a crash by whoever calls `remove_stale`.

    The lock tells the living from the dead: the kernel drops it with the process, whatever ended it.
    Containers and hosts that share the disk see each other's locks.
    """

    def __init__(self, parent: str | None, prefix: str):
        """parent: None for the system's temporary folder."""
        self.path = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        draft = self.path / f"{_LOCK}.draft"  # nobody sees a lock that is not held yet
        self._lock = os.open(draft, os.O_CREAT | os.O_RDWR, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        os.write(self._lock, f"{os.getpid()}\n".encode())
        draft.rename(self.path / _LOCK)

    def close(self) -> None:
        """Remove the folder with everything in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def remove_stale(parents: Sequence[str], prefix: str) -> list[Path]:
    """Remove what the dead left; returns those folders. Those of other users and of the living stay."""
    removed = []
    for parent in dict.fromkeys(parents):
        for folder in sorted(Path(parent).glob(f"{prefix}*")):
            if _is_stale(folder):
                shutil.rmtree(folder, ignore_errors=True)
                removed.append(folder)
    return removed


def holders(parents: Sequence[str], prefix: str) -> list[int]:
    """Process ids of this user that hold such folders, as their locks tell."""
    locks = [lock for parent in dict.fromkeys(parents) for lock in sorted(Path(parent).glob(f"{prefix}*/{_LOCK}"))]
    living = [lock for lock in locks if lock.stat().st_uid == os.getuid() and not _is_stale(lock.parent)]
    return sorted({int(lock.read_text()) for lock in living})


def _is_stale(folder: Path) -> bool:
    """Whether it is ours and nobody holds its lock. Without a lock file it is being made: not stale."""
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
