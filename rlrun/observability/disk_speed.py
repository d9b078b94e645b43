"""Tells of a disk that is slow or hangs, while it is waited for; says so before it touches that disk itself."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

PATIENCE_S = 10.0  # nothing is said of what takes less
MANY_TIMES = 3.0  # as long as usual is worth a word
SLOWEST_BYTES_PER_S = 20e6  # of a disk that does its work: a busy file server or hard disk still writes so fast
_BRIEF_S = 5.0  # a save that takes less is no nuisance, however small it is
_POOR_BYTES_PER_S = 5e6


class DiskSpeed:
    """Watches over writes of known size to one folder.

    Example::

        disk = DiskSpeed(run_dir, console.warning)
        with disk.watched("checkpoint of step 3", expected_bytes=4e6, usual_s=None):
            save()
        disk.judge("checkpoint of step 3", num_bytes=4e6, seconds=41.0)
    """

    def __init__(self, folder: Path, say: Callable[[str], None]):
        self._folder, self._say = folder, say
        self._is_told = False  # that this disk is slow; once is enough

    @contextmanager
    def watched(self, what: str, expected_bytes: float, usual_s: float | None) -> Iterator[None]:
        """Say so, once, if what happens inside takes too long.

        usual_s: the longest time it has taken; None: it is the first, and its size alone tells what it may need.
        """
        limit_s = patience_s(expected_bytes, usual_s)
        timer = threading.Timer(limit_s, self._late, (what, expected_bytes, limit_s))
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def judge(self, what: str, num_bytes: float, seconds: float) -> None:
        """Say so, once a run, if a write that is over was far slower than disks are."""
        if self._is_told or seconds < max(_BRIEF_S, num_bytes / _POOR_BYTES_PER_S):
            return
        self._is_told = True
        self._say(
            f"{what}: {seconds:.1f} s for {num_bytes / 1e6:.1f} MB: the disk of {self._folder} is slow, and training "
            "waits for it; save more rarely (checkpoint.every_steps), or set output_dir to another disk"
        )

    def _late(self, what: str, num_bytes: float, seconds: float) -> None:
        size = f" for about {num_bytes / 1e6:.0f} MB" if num_bytes else ""
        self._say(f"{what}: {seconds:.0f} s so far{size}: is the disk of {self._folder} slow, or does it hang?")


def patience_s(expected_bytes: float, usual_s: float | None) -> float:
    """How long a write may take before it is told. Example: patience_s(4e9, None) == 200."""
    by_size = expected_bytes / SLOWEST_BYTES_PER_S
    return max(PATIENCE_S, by_size if usual_s is None else min(by_size, MANY_TIMES * usual_s))


def folder_bytes(folder: Path) -> int:
    """Of all files below; 0 where it cannot be read."""
    try:
        return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    except OSError:
        return 0
