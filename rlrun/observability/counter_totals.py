"""Totals of the workers' counters, also over missed statuses and replaced processes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from rlrun.data.messages import WorkerStatus


class CounterTotals:
    """Totals that never fall: a worker without a new status keeps its count, a new process adds to the old one's.

    Example::

        totals = CounterTotals()
        totals.put(processes.statuses())
        totals.total("env/chunk_steps")     # all env workers; "actor/0/imitation_steps": one worker
    """

    def __init__(self) -> None:
        self._last: dict[str, dict[str, int]] = {}
        self._earlier: Counter[tuple[str, str]] = Counter()  # from processes that are gone

    def put(self, statuses: Iterable[WorkerStatus]) -> None:
        """Add the statuses of one round of polling."""
        for status in statuses:
            for name, count in self._last.get(status.worker, {}).items():
                if status.counters.get(name, 0) < count:
                    self._earlier[status.worker, name] += count
            self._last[status.worker] = dict(status.counters)

    def total(self, counter: str) -> int:
        """Return a total. `counter` is "role/name", which sums over the role's workers, or "role/rank/name"."""
        whose, name = counter.rsplit("/", 1)
        workers = [worker for worker in list(self._last) if f"{worker}/".startswith(f"{whose}/")]
        return sum(self._last[worker].get(name, 0) + self._earlier[worker, name] for worker in workers)
