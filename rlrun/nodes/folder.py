"""Folders that Ray fills on a node: with room and short paths, locked while in use, removed once their run is dead."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rlrun.config.errors import RunError
from rlrun.config.exit_status import ExitStatus

PREFIX = "rlrun-node-"
_LOCK = "in-use"
_RAY_THRESHOLD = 0.95  # of a disk; Ray puts nothing on one that is fuller
_MAX_SOCKET_PATH = 107  # bytes, of a Unix socket
_SOCKET = "/rlrun-node-12345678/session_2026-11-21_12-17-36_644775_1234567/sockets/plasma_store"
_MEGABYTE = 10**6


@dataclass(frozen=True)
class Room:
    """What Ray may still put on the disk of `path`. Example: Room("/data/spill", 120_000_000_000)."""

    path: str
    usable_bytes: int  # until the disk is 95 % full; below 0 where it is already


def room(path: str) -> Room:
    """Measure; the folder is made where it is missing. Raises OSError."""
    Path(path).mkdir(parents=True, exist_ok=True)
    disk = shutil.disk_usage(path)
    return Room(path, min(disk.free, int(_RAY_THRESHOLD * disk.total) - disk.used))


def roomiest(paths: Sequence[str], need_bytes: int, key: str, is_for_sockets: bool) -> str:
    """The one with most room, of those with enough and, for sockets, a short enough path.

    Raises RunError that says of every path what is wrong with it.
    """
    fit, faults = [], []
    for path in paths:
        excess = len((path + _SOCKET).encode()) - _MAX_SOCKET_PATH
        try:
            found = room(path)
        except OSError as error:
            faults.append(f"{path}: {error.strerror}")
            continue
        if is_for_sockets and excess > 0:
            faults.append(f"{path}: {excess} bytes too long for Ray's Unix sockets")
        elif found.usable_bytes < need_bytes:
            usable, need = max(0, found.usable_bytes) // _MEGABYTE, need_bytes // _MEGABYTE
            faults.append(f"{path}: {usable} MB until the disk is 95 % full, {need} MB needed")
        elif not os.access(path, os.W_OK):
            faults.append(f"{path}: not writable")
        else:
            fit.append(found)
    if fit:
        return max(fit, key=lambda found: found.usable_bytes).path
    raise RunError(
        f"No folder of {os.uname().nodename} can hold what Ray writes.",
        key,
        list(paths),
        cause="\n".join(faults),
        remedy="Free the disk, or name a folder on another one (temp_dir, spill_dirs of the node's group).",
        exit_status=ExitStatus.placement,
    )


class NodeFolder:
    """A new folder below `parent`; removed by `close`, or by the next start after a crash.

    The lock tells the living from the dead: the kernel drops it with the process, whatever ended it.
    Containers and hosts that share the disk see each other's locks.
    """

    def __init__(self, parent: str):
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        self._lock = os.open(self.path / _LOCK, os.O_CREAT | os.O_RDWR, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        os.write(self._lock, f"{os.getpid()}\n".encode())

    def close(self) -> None:
        """Remove the folder with everything in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def remove_stale(parents: Sequence[str]) -> list[Path]:
    """Remove folders of nodes that are gone; returns them. Folders of others, and of living nodes, stay."""
    removed = []
    for parent in dict.fromkeys(parents):
        for folder in sorted(Path(parent).glob(f"{PREFIX}*")):
            if _is_stale(folder):
                shutil.rmtree(folder, ignore_errors=True)
                removed.append(folder)
    return removed


def pids_in_use(parents: Sequence[str]) -> list[int]:
    """Process ids of the living `rlrun.node start` of this user, as their locks tell."""
    locks = [lock for parent in dict.fromkeys(parents) for lock in sorted(Path(parent).glob(f"{PREFIX}*/{_LOCK}"))]
    living = [lock for lock in locks if lock.stat().st_uid == os.getuid() and not _is_stale(lock.parent)]
    return sorted({int(lock.read_text()) for lock in living})


def _is_stale(folder: Path) -> bool:
    """Whether it is ours and nobody holds its lock. Without a lock file it is being made: not stale."""
    try:
        if folder.stat().st_uid != os.getuid():
            return False
        descriptor = os.open(folder / _LOCK, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True
