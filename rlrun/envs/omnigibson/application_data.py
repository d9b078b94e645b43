"""Kit's folders: one for each simulator of a node, starts one after another, and the log file of a failed start."""

from __future__ import annotations

import fcntl
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

VARIABLE = "OMNIGIBSON_APPDATA_PATH"
LOOK_S = 0.5  # interval between attempts to start
LOG_BYTES = 4_000_000  # end of a log file that is read
_held: list[TextIO] = []  # locks of this process's folders: they are free when it has ended, however it ends


def application_root() -> Path:
    """Return this node's folder for all simulators; home directories may be shared by nodes."""
    chosen = os.environ.get(VARIABLE)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return (Path(chosen) if chosen else cache / "rlrun" / "omnigibson") / socket.gethostname()


def take_folder(root: Path) -> Path:
    """Return a folder that no other simulator uses, and keep it until this process ends.

    Later processes take it again, so that compiled shaders are found.
    """
    root.mkdir(parents=True, exist_ok=True)
    number = 0
    while (lock := _locked(root / f"simulator_{number}.lock")) is None:
        number += 1
    lock.truncate(0)
    lock.write(str(os.getpgrp()))  # by which the env worker finds the log: it knows the process group
    lock.flush()
    _held.append(lock)
    return root / f"simulator_{number}"


@contextmanager
def turn_to_start(root: Path, progress: Callable[[], None]) -> Iterator[None]:
    """Wait until no other simulator of this node starts. Each start copies files into Isaac's own folders."""
    while (lock := _locked(root / "start.lock")) is None:
        progress()
        time.sleep(LOOK_S)
    try:
        yield
    finally:
        lock.close()


def log_of(process_group: int) -> list[str]:
    """Return the last lines of Kit's log file of a simulator that ran in this process group; [] if it wrote none."""
    for lock in application_root().glob("simulator_*.lock"):
        if lock.read_text(encoding="utf-8").strip() != str(process_group):
            continue
        since = lock.stat().st_mtime
        logs = (file for file in lock.with_suffix("").glob("local/**/kit_*.log") if file.stat().st_mtime >= since)
        newest = max(logs, key=lambda file: file.stat().st_mtime, default=None)
        if newest is not None:
            with newest.open("rb") as file:
                file.seek(max(0, newest.stat().st_size - LOG_BYTES))
                return file.read().decode(errors="replace").splitlines()
    return []


def _locked(path: Path) -> TextIO | None:
    """Return the open and locked file, or None if another process holds it."""
    file = path.open("a+", encoding="utf-8")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    return file
