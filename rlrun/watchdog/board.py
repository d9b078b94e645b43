"""The board on the head: what every worker told last, and who has stopped telling."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable

from rlrun.data.messages import WorkerStatus
from rlrun.watchdog.wait_graph import Process

SILENT_S = 5.0  # a worker that told nothing for so long, though asked at least twice, does not answer


class Board:
    """Thread-safe. `put` with what one round of asking brought; `processes` for what follows from it.

    Example::

        board = Board()
        board.put(processes.statuses())
        board.processes()["env/1"].silence_s
    """

    def __init__(self, seconds: Callable[[], float] = time.monotonic) -> None:
        """seconds: a clock, which may stand still while nobody looks."""
        self._seconds = seconds
        self._lock = threading.Lock()
        self._last: dict[str, tuple[WorkerStatus, float]] = {}  # with the time at which it came
        self._misses: dict[str, int] = {}
        self._makers: dict[str, tuple[str, ...]] = {}
        self._asked = 0.0
        self.num_forgotten = 0

    def put(self, statuses: Iterable[WorkerStatus]) -> None:
        """The answers of one round. Who is not among them has missed it."""
        now = self._seconds()
        with self._lock:
            self._asked = now
            self._misses = {worker: count + 1 for worker, count in self._misses.items()}
            for status in statuses:
                self._last[status.worker] = (status, now)
                self._misses[status.worker] = 0

    def expected(self, worker: str, makers: tuple[str, ...]) -> None:
        """A worker's answer is waited for; what it takes comes from these workers."""
        with self._lock:
            self._makers[worker] = makers

    @property
    def age_s(self) -> float:
        """Since the last round."""
        with self._lock:
            return self._seconds() - self._asked

    def forget(self, worker: str) -> None:
        """The process is gone, and another may come under its name."""
        with self._lock:
            self.num_forgotten += 1
            self._last.pop(worker, None)
            self._misses.pop(worker, None)

    def statuses(self) -> dict[str, WorkerStatus]:
        """By worker, as told last."""
        with self._lock:
            return {worker: status for worker, (status, _) in self._last.items()}

    def processes(self) -> dict[str, Process]:
        """Every worker that ever told something, as it stands now."""
        now = self._seconds()
        with self._lock:
            return {
                worker: Process(
                    worker,
                    status.host,
                    status.pid,
                    status.phase,
                    status.is_first,
                    status.silence_s + now - came,
                    status.waits,
                    not (self._misses[worker] >= 2 and now - came > SILENT_S),
                    now - came,
                    status.load,
                    self._makers.get(worker, ()),
                )
                for worker, (status, came) in self._last.items()
            }
