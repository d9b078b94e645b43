"""Time for which processes waited for a core, from the scheduler statistics of the kernel.

Linux counts for every thread the time on a run queue (/proc/PID/task/TID/schedstat), also while a control group's quota
throttles it. A thread that waits for a core cannot make progress, so that this time is no sign of a stall.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

_FROM_S = 5.0  # shorter silences are not looked at
_PERIOD_S = 1.0  # between two samples of a process
_MOVED_S = 0.5  # by which a silence must begin later to be another one


def queue_seconds(pids: Iterable[int], with_children: bool = True) -> dict[str, float]:
    """Return the seconds that each thread of these processes has waited for a core, by "pid/tid".

    with_children: also those of their child processes, and of theirs. Empty where the kernel keeps no statistics.
    """
    seconds: dict[str, float] = {}
    for pid in pids:
        for member in (pid, *(descendants(pid) if with_children else ())):
            seconds |= {f"{member}/{thread}": queued_s for thread, (_, queued_s) in _scheduled(member).items()}
    return seconds


def scheduled_seconds(pids: Iterable[int]) -> float:
    """Return the seconds for which processes have computed or waited for a core."""
    return sum(sum(times) for pid in pids for times in _scheduled(pid).values())


def _scheduled(pid: int) -> dict[str, tuple[float, float]]:
    """Return the seconds on a core and on a run queue of each thread of a process."""
    seconds: dict[str, tuple[float, float]] = {}
    with suppress(OSError):  # the process has ended
        for thread in os.listdir(f"/proc/{pid}/task"):
            with suppress(OSError, ValueError, IndexError), open(f"/proc/{pid}/task/{thread}/schedstat") as statistics:
                words = statistics.read().split()
                seconds[thread] = int(words[0]) / 1e9, int(words[1]) / 1e9
    return seconds


def descendants(pid: int) -> Iterator[int]:
    """Yield the child processes of a process, and theirs; none where the kernel lists no children."""
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with suppress(OSError), open(f"/proc/{pid}/task/{thread}/children") as children:
                for child in map(int, children.read().split()):
                    yield child
                    yield from descendants(child)


@dataclass
class _Silence:
    began_s: float
    sampled_s: float
    first: Mapping[str, float]  # the first sample
    first_s: float  # its time
    queued_s: float = 0.0


class QueueTime:
    """The part of a silence for which the silent process waited for a core.

    Example::

        queue_time = QueueTime()
        queue_time.within("env/1", 30.0, now_s, lambda: queue_seconds([pid]))   # 27.5: it could run for 2.5 s
    """

    def __init__(self) -> None:
        self._silences: dict[str, _Silence] = {}

    def within(self, worker: str, silence_s: float, now_s: float, sample: Callable[[], Mapping[str, float]]) -> float:
        """Return the seconds on the run queue within a silence that has lasted `silence_s` at the time `now_s`.

        sample: returns like `queue_seconds`; called once a second after the first 5 s. The longest wait of a thread
        counts, so that a thread that sleeps beside a busy one does not.
        """
        began_s = now_s - silence_s
        known = self._silences.get(worker)
        if silence_s < _FROM_S or (known is not None and began_s > known.began_s + _MOVED_S):
            self._silences.pop(worker, None)
            known = None
        if silence_s < _FROM_S:
            return 0.0
        if known is None:
            self._silences[worker] = _Silence(began_s, now_s, sample(), now_s)
            return 0.0
        if now_s - known.sampled_s >= _PERIOD_S:
            known.sampled_s = now_s
            grown = (seconds - known.first.get(thread, 0.0) for thread, seconds in sample().items())
            longest_s = max(grown, default=0.0)
            known.queued_s = max(known.queued_s, min(longest_s, now_s - known.first_s))
        return known.queued_s
