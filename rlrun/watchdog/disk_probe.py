"""Whether the disk of a folder still takes small files: tried every few seconds, in a thread that may hang."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from rlrun.watchdog.timeout import run_with_timeout

PERIOD_S = 2.0


def write_small_file(folder: Path) -> None:
    """Write a small file to `folder` and remove it. Raises OSError.

    The file is not synced to the device, which may be busy with a checkpoint.
    """
    path = folder / f".disk_probe-{os.getpid()}"
    try:
        path.write_bytes(b"rlrun\n")
    finally:
        path.unlink(missing_ok=True)


def is_responsive(folder: Path, timeout_s: float) -> bool:
    """Return whether the disk of `folder` takes a small file, or refuses it, within `timeout_s`."""
    failed: list[str] = []
    run_with_timeout("disk", lambda: write_small_file(folder), None, failed, timeout_s)
    return failed != ["disk"]


class DiskProbe:
    """Tries the disk of one folder.

    Example::

        probe = DiskProbe(run_dir)
        probe.check()     # 0.0 while the disk responds; 12.0: it has not responded for 12 s
    """

    def __init__(self, folder: Path, write: Callable[[Path], None] = write_small_file):
        self._folder, self._write = folder, write
        self._thread: threading.Thread | None = None
        self._begun = -PERIOD_S  # monotonic time

    def check(self) -> float:
        """Return the seconds since the pending write began, 0 without one. Begins the next write when it is due."""
        now = time.monotonic()
        if self._thread is not None and self._thread.is_alive():
            return now - self._begun
        if now - self._begun >= PERIOD_S:
            self._begun = now
            self._thread = threading.Thread(target=self._try, name="disk probe", daemon=True)
            self._thread.start()
        return 0.0

    def _try(self) -> None:
        with suppress(OSError):  # full, read-only or removed: it responds, and the next writer reports the error
            self._write(self._folder)
