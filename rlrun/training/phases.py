"""Phases of a run, with their durations and their lines on the console."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rlrun.observability.console import Console
from rlrun.system.run_lock import RunLock
from rlrun.system.telemetry import CounterTotals, Telemetry
from rlrun.watchdog.watchdog import Watchdog

if TYPE_CHECKING:
    pass


@dataclass
class Stopwatch:
    """The duration of a phase that has ended, in seconds; it excludes the time in which the driver was suspended."""

    seconds: float = 0.0


@dataclass(frozen=True)
class Goal:
    """The goal of a phase, as a worker's counter. Example: Goal("collect", "env/chunk_steps", 640, 128)."""

    phase: str
    counter: str
    start: int  # value of the counter when the phase began
    total: int  # growth of the counter in the whole phase


class Phases:
    """Opens one phase of the driver after another."""

    def __init__(self, driver: Telemetry, lock: RunLock, console: Console, watchdog: Watchdog):
        self._driver = driver
        self._lock = lock
        self._console = console
        self._watchdog = watchdog
        self._clock = watchdog.clock.seconds
        self.counters = CounterTotals()
        self.goal: Goal | None = None  # of the open phase
        self._seconds: defaultdict[str, float] = defaultdict(float)

    @contextmanager
    def phase(self, name: str, counter: str | None = None, total: int = 0) -> Iterator[Stopwatch]:
        """Show and time a phase of the run.

        counter: shows the progress of the phase, by its growth to `total`: "env/chunk_steps" is summed over a role's
        workers, "actor/0/imitation_steps" is of one worker. Raises RunError if another run has taken the run folder.
        """
        self._lock.require()
        watch = Stopwatch()
        began = self._clock()
        num_disturbances = self._watchdog.num_disturbances
        if counter is not None:
            self._console.begin(name, total)
            self.goal = Goal(name, counter, self.counters.total(counter), total)
        try:
            with self._driver.span(name):
                yield watch
        finally:
            watch.seconds = self._clock() - began
            self._seconds[name] += watch.seconds
            self.goal = None
        self._watchdog.learn_phase(name, watch.seconds, num_disturbances)
        if counter is not None:
            self._console.progress(name, total, total)

    def drain(self) -> defaultdict[str, float]:
        """Return the seconds by phase since the last call; 0 for phases that did not occur."""
        seconds = self._seconds
        self._seconds = defaultdict(float)
        return seconds
