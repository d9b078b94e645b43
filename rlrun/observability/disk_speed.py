"""Warnings about a disk that is slow or hangs, during a write and after it; printed before the disk is used again."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rlrun.system.machine_load import idle_core_seconds, is_throttled

MIN_REPORT_S = 10.0  # a shorter write is not reported
USUAL_FACTOR = 3.0  # a write is reported after this many times its usual duration
SLOWEST_BYTES_PER_S = 20e6  # speed of a busy file server or hard disk
_MIN_SLOW_S = 5.0  # a shorter write does not count as slow
_SLOW_BYTES_PER_S = 5e6
_MAX_PROBE_BYTES = 16e6
_DISKS_SHARE = 0.5  # least share of a slow write's time that the disk must account for
_QUICK_WRITE_S = 2.0  # for a file of one byte
_MIN_IDLE_CORES = 0.25  # a host with fewer idle ones was busy: its writers wait for a core
_PAUSE_S = 5.0


class DiskSpeed:
    """Monitor of writes of known size to one folder. The disk is probed, to tell a slow disk from a busy processor.

    Example::

        disk = DiskSpeed(run_dir, console.warning)
        with disk.watched("checkpoint of step 3", expected_bytes=4e6, usual_s=None):
            save()
        disk.check_write("checkpoint of step 3", num_bytes=4e6, seconds=41.0, try_disk=controller.try_disk)
    """

    def __init__(self, folder: Path, warn: Callable[[str], None]):
        """warn: receives a sentence about a slow disk, in a separate thread."""
        self._folder = folder
        self._warn = warn
        self._is_reported = False  # a slow disk is reported once

    @contextmanager
    def watched(self, what: str, expected_bytes: float, usual_s: float | None) -> Iterator[None]:
        """Warn once if the write inside takes too long.

        expected_bytes: its size; 0 if unknown. usual_s: the longest time it has taken; None for the first write,
        whose limit follows from its size alone.
        """
        limit_s = write_limit_s(expected_bytes, usual_s)
        timer = threading.Timer(
            limit_s, self._late, (what, expected_bytes, limit_s, time.monotonic(), idle_core_seconds())
        )
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def check_write(self, what: str, num_bytes: float, seconds: float, try_disk: Callable[[str, int], float]) -> None:
        """Warn once a run if a finished write was unusually slow because of its disk.

        try_disk: takes a folder and a number of bytes; returns the seconds in which the writer flushes that many.
        """
        if self._is_reported or seconds < max(_MIN_SLOW_S, num_bytes / _SLOW_BYTES_PER_S):
            return
        num_tried = int(min(num_bytes, _MAX_PROBE_BYTES))
        if try_disk(str(self._folder), num_tried) < _DISKS_SHARE * seconds * num_tried / max(1.0, num_bytes):
            return
        self._is_reported = True
        self._warn(
            f"{what}: {seconds:.1f} s for {num_bytes / 1e6:.1f} MB: the disk of {self._folder} is slow, and training "
            "waits for it; save more rarely (checkpoint.every_steps), or set output_dir to another disk"
        )

    def _late(self, what: str, num_bytes: float, limit_s: float, began: float, idle_began: float) -> None:
        seconds = time.monotonic() - began
        if seconds > limit_s + _PAUSE_S:
            return  # this process was stopped meanwhile
        if _was_busy(idle_core_seconds() - idle_began, seconds) and _is_quick(self._folder):
            return  # the writers wait for a core; `check_write` measures the disk afterwards
        size = f" for about {num_bytes / 1e6:.0f} MB" if num_bytes else ""
        self._warn(f"{what}: {limit_s:.0f} s so far{size}: is the disk of {self._folder} slow, or does it hang?")


def flush_seconds(folder: Path, num_bytes: int) -> float:
    """Write and flush a file of `num_bytes` in a folder, and delete it. Returns the seconds; 0 if it cannot be done."""
    began = time.monotonic()
    try:
        with tempfile.TemporaryFile(dir=folder, buffering=0) as probe:
            probe.write(bytes(num_bytes))
            os.fsync(probe.fileno())
    except OSError:  # its next writer reports it
        return 0.0
    return time.monotonic() - began


def _was_busy(idle_s: float, seconds: float) -> bool:
    """Return whether nearly all cores of this host were taken for `seconds`. idle_s: of all cores.

    The load of the last minute would not tell: it is high for a minute after other work has ended.
    """
    return idle_s < _MIN_IDLE_CORES * seconds or is_throttled()


def _is_quick(folder: Path) -> bool:
    """Return whether a small file is written quickly; the probing thread may hang."""
    taken: list[float] = []
    thread = threading.Thread(target=lambda: taken.append(flush_seconds(folder, 1)), name="disk", daemon=True)
    thread.start()
    thread.join(_QUICK_WRITE_S)
    return bool(taken)


def write_limit_s(expected_bytes: float, usual_s: float | None) -> float:
    """Return the duration of a write after which it is reported. Example: write_limit_s(4e9, None) == 200."""
    by_size = expected_bytes / SLOWEST_BYTES_PER_S
    return max(MIN_REPORT_S, by_size if usual_s is None else min(by_size, USUAL_FACTOR * usual_s))


def folder_bytes(folder: Path) -> int:
    """Return the bytes of all files below `folder`; 0 if it cannot be read."""
    try:
        return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    except OSError:
        return 0
