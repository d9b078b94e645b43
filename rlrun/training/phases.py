"""The phases of a run: shown, timed, and watched while they last."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rlrun.observability.counter_totals import CounterTotals
from rlrun.observability.live.console import Console
from rlrun.observability.telemetry import Telemetry
from rlrun.system.run_lock import RunLock
from rlrun.watchdog.watchdog import Watchdog


@dataclass
class Stopwatch:
    """Seconds that a phase took, once it is over."""

    start: float = field(default_factory=time.monotonic)
    seconds: float = 0.0


@dataclass(frozen=True)
class Goal:
    """What the workers count towards in a phase. Example: Goal("collect", "env/chunk_steps", 640, 128)."""

    phase: str
    counter: str
    start: int  # of the counter when the phase began
    total: int  # that it grows by


class Phases:
    """Opens one phase of the driver after another."""

    def __init__(self, driver: Telemetry, lock: RunLock, console: Console, watchdog: Watchdog):
        self._driver, self._lock, self._console, self._watchdog = driver, lock, console, watchdog
        self.counters = CounterTotals()
        self.goal: Goal | None = None  # of the open phase

    @contextmanager
    def phase(self, name: str, counter: str | None = None, total: int = 0) -> Iterator[Stopwatch]:
        """Show and time what the run does now.

        counter: "env/chunk_steps", summed over a role's workers, or "actor/0/imitation_steps", of one worker, whose
        growth by `total` is the progress of the phase. Raises RunError where another run has taken the run folder.
        """
        self._lock.require()
        watch, num_disturbances = Stopwatch(), self._watchdog.num_disturbances
        if counter is not None:
            self._console.begin(name, total)
            self.goal = Goal(name, counter, self.counters.total(counter), total)
        try:
            with self._driver.span(name):
                yield watch
        finally:
            watch.seconds = time.monotonic() - watch.start
            self.goal = None
        self._watchdog.learn_phase(name, watch.seconds, num_disturbances)
        if counter is not None:
            self._console.progress(name, total, total)
