"""The board on the driver: the last status of every worker, and which workers have stopped answering."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from rlrun.data.messages import WorkerStatus
from rlrun.watchdog.wait_graph import IDLE, Incoming, Process

UNRESPONSIVE_S = 5.0  # without a status, though asked at least twice


class Board:
    """The last status of every worker; thread-safe. Each round of polling is stored with `put`.

    Example::

        board = Board()
        board.put(processes.statuses())
        board.processes()["env/1"].silence_s
    """

    def __init__(self, seconds: Callable[[], float] = time.monotonic) -> None:
        """seconds: the clock, which may exclude pauses of the driver."""
        self._seconds = seconds
        self._lock = threading.Lock()
        self._last: dict[str, tuple[WorkerStatus, float]] = {}  # with the time of its arrival
        self._misses: dict[str, int] = {}
        self._producers: dict[str, tuple[str, ...]] = {}
        self._incoming: Mapping[str, Incoming] = {}
        self._asked = 0.0
        self.num_forgotten = 0

    def put(self, statuses: Iterable[WorkerStatus]) -> None:
        """Store the answers of one round of polling. Workers without a status among them have missed the round."""
        now = self._seconds()
        with self._lock:
            self._asked = now
            self._misses = {worker: count + 1 for worker, count in self._misses.items()}
            for status in statuses:
                self._last[status.worker] = (status, now)
                self._misses[status.worker] = 0

    def expect(self, worker: str, producers: tuple[str, ...]) -> None:
        """Record that a request was sent to a worker, whose arguments come from `producers`."""
        with self._lock:
            self._producers[worker] = producers

    def expect_data(self, incoming: Mapping[str, Incoming]) -> None:
        """Record which workers wait for arguments that have not reached their nodes; all others do not.

        Such a worker answers nothing, since Ray delivers requests in their order.
        """
        now = self._seconds()
        with self._lock:
            for worker in self._incoming.keys() - incoming.keys():
                if worker in self._last:  # it could not answer before, so that its silence begins now
                    self._last[worker] = (replace(self._last[worker][0], silence_s=0.0), now)
                    self._misses[worker] = 0
            self._incoming = dict(incoming)

    @property
    def age_s(self) -> float:
        """Seconds since the last round."""
        with self._lock:
            return self._seconds() - self._asked

    def forget(self, worker: str) -> None:
        """Forget a worker whose process is gone; a replacement may appear under its name."""
        with self._lock:
            self.num_forgotten += 1
            self._last.pop(worker, None)
            self._misses.pop(worker, None)

    def statuses(self) -> dict[str, WorkerStatus]:
        """Return the last status of every worker."""
        with self._lock:
            return {worker: status for worker, (status, _) in self._last.items()}

    def processes(self) -> dict[str, Process]:
        """Return every worker that has ever answered, as it is now."""
        now = self._seconds()
        with self._lock:
            return {worker: self._process(status, now - came) for worker, (status, came) in self._last.items()}

    def _process(self, status: WorkerStatus, age_s: float) -> Process:
        """Return a worker as it is `age_s` after a status; the lock is held."""
        is_answering = not (self._misses[status.worker] >= 2 and age_s > UNRESPONSIVE_S)
        incoming = self._incoming.get(status.worker)
        if is_answering and status.phase != IDLE:  # it is still busy with an earlier request
            incoming = None
        return Process(
            status.worker,
            status.host,
            status.pid,
            IDLE if incoming else status.phase,
            status.is_first,
            status.silence_s + age_s,
            () if incoming else status.waits,
            is_answering or incoming is not None,
            age_s,
            status.load,
            incoming.producers if incoming else self._producers.get(status.worker, ()),
            incoming,
        )
