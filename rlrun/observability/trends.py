"""Warnings from trends: memory that grows or differs between workers, and stragglers (workers slower than their peers).

A slope is the median over pairs of points (Theil-Sen), which single outliers do not move.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from statistics import median

import numpy as np

from rlrun.observability.step_line import duration
from rlrun.system.machine_load import BUSY_LOAD
from rlrun.system.status import WorkerStatus

# --- memory that grows ----------------------------------------------------------------------

# caches and buffers of a new process grow in this time
SETTLING_STEPS = 10
SETTLING_S = 60.0
MIN_GROWTH_STEPS = 20  # further ones, before a growth is called steady
_REACH = 20  # times the steps in which a growth was seen: what a young run's caches take says nothing of a distant step
_SERIES_STEPS = 120  # steps
_DISTANT_PART = 3  # steady growth is tested on pairs of steps at least a third of the series apart
_MAX_FLAT_SHARE = 0.1  # of those pairs may show no growth
_MAX_SLOPE_POINTS = 400  # for a slope; more are thinned out
_MIN_GROWTH_SHARE = 0.05  # share of the fastest growth of a node
_REPEAT_WARNING_SHARE = 0.5  # a warning is repeated when the remaining time has fallen to this share
OUTLIER_SHARE = 0.1  # of the median of the peers
OUTLIER_BYTES = 500e6  # a smaller difference is noise of allocators
STRAGGLER_WINDOW_S = 60.0
STRAGGLER_FACTOR = 3.0  # of the peers' median times for a unit of work and for a call
_MIN_BUSY_SHARE = 0.3  # of the window; a slow worker that is rarely busy delays no other
_REPEAT_WARNING_S = 600.0  # between two sentences on one worker
_NUM_FIRST_MINUTES = 3  # minutes of a worker that later ones are compared with
_UNIT_NAMES = {"env": "chunk step", "rollout": "row of an answer"}
_WORK_COUNTERS = {
    "env": ("simulated_us", "chunk_steps", "simulations"),
    "rollout": ("acted_us", "chunks", "answers"),
}  # role -> time, units of work, and calls that each did some units together


@dataclass
class _MemorySeries:
    """Memory of one process, by step."""

    pid: int
    host: str
    peak: int = 0  # since the last step, bytes; 0: no status came
    latest: int = 0  # the last one that is known
    num_steps: int = 0  # since the process was first seen
    first_seen: float = field(default_factory=time.monotonic)
    points: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=_SERIES_STEPS))  # step, bytes

    @property
    def has_settled(self) -> bool:
        return self.num_steps > SETTLING_STEPS and time.monotonic() - self.first_seen >= SETTLING_S


class MemoryGrowth:
    """Growth of the workers' memory, from their statuses; any thread may call it.

    Example::

        memory = MemoryGrowth()
        memory.put(statuses)                # about once a second
        memory.end_step(7)                  # {"memory_env": 182.0, "memory_free": 3100.0}, in MB
        memory.warnings(7, 100, 3.1)        # ["env/1 grows by 35 MB a step: node vm will be full in about 40:12 …"]
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._workers: dict[str, _MemorySeries] = {}
        self._free: dict[str, int] = {}  # host -> least since the last step, bytes
        self._latest_free: dict[str, int] = {}  # host of a worker -> least in the last step with a status of that host
        self._told_s: dict[str, float] = {}  # host -> time that was left at its last warning

    def put(self, statuses: Iterable[WorkerStatus]) -> None:
        """Add the memory that workers use now, and that is free on their nodes."""
        with self._lock:
            for status in statuses:
                worker = self._workers.get(status.worker)
                if worker is None or (worker.pid, worker.host) != (status.pid, status.host):
                    worker = self._workers[status.worker] = _MemorySeries(status.pid, status.host)
                worker.peak = max(worker.peak, status.host_memory_bytes)
                if status.host_free_bytes:  # 0: it could not be read
                    least = self._free.get(status.host, status.host_free_bytes)
                    self._free[status.host] = min(least, status.host_free_bytes)

    def end_step(self, step: int) -> dict[str, float]:
        """Return, in MB, the most memory of a worker of each role since the last step, and the least that was free.

        Steps may be shorter than the time between two statuses: the last values stay.
        """
        with self._lock:
            metrics: dict[str, float] = {}
            for name, worker in self._workers.items():
                worker.num_steps += 1
                if worker.peak and worker.has_settled:
                    worker.points.append((step, worker.peak))
                worker.latest = worker.peak or worker.latest
                worker.peak = 0
                key = f"memory_{name.partition('/')[0]}"
                metrics[key] = max(metrics.get(key, 0.0), worker.latest / 1e6)
            hosts = {worker.host for worker in self._workers.values()}
            known = self._latest_free | self._free
            self._latest_free = {host: free for host, free in known.items() if host in hosts}
            self._free = {}
            if self._latest_free:
                metrics["memory_free"] = min(self._latest_free.values()) / 1e6
            return metrics

    def warnings(self, step: int, num_steps: int, step_s: float) -> list[str]:
        """Return a sentence on each node that will be full before the run ends, once in a while.

        step: training steps done, of `num_steps`. step_s: usual duration of a step.
        """
        with self._lock:
            # host -> pid -> bytes a step, steps in which that was seen, worker
            growing: dict[str, dict[int, tuple[float, float, str]]] = defaultdict(dict)
            for name, worker in self._workers.items():
                slope = steady_slope(list(worker.points))
                if slope > 0:
                    growing[worker.host][worker.pid] = (slope, worker.points[-1][0] - worker.points[0][0], name)
            sentences = [
                self._sentence(host, list(rates.values()), step_s, num_steps - step)
                for host, rates in growing.items()
                if host in self._latest_free
            ]
        return [sentence for sentence in sentences if sentence]

    def _sentence(self, host: str, growing: Sequence[tuple[float, float, str]], step_s: float, steps_left: int) -> str:
        growing = [
            worker_growth for worker_growth in growing if worker_growth[0] >= _MIN_GROWTH_SHARE * max(growing)[0]
        ]
        slope, num_seen, worker = max(growing)
        total = sum(each for each, _, _ in growing)
        left = self._latest_free[host] / total  # steps
        left_s = left * step_s
        if host in self._told_s:  # the last warning was wrong, or memory was freed since
            self._told_s[host] = max(self._told_s[host], _REPEAT_WARNING_SHARE * left_s)
        is_far = left > min(steps_left, _REACH * num_seen)
        if is_far or left_s > _REPEAT_WARNING_SHARE * self._told_s.get(host, float("inf")):
            return ""
        self._told_s[host] = left_s
        others = f" ({len(growing)} workers there by {total / 1e6:.3g} MB)" if len(growing) > 1 else ""
        return (
            f"{worker} grows by {slope / 1e6:.3g} MB a step{others}: node {host} will be full in about "
            f"{duration(left_s)}, {left:.0f} steps"
        )


