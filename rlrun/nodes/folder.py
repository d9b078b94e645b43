"""Folders for Ray on a node, with enough free space, and paths short enough for its sockets."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rlrun.system.errors import ExitStatus, RunError

PREFIX = "rlrun-node-"
_RAY_THRESHOLD = 0.95  # Ray writes nothing to a disk that is fuller
_MAX_SOCKET_PATH = 107  # bytes in the path of a Unix socket
_SOCKET = "/rlrun-node-12345678/r/session_2026-11-21_12-17-36_644775_1234567/sockets/plasma_store"
_MEGABYTE = 10**6


@dataclass(frozen=True)
class FreeSpace:
    """What Ray may still write to the disk of `path`. Example: FreeSpace("/data/spill", 120_000_000_000)."""

    path: str
    usable_bytes: int  # until the disk is 95 % full; negative if it is fuller


def free_space(path: str) -> FreeSpace:
    """Measure the free space of `path`, which is created if it is missing. Raises OSError."""
    Path(path).mkdir(parents=True, exist_ok=True)
    disk = shutil.disk_usage(path)
    return FreeSpace(path, min(disk.free, int(_RAY_THRESHOLD * disk.total) - disk.used))


def choose_folder(paths: Sequence[str], need_bytes: int, key: str, is_for_sockets: bool) -> str:
    """Return the path with most free space, of those with enough and, for sockets, a short enough path.

    key: the configuration key of the paths. Raises RunError that says for every path why it does not fit.
    """
    fit, faults = [], []
    for path in paths:
        excess = len((path + _SOCKET).encode()) - _MAX_SOCKET_PATH
        try:
            found = free_space(path)
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
        f"No folder of {os.uname().nodename} has enough space for Ray.",
        key,
        list(paths),
        cause="\n".join(faults),
        remedy="Free the disk, or name a folder on another one (temp_dir, spill_dirs of the node's group).",
        exit_status=ExitStatus.placement,
    )
