"""Silence, the time that a worker has made no progress, and samples of it by phase."""

from __future__ import annotations

import math
import time

FIRST = ", first"  # marks the first time of a phase in a process: imports, compilation, allocation
INTERVAL_S = 2.0  # between two samples of a phase; a reader that polls once a second sees all of them


class Silence:
    """Measures silences, each of which ends with progress. The caller holds a lock around every call.

    Example::

        silence = Silence()
        silence.end("act")      # 3 s after it was made
        silence.finish("act")   # the next "act" is not the first
        silence.samples()       # {"act, first": (1, 3.0)}
    """

    def __init__(self) -> None:
        self._since = time.monotonic()
        self._open: dict[str, tuple[float, float]] = {}  # phase -> time of its last sample, longest silence since
        self._samples: dict[str, tuple[int, float]] = {}
        self._finished: set[str] = set()

    @property
    def seconds(self) -> float:
        """Length of the current silence."""
        return time.monotonic() - self._since

    def end(self, phase: str | None) -> None:
        """End the current silence. phase: what the worker did during it; None if it was idle or waited for others."""
        now = time.monotonic()
        if phase is not None:
            self._add(phase if phase in self._finished else phase + FIRST, now - self._since, now)
        self._since = now

    def _add(self, key: str, seconds: float, now: float) -> None:
        """Take a sample if INTERVAL_S has passed since the last one; else keep the longest silence for the next."""
        taken, longest = self._open.get(key, (-math.inf, 0.0))
        longest = max(longest, seconds)
        if now - taken < INTERVAL_S:
            self._open[key] = (taken, longest)
            return
        count, _ = self._samples.get(key, (0, 0.0))
        self._samples[key] = (count + 1, longest)
        self._open[key] = (now, 0.0)

    def finish(self, phase: str) -> None:
        """Mark the end of a phase."""
        self._finished.add(phase)

    def is_first(self, phase: str) -> bool:
        """Return whether this process has not finished the phase yet."""
        return phase not in self._finished

    def samples(self) -> dict[str, tuple[int, float]]:
        """Return phase -> number of samples taken, and the last one: the longest silence since the one before.

        First times count as phases of their own. Example: {"load, first": (1, 4.1), "simulate": (12, 0.2)}.
        """
        return dict(self._samples)
