"""Whether the disk of a folder still takes what is written to it: tried now and then, in a thread that may hang."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from rlrun.watchdog.bounded import bounded

PERIOD_S = 2.0


def write_small_file(folder: Path) -> None:
    """Make it there, and remove it; not through to the device, which may have a checkpoint to take. Raises OSError."""
    path = folder / f".disk_probe-{os.getpid()}"
    try:
        path.write_bytes(b"rlrun\n")
    finally:
        path.unlink(missing_ok=True)


def answers(folder: Path, seconds: float) -> bool:
    """Whether its disk takes a small file, or refuses it, within so many seconds."""
    late: list[str] = []
    bounded("disk", lambda: write_small_file(folder), None, late, seconds)
    return late != ["disk"]


class DiskProbe:
    """Of one folder.

    Example::

        probe = DiskProbe(run_dir)
        probe.look()     # 0.0, as long as the disk answers; 12.0: it has not, for 12 s
    """

    def __init__(self, folder: Path, write: Callable[[Path], None] = write_small_file):
        self._folder, self._write = folder, write
        self._thread: threading.Thread | None = None
        self._begun = -PERIOD_S  # monotonic time

    def look(self) -> float:
        """Seconds since what is under way was begun; 0, where nothing is. Begins the next try when it is due."""
        now = time.monotonic()
        if self._thread is not None and self._thread.is_alive():
            return now - self._begun
        if now - self._begun >= PERIOD_S:
            self._begun = now
            self._thread = threading.Thread(target=self._try, name="disk probe", daemon=True)
            self._thread.start()
        return 0.0

    def _try(self) -> None:
        with suppress(OSError):  # full, read-only, or removed: an answer, which whoever writes there tells
            self._write(self._folder)
