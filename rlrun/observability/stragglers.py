"""Finds the worker that takes much longer for the same work than its peers, and so holds up all of them."""

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
_WORK = {"env": ("simulated_us", "chunk_steps"), "rollout": ("acted_us", "chunks")}  # role -> time and units of work


class Stragglers:
    """Compares the counters of workers over the last minute.

    Example::

        stragglers = Stragglers()
        for sentence in stragglers.found(workers.statuses()): console.warning(sentence)   # about once a second
    """

    def __init__(self) -> None:
        self._seen: deque[tuple[float, dict[str, tuple[int, int, int]]]] = deque()  # (s, worker -> pid, µs, units)
        self._said: dict[str, float] = {}

    def found(self, statuses: Iterable[WorkerStatus], now: float | None = None) -> Iterator[str]:
        """Yield a sentence for each straggler. now: monotonic seconds; None: the present."""
        now = time.monotonic() if now is None else now
        self._seen.append((now, {one.worker: (one.pid, *_work(one)) for one in statuses}))
        while len(self._seen) > 1 and self._seen[1][0] <= now - WINDOW_S:
            self._seen.popleft()
        since, before = self._seen[0]
        if now - since < WINDOW_S:
            return
        took = {role: dict(self._took(role, before)) for role in _WORK}
        for role, by_worker in took.items():
            for worker, (busy_us, units) in by_worker.items():
                peers = [us / count for peer, (us, count) in by_worker.items() if peer != worker]
                if not peers or busy_us < _BUSY * 1e6 * (now - since):
                    continue
                usual = statistics.median(peers)
                is_known = now - self._said.get(worker, -_AGAIN_S) < _AGAIN_S
                if busy_us / units < TIMES * max(usual, 1.0) or is_known:
                    continue
                self._said[worker] = now
                unit = "chunk step" if role == "env" else "answer of a row"
                yield (
                    f"{worker} takes {busy_us / units / 1000:.3g} ms for a {unit}, its peers {usual / 1000:.3g} ms, in "
                    f"the last {now - since:.0f} s: they wait for it; compare its node (clocks, load, GPU) with theirs"
                )

    def _took(self, role: str, before: dict[str, tuple[int, int, int]]) -> Iterator[tuple[str, tuple[int, int]]]:
        """Yield (worker, (microseconds, units)) of the window, for processes that worked and lived through it."""
        for worker, (pid, us, units) in self._seen[-1][1].items():
            then = before.get(worker)
            if worker.startswith(f"{role}/") and then is not None and then[0] == pid and units > then[2]:
                yield worker, (us - then[1], units - then[2])


def _work(status: WorkerStatus) -> tuple[int, int]:
    names = _WORK.get(status.worker.partition("/")[0])
    return (0, 0) if names is None else (status.counters.get(names[0], 0), status.counters.get(names[1], 0))