def theil_sen_slope(points: Sequence[tuple[float, float]]) -> float:
    """Return the Theil-Sen slope, the median over pairs; 0 for fewer than two points."""
    thinned = points[:: -(-len(points) // _MAX_SLOPE_POINTS) or 1]
    slopes = _slopes(thinned, 1)
    return float(np.median(slopes)) if len(slopes) else 0.0


def steady_slope(points: Sequence[tuple[float, float]]) -> float:
    """Return the slope of the newer half if nearly all pairs of distant steps show growth; else, or for few points, 0.

    Caches fill ever more slowly, and a leak does not.
    """
    if len(points) < MIN_GROWTH_STEPS:
        return 0.0
    distant = _slopes(points, len(points) // _DISTANT_PART)
    num_flat = np.count_nonzero(distant <= 0)
    is_steady = num_flat <= int(_MAX_FLAT_SHARE * len(distant))
    return theil_sen_slope(points[len(points) // 2 :]) if is_steady else 0.0


def _slopes(points: Sequence[tuple[float, float]], apart: int) -> np.ndarray:
    """Return the slopes of all pairs. Numpy's, since the driver computes them for every worker after each step."""
    x, y = np.array(points, dtype=float).reshape(-1, 2).T
    before, after = _pairs(len(x), apart)
    run = x[after] - x[before]
    rise = y[after] - y[before]
    return rise[run > 0] / run[run > 0]


@lru_cache(maxsize=8)
def _pairs(count: int, apart: int) -> tuple[np.ndarray, np.ndarray]:
    return np.triu_indices(count, apart)


# --- memory that differs between workers ----------------------------------------------------


def free_memory(statuses: Sequence[WorkerStatus]) -> str:
    """Describe the free memory in one line.

    Example: "free device memory 61.2 to 63.0 GB over 8 workers; host memory 700.1 GB on train-0".
    """
    devices = [status.device_free_bytes for status in statuses if status.device_free_bytes is not None]
    hosts = {status.host: status.host_free_bytes for status in statuses}
    parts = []
    if devices:
        parts.append(f"free device memory {_gb(min(devices))} to {_gb(max(devices))} GB over {len(devices)} workers")
    parts.append("free host memory " + ", ".join(f"{_gb(free)} GB on {host}" for host, free in hosts.items()))
    return "; ".join(parts)


def outlier_workers(statuses: Sequence[WorkerStatus]) -> list[str]:
    """Return a sentence about each worker whose free device memory or used host memory differs from its role's.

    Of two workers that differ, neither is the usual one: one sentence has both numbers.
    Ranks of one FSDP group do the same work. A rank that differs offloads state that the others keep, shares its
    accelerator with a leftover process, or has read more than its part.
    """
    roles: dict[str, list[WorkerStatus]] = defaultdict(list)
    for status in statuses:
        roles[status.worker.split("/")[0]].append(status)
    outliers = []
    for peers in roles.values():
        devices = [status.device_free_bytes for status in peers if status.device_free_bytes is not None]
        outliers += _outliers(peers, devices, "free device memory")
        outliers += _outliers(peers, [float(status.host_memory_bytes) for status in peers], "host memory in use")
    return outliers


def _outliers(peers: Sequence[WorkerStatus], amounts: Sequence[float], what: str) -> list[str]:
    if len(amounts) < max(2, len(peers)):
        return []
    usual = median(amounts)
    odd = [
        (f"{status.worker} on {status.host}", _gb(amount))
        for status, amount in zip(peers, amounts, strict=True)
        if abs(amount - usual) > max(OUTLIER_BYTES, OUTLIER_SHARE * usual)
    ]
    if len(peers) == 2 and odd:
        (one, ones), (other, others) = odd
        return [f"{one} and {other} differ: {ones} and {others} GB {what}"]
    return [f"{name}: {amount} GB {what}, {_gb(usual)} GB on most of its peers" for name, amount in odd]


def _gb(num_bytes: float) -> str:
    return f"{num_bytes / 1e9:.1f}"


# --- stragglers -----------------------------------------------------------------------------


@dataclass(frozen=True)
class _Work:
    """Work of a process."""

    us: int  # microseconds
    units: int
    calls: int

    @property
    def us_per_unit(self) -> float:
        return self.us / max(1, self.units)

    @property
    def us_per_call(self) -> float:
        return self.us / max(1, self.calls)

    def since(self, then: _Work) -> _Work:
        """Return what was done since `then`."""
        return _Work(self.us - then.us, self.units - then.units, self.calls - then.calls)


class Stragglers:
    """Stragglers of the last minute, by comparison with their peers and with their own first minutes.

    Example::

        stragglers = Stragglers()
        for sentence in stragglers.sentences(workers.statuses()): console.warning(sentence)   # about once a second
    """

    def __init__(self) -> None:
        self._seen: deque[tuple[float, dict[str, tuple[int, _Work]]]] = deque()  # (s, worker -> pid and work)
        self._said: dict[str, float] = {}
        self._first: dict[tuple[str, int], list[_Work]] = {}  # (worker, pid) -> work of its first minutes
        self._minute_ends = 0.0

    def sentences(self, statuses: Iterable[WorkerStatus], now: float | None = None) -> Iterator[str]:
        """Yield a sentence for each straggler. now: monotonic seconds; None: the present."""
        now = time.monotonic() if now is None else now
        free = [status for status in statuses if status.load < BUSY_LOAD]  # others are slow by what runs beside them
        self._seen.append((now, {status.worker: (status.pid, _work_done(status)) for status in free}))
        while len(self._seen) > 1 and self._seen[1][0] <= now - STRAGGLER_WINDOW_S:
            self._seen.popleft()
        since, before = self._seen[0]
        if now - since < STRAGGLER_WINDOW_S:
            return
        took = {role: dict(self._took(role, before)) for role in _WORK_COUNTERS}
        if now >= self._minute_ends:
            self._minute_ends = now + STRAGGLER_WINDOW_S
            self._keep_first_minute(took)
        for role, of_workers in took.items():
            for worker, work in of_workers.items():
                is_busy = work.us >= _MIN_BUSY_SHARE * 1e6 * (now - since)
                is_named = now - self._said.get(worker, -_REPEAT_WARNING_S) < _REPEAT_WARNING_S
                text = self._text(role, worker, of_workers, now - since) if is_busy and not is_named else None
                if text:
                    self._said[worker] = now
                    yield text

    def _keep_first_minute(self, took: Mapping[str, Mapping[str, _Work]]) -> None:
        """Keep the work of each process, as long as these are its first minutes."""
        for of_workers in took.values():
            for worker, work in of_workers.items():
                first = self._first_minutes(worker)
                if len(first) < _NUM_FIRST_MINUTES:
                    first.append(work)

    def _first_minutes(self, worker: str) -> list[_Work]:
        return self._first.setdefault((worker, self._seen[-1][1][worker][0]), [])

    def _text(self, role: str, worker: str, took: Mapping[str, _Work], window_s: float) -> str | None:
        """Return a sentence if a worker is slow. took: work of the workers of its role."""
        peers = [work for peer, work in took.items() if peer != worker]
        return _straggler_text(worker, _UNIT_NAMES[role], took[worker], peers, self._first_minutes(worker), window_s)

    def _took(self, role: str, before: dict[str, tuple[int, _Work]]) -> Iterator[tuple[str, _Work]]:
        """Yield (worker, its work in the window), for processes that worked and lived through it."""
        for worker, (pid, work) in self._seen[-1][1].items():
            then = before.get(worker)
            if worker.startswith(f"{role}/") and then is not None and then[0] == pid and work.units > then[1].units:
                yield worker, work.since(then[1])


def _straggler_text(
    worker: str, unit: str, own: _Work, peers: list[_Work], first: list[_Work], window_s: float
) -> str | None:
    """Return a sentence if a worker is slow. peers: work of the others. first: its own in its first minutes."""
    here = f"{worker} takes {own.us_per_unit / 1000:.3g} ms for a {unit}"
    if peers and _is_slow(own, peers):
        return (
            f"{here}, its peers {_usual_us(peers) / 1000:.3g} ms, in the last {window_s:.0f} s: they wait for it; "
            "compare its node (clocks, load, GPU) with theirs"
        )
    if len(first) >= _NUM_FIRST_MINUTES and _is_slow(own, first):
        return (
            f"{here} in the last {window_s:.0f} s, and took {_usual_us(first) / 1000:.3g} ms in its first minutes: it "
            "grows slower; look at its memory, and at the load and clocks of its node"
        )
    return None


def _is_slow(own: _Work, others: list[_Work]) -> bool:
    """Return whether a unit of work takes much longer than usual, and a call does, too.

    A call with few units takes as long as a full one on a GPU, and towards the end of an epoch few episodes go on.
    """
    of_call = statistics.median(work.us_per_call for work in others)
    is_slow_call = own.us_per_call >= STRAGGLER_FACTOR * max(of_call, 1.0)
    return is_slow_call and own.us_per_unit >= STRAGGLER_FACTOR * max(_usual_us(others), 1.0)


def _usual_us(others: list[_Work]) -> float:
    """Return the median time for a unit of work, in microseconds."""
    return statistics.median(work.us_per_unit for work in others)


def _work_done(status: WorkerStatus) -> _Work:
    names = _WORK_COUNTERS.get(status.worker.partition("/")[0], ())
    return _Work(*(status.counters.get(name, 0) for name in names)) if names else _Work(0, 0, 0)
