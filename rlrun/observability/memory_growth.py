"""Host memory of every role as metrics, its slope, and a warning before a worker that grows has filled its node."""

from __future__ import annotations

import threading
import time
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median

from rlrun.data.messages import WorkerStatus
from rlrun.observability.live.step_line import duration

SETTLING_STEPS, SETTLING_S = 10, 60.0  # caches and buffers of a new process grow meanwhile
LEAST_STEPS = 20  # further ones, before a growth is called steady
_KEPT = 120  # steps
_FAR = 3  # pairs of steps that are at least this part of the series apart judge whether a growth is steady
_STEADY = 0.1  # share of those pairs that may show no growth
_MOST_POINTS = 400  # for a slope; more are thinned out
_NOTEWORTHY = 0.05  # share of the fastest growth of a node
_AGAIN = 0.5  # a node is warned of again when the time that is left has fallen to this share


@dataclass
class _Worker:
    """Memory of one process, by step."""

    pid: int
    host: str
    peak: int = 0  # since the last step, bytes; 0: no status came
    latest: int = 0  # the last one that is known
    num_steps: int = 0  # since the process was first seen
    first_seen: float = field(default_factory=time.monotonic)
    points: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=_KEPT))  # step, bytes

    @property
    def has_settled(self) -> bool:
        return self.num_steps > SETTLING_STEPS and time.monotonic() - self.first_seen >= SETTLING_S


class MemoryGrowth:
    """Collects statuses, from any thread; asks nobody.

    Example::

        memory = MemoryGrowth()
        memory.put(statuses)                # about once a second
        memory.end_step(7)                  # {"memory_env": 182.0, "memory_free": 3100.0}, in MB
        memory.warnings(7, 100, 3.1)        # ["env/1 grows by 35 MB a step: node vm will be full in about 40:12 …"]
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._workers: dict[str, _Worker] = {}
        self._free: dict[str, int] = {}  # host -> least since the last step, bytes
        self._latest_free: dict[str, int] = {}  # host -> least in the last step with a status
        self._told_s: dict[str, float] = {}  # host -> time that was left at its last warning

    def put(self, statuses: Iterable[WorkerStatus]) -> None:
        """Take what workers use now, and what is free on their nodes."""
        with self._lock:
            for status in statuses:
                worker = self._workers.get(status.worker)
                if worker is None or (worker.pid, worker.host) != (status.pid, status.host):
                    worker = self._workers[status.worker] = _Worker(status.pid, status.host)
                worker.peak = max(worker.peak, status.host_memory_bytes)
                self._free[status.host] = min(
                    self._free.get(status.host, status.host_free_bytes), status.host_free_bytes
                )

    def end_step(self, step: int) -> dict[str, float]:
        """Return, in MB, the most memory of a worker of each role since the last step, and the least that was free.

        Steps may be shorter than the time between two statuses: the last values stay.
        """
        with self._lock:
            found: dict[str, float] = {}
            for name, worker in self._workers.items():
                worker.num_steps += 1
                if worker.peak and worker.has_settled:
                    worker.points.append((step, worker.peak))
                worker.latest, worker.peak = worker.peak or worker.latest, 0
                key = f"memory_{name.partition('/')[0]}"
                found[key] = max(found.get(key, 0.0), worker.latest / 1e6)
            self._latest_free, self._free = self._free or self._latest_free, {}
            if self._latest_free:
                found["memory_free"] = min(self._latest_free.values()) / 1e6
            return found

    def warnings(self, step: int, num_steps: int, step_s: float) -> list[str]:
        """Return a sentence on each node that will be full before the run ends, once in a while.

        step: training steps done, of `num_steps`. step_s: usual duration of a step.
        """
        with self._lock:
            growing: dict[str, dict[int, tuple[float, str]]] = defaultdict(dict)  # host -> pid -> bytes a step, worker
            for name, worker in self._workers.items():
                slope = steady_slope(list(worker.points))
                if slope > 0:
                    growing[worker.host][worker.pid] = (slope, name)
            sentences = [
                self._sentence(host, list(found.values()), step_s, num_steps - step) for host, found in growing.items()
            ]
        return [sentence for sentence in sentences if sentence]

    def _sentence(self, host: str, growing: Sequence[tuple[float, str]], step_s: float, steps_left: int) -> str:
        growing = [one for one in growing if one[0] >= _NOTEWORTHY * max(growing)[0]]
        total = sum(slope for slope, _ in growing)
        left = self._latest_free.get(host, 0) / total  # steps
        left_s = left * step_s
        if left > steps_left or left_s > _AGAIN * self._told_s.get(host, float("inf")):
            return ""
        self._told_s[host] = left_s
        slope, worker = max(growing)
        others = f" ({len(growing)} workers there by {total / 1e6:.3g} MB)" if len(growing) > 1 else ""
        return (
            f"{worker} grows by {slope / 1e6:.3g} MB a step{others}: node {host} will be full in about "
            f"{duration(left_s)}, {left:.0f} steps"
        )


def slope_of(points: Sequence[tuple[float, float]]) -> float:
    """Return the Theil-Sen slope, the median over pairs, which single outliers do not move; 0 for less than two."""
    thinned = points[:: -(-len(points) // _MOST_POINTS) or 1]
    slopes = _slopes(thinned, 1)
    return median(slopes) if slopes else 0.0


def steady_slope(points: Sequence[tuple[float, float]]) -> float:
    """Return `slope_of` if nearly all pairs of distant steps show growth; 0 for a jump, for noise, for few points."""
    if len(points) < LEAST_STEPS:
        return 0.0
    distant = sorted(_slopes(points, len(points) // _FAR))
    return slope_of(points) if distant[int(_STEADY * len(distant))] > 0 else 0.0


def _slopes(points: Sequence[tuple[float, float]], apart: int) -> list[float]:
    return [
        (after - before) / (later - earlier)
        for i, (earlier, before) in enumerate(points)
        for later, after in points[i + apart :]
        if later > earlier
    ]
