"""What the workers have counted, over rounds that one of them missed and over processes that were replaced."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from rlrun.data.messages import WorkerStatus


class CounterBook:
    """Sums that never fall: who misses a round keeps his last number, who starts anew adds to it.

    Example::

        book = CounterBook()
        book.put(processes.statuses())
        book.total("env/chunk_steps")     # of all env workers; "actor/0/imitation_steps": of one
    """

    def __init__(self) -> None:
        self._last: dict[str, dict[str, int]] = {}
        self._earlier: Counter[tuple[str, str]] = Counter()  # of processes that are gone

    def put(self, statuses: Iterable[WorkerStatus]) -> None:
        """The answers of one round."""
        for status in statuses:
            for name, count in self._last.get(status.worker, {}).items():
                if status.counters.get(name, 0) < count:
                    self._earlier[status.worker, name] += count
            self._last[status.worker] = dict(status.counters)

    def total(self, counter: str) -> int:
        """`counter` is "role/name", summed over a role's workers, or "role/rank/name"."""
        whose, name = counter.rsplit("/", 1)
        workers = [worker for worker in list(self._last) if f"{worker}/".startswith(f"{whose}/")]
        return sum(self._last[worker].get(name, 0) + self._earlier[worker, name] for worker in workers)
