"""The thread that asks all workers for their status while a run lasts."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from rlrun.controller.workers import Workers
from rlrun.observability.console import Console
from rlrun.observability.trends import MemoryGrowth, Stragglers
from rlrun.system.telemetry import Telemetry
from rlrun.training.stop_signal import StopSignal
from rlrun.watchdog.watchdog import Watchdog

if TYPE_CHECKING:
    pass
from rlrun.training.phases import Phases

_POLL_S = 1.0
_MAX_SHARE = 0.1  # largest share of the driver's time for these requests, for any number of workers


class StatusWatcher:
    """A thread that runs from its construction to `close`."""

    def __init__(
        self,
        workers: Workers,
        driver: Telemetry,
        phases: Phases,
        console: Console,
        watchdog: Watchdog,
        stop: StopSignal,
        memory: MemoryGrowth,
    ):
        self._workers = workers
        self._driver = driver
        self._phases = phases
        self._console = console
        self._watchdog = watchdog
        self._stop = stop
        self._memory = memory
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watcher", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread."""
        self._is_over.set()
        self._thread.join(timeout=10 * _POLL_S)

    def _run(self) -> None:
        pause_s = 0.0
        stragglers = Stragglers()
        while not self._is_over.wait(pause_s):
            began = time.thread_time()  # CPU time, so without the wait for answers
            self._stop.announce(self._console.note)
            statuses = self._workers.statuses()
            goal = self._phases.goal
            self._phases.counters.put(statuses)
            everyone = [self._driver.status(), *statuses]
            self._memory.put(everyone)
            for sentence in stragglers.sentences(statuses):
                self._console.warning(sentence)
            self._console.workers(everyone, self._watchdog.expectations())
            if goal is not None:
                done = self._phases.counters.total(goal.counter) - goal.start
                self._console.progress(goal.phase, min(goal.total, done), goal.total)
            pause_s = max(_POLL_S, (time.thread_time() - began) / _MAX_SHARE)
