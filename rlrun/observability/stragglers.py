"""Finds workers that take much longer for the same work than their peers, or than at first, and so hold up all."""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Iterable, Iterator

from rlrun.data.messages import WorkerStatus

WINDOW_S = 60.0
TIMES = 3.0  # of the peers' median time for a unit of work
_BUSY = 0.3  # share of the window; a slow worker that hardly works holds up nobody
_AGAIN_S = 600.0  # between two sentences on one worker
_FIRST = 3  # minutes of a worker that later ones are compared with
_UNITS = {"env": "chunk step", "rollout": "row of an answer"}
_WORK = {"env": ("simulated_us", "chunk_steps"), "rollout": ("acted_us", "chunks")}  # role -> time and units of work


class Stragglers:
    """Compares the counters of workers over the last minute, with their peers' and with their own first minutes.

    Example::

        stragglers = Stragglers()
        for sentence in stragglers.found(workers.statuses()): console.warning(sentence)   # about once a second
    """

    def __init__(self) -> None:
        self._seen: deque[tuple[float, dict[str, tuple[int, int, int]]]] = deque()  # (s, worker -> pid, µs, units)
        self._said: dict[str, float] = {}
        self._first: dict[tuple[str, int], list[float]] = {}  # (worker, pid) -> µs for a unit, in its first minutes
        self._minute_ends = 0.0

    def found(self, statuses: Iterable[WorkerStatus], now: float | None = None) -> Iterator[str]:
        """Yield a sentence for each straggler. now: monotonic seconds; None: the present."""
        now = time.monotonic() if now is None else now
        self._seen.append((now, {one.worker: (one.pid, *_work(one)) for one in statuses}))
        while len(self._seen) > 1 and self._seen[1][0] <= now - WINDOW_S:
            self._seen.popleft()
        since, before = self._seen[0]
        if now - since < WINDOW_S:
            return
        is_minute_over = now >= self._minute_ends
        if is_minute_over:
            self._minute_ends = now + WINDOW_S
        for role in _WORK:
            took = dict(self._took(role, before))
            for worker, (busy_us, units) in took.items():
                first = self._first.setdefault((worker, self._seen[-1][1][worker][0]), [])
                if is_minute_over and len(first) < _FIRST:
                    first.append(busy_us / units)
                is_busy = busy_us >= _BUSY * 1e6 * (now - since)
                if not is_busy or now - self._said.get(worker, -_AGAIN_S) < _AGAIN_S:
                    continue
                peers = [us / count for peer, (us, count) in took.items() if peer != worker]
                text = _sentence(worker, _UNITS[role], busy_us / units, peers, first, now - since)
                if text:
                    self._said[worker] = now
                    yield text

    def _took(self, role: str, before: dict[str, tuple[int, int, int]]) -> Iterator[tuple[str, tuple[int, int]]]:
        """Yield (worker, (microseconds, units)) of the window, for processes that worked and lived through it."""
        for worker, (pid, us, units) in self._seen[-1][1].items():
            then = before.get(worker)
            if worker.startswith(f"{role}/") and then is not None and then[0] == pid and units > then[2]:
                yield worker, (us - then[1], units - then[2])


def _sentence(
    worker: str, unit: str, mine: float, peers: list[float], first: list[float], window_s: float
) -> str | None:
    """Return what is wrong with the time for a unit of work; all times are microseconds."""
    here = f"{worker} takes {mine / 1000:.3g} ms for a {unit}"
    if peers and mine >= TIMES * max(usual := statistics.median(peers), 1.0):
        return (
            f"{here}, its peers {usual / 1000:.3g} ms, in the last {window_s:.0f} s: they wait for it; compare its "
            "node (clocks, load, GPU) with theirs"
        )
    if len(first) == _FIRST and mine >= TIMES * max(usual := statistics.median(first), 1.0):
        return (
            f"{here} in the last {window_s:.0f} s, and took {usual / 1000:.3g} ms in its first minutes: it grows "
            "slower; look at its memory, and at the load and clocks of its node"
        )
    return None


def _work(status: WorkerStatus) -> tuple[int, int]:
    names = _WORK.get(status.worker.partition("/")[0])
    return (0, 0) if names is None else (status.counters.get(names[0], 0), status.counters.get(names[1], 0))
