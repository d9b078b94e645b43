"""Where the time of a training step goes, and the time between two steps."""

from __future__ import annotations

import time
from collections import defaultdict

IN_STEP = ("sync_s", "collect_s", "update_s")  # waited for within a step
BETWEEN = ("evaluate_s", "save_s")  # since the step before


class StepClock:
    """Seconds by metric.

    Example::

        clock.start()
        clock.add("update_s", 1.2)
        clock.stop()     # {"sync_s": 0.0, "collect_s": 0.0, "update_s": 1.2, …, "step_s": 3.4}
    """

    def __init__(self) -> None:
        self.interval = (0.0, 0.0)  # start and end of the last step, seconds of time.time()
        self._started = (0.0, 0.0)  # time.time() and time.monotonic()
        self._seconds: defaultdict[str, float] = defaultdict(float)

    def start(self) -> None:
        """A step begins."""
        self._started = time.time(), time.monotonic()
        for name in IN_STEP:
            self._seconds[name] = 0.0

    def add(self, name: str, seconds: float) -> None:
        """Part of the step, or of the time between two."""
        self._seconds[name] += seconds

    def stop(self) -> dict[str, float]:
        """The step is over; returns the metrics of its time."""
        started_s, started = self._started
        self.interval = started_s, time.time()
        seconds = {name: self._seconds[name] for name in (*IN_STEP, *BETWEEN)}
        self._seconds.clear()
        return seconds | {"step_s": time.monotonic() - started}
