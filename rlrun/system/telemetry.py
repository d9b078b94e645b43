"""Telemetry of a worker (phases, counters, spans, open waits, silences), and totals of counters over workers.

Telemetry is cheap, thread-safe and without I/O.
"""

from __future__ import annotations

import math
import os
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from rlrun.system import machine_load
from rlrun.system.machine_load import host_memory, local_load
from rlrun.system.network import SENTINEL
from rlrun.system.notices import notices
from rlrun.system.run_queue import descendants
from rlrun.system.status import OpenWait, Span, WorkerStatus

FIRST_TIME = ", first"  # marks the first time of a phase in a process: imports, compilation, allocation
SAMPLE_INTERVAL_S = 2.0  # between two samples of a phase; polling once a second sees all of them
_last_alive = time.monotonic()  # last activity of any telemetry in this process


class Silence:
    """Silences: times without progress. The caller holds a lock around every call.

    Example::

        silence = Silence()
        silence.end("act")      # 3 s after it was made
        silence.finish("act")   # the next "act" is not the first
        silence.samples()       # {"act, first": (1, 3.0)}
    """

    def __init__(self) -> None:
        self._since = time.monotonic()
        self._open: dict[str, tuple[float, float]] = {}  # phase -> time of its last sample, longest silence since
        self._samples: dict[str, tuple[int, float]] = {}
        self._finished: set[str] = set()

    @property
    def seconds(self) -> float:
        """Length of the current silence."""
        return time.monotonic() - self._since

    def end(self, phase: str | None) -> None:
        """End the current silence. phase: of the worker during it; None if it was idle or waited for others."""
        now = time.monotonic()
        if phase is not None:
            self._add(phase if phase in self._finished else phase + FIRST_TIME, now - self._since, now)
        self._since = now

    def _add(self, key: str, seconds: float, now: float) -> None:
        """Take a sample if INTERVAL_S has passed since the last one; else keep the longest silence for the next."""
        taken, longest = self._open.get(key, (-math.inf, 0.0))
        longest = max(longest, seconds)
        if now - taken < SAMPLE_INTERVAL_S:
            self._open[key] = (taken, longest)
            return
        count, _ = self._samples.get(key, (0, 0.0))
        self._samples[key] = (count + 1, longest)
        self._open[key] = (now, 0.0)

    def finish(self, phase: str) -> None:
        """Mark the end of a phase."""
        self._finished.add(phase)

    def is_first(self, phase: str) -> bool:
        """Return whether this process has not finished the phase yet."""
        return phase not in self._finished

    def samples(self) -> dict[str, tuple[int, float]]:
        """Return phase -> number of samples taken, and the last one: the longest silence since the one before.

        First times count as phases of their own. Example: {"load, first": (1, 4.1), "simulate": (12, 0.2)}.
        """
        return dict(self._samples)


@dataclass(frozen=True, eq=False)
class _Wait:
    what: str
    on: Callable[[], Sequence[str]]
    since: float  # monotonic
    budget_s: float

    def snapshot(self) -> OpenWait:
        return OpenWait(self.what, tuple(self.on()), time.monotonic() - self.since, self.budget_s)


def seconds_since_alive() -> float:
    """Return the time since the last activity in this process: a span, a counter, or a poll during a wait."""
    return time.monotonic() - _last_alive


def mark_alive() -> None:
    """Mark activity in a loop that polls and reports nothing else."""
    global _last_alive  # noqa: PLW0603 (one per process, as the guard needs it)
    _last_alive = time.monotonic()


class Telemetry:
    """Telemetry of one worker: `span` marks a phase, `count` adds to a counter, `waiting` marks a wait.

    Example::

        telemetry = Telemetry("env/0")
        with telemetry.span("simulate"):
            telemetry.count("env_steps", 64)
    """

    def __init__(self, worker: str):
        self.worker = worker
        self._has_children = not worker.startswith("driver/")  # the driver's are Ray and all workers: not counted
        self._lock = threading.Lock()
        self._open: list[tuple[str, float]] = []
        self._spans: list[Span] = []
        self._counters: Counter[str] = Counter()
        self._waits: list[_Wait] = []
        self._silence = Silence()
        self._failure = ""
        self.step: int | None = None  # training step of the spans that open now, from 1; None: they belong to none

    @contextmanager
    def span(self, name: str, detail: str = "") -> Iterator[None]:
        """Mark the time inside as phase `name`. The innermost of nested spans is the current phase."""
        entry = (name, machine_load.steady_time())
        step = self.step
        with self._lock:
            self._moved()
            self._open.append(entry)
        try:
            yield
        finally:
            with self._lock:
                self._moved()
                self._open.remove(entry)
                self._silence.finish(name)
                self._spans.append(Span(name, entry[1], machine_load.steady_time(), detail, step))

    @contextmanager
    def waiting(self, what: str, on: Sequence[str] | Callable[[], Sequence[str]], budget_s: float) -> Iterator[None]:
        """Mark the time inside as a wait for `what`, from the workers `on` ("role/rank"), `budget_s` at most.

        on: the workers that have not answered yet. A function is called for every status, and must not block.
        """
        wait = _Wait(what, on if callable(on) else lambda: on, time.monotonic(), budget_s)
        with self._lock:
            self._moved()
            self._waits.append(wait)
        try:
            yield
        finally:
            with self._lock:
                self._moved()
                self._waits.remove(wait)

    def fail(self, text: str) -> None:
        """Record that a background thread of this process died, for the worker's status. Only the first is kept."""
        with self._lock:
            self._failure = self._failure or text

    def count(self, counter: str, amount: int = 1, is_progress: bool = True) -> None:
        """Add to a counter, which never falls. is_progress: False for events caused by others."""
        with self._lock:
            if is_progress:
                self._moved()
            self._counters[counter] += amount

    def _moved(self) -> None:
        """Record progress; the lock is held. Time spent waiting for others does not count as silence."""
        phase = self._open[-1][0] if self._open else None
        mark_alive()
        is_waiting = phase is None or phase.startswith("wait") or any(wait.on() for wait in self._waits)
        self._silence.end(None if is_waiting else phase)

    @property
    def phase(self) -> str:
        """Name of the innermost open span, or "idle"."""
        with self._lock:
            return self._open[-1][0] if self._open else "idle"

    @property
    def is_first(self) -> bool:
        """Whether the worker is in its phase for the first time."""
        with self._lock:
            return bool(self._open) and self._silence.is_first(self._open[-1][0])

    @property
    def is_waiting(self) -> bool:
        """Whether the worker waits for others."""
        return bool(self._waits)

    @property
    def failure(self) -> str:
        """The first text given to `fail`; "" without a failure."""
        return self._failure

    def drain_spans(self) -> list[Span]:
        """Return the spans that were closed since the last call."""
        with self._lock:
            spans = self._spans
            self._spans = []
        return spans

    def status(self) -> WorkerStatus:
        """Return the current state of this worker. Another thread may call it while the worker is busy."""
        with self._lock:
            phase, since = self._open[-1] if self._open else ("idle", machine_load.steady_time())
            counters = dict(self._counters)
            waits = {wait.what: wait.snapshot() for wait in reversed(self._waits)}  # the oldest of equal ones
            silence_s = self._silence.seconds
            silences = self._silence.samples()
            failure = self._failure
            is_first = bool(self._open) and self._silence.is_first(phase)
        return WorkerStatus(
            worker=self.worker,
            host=socket.gethostname(),
            pid=os.getpid(),
            phase=phase,
            phase_age_s=machine_load.steady_time() - since,
            counters=counters,
            host_memory_bytes=_private_bytes(self._has_children),
            device_memory_bytes=_device_bytes(),
            accelerator=_accelerator(),
            host_free_bytes=host_memory().free_bytes,
            device_free_bytes=float(sys.modules["torch"].cuda.mem_get_info()[0]) if _uses_cuda() else None,
            waits=tuple(wait for wait in waits.values() if wait.on),
            silence_s=silence_s,
            silences=silences,
            is_first=is_first,
            load=local_load(),
            failure=failure,
            notices=notices(),
            sentinel=os.environ.get(SENTINEL, ""),
        )


def _private_bytes(has_children: bool) -> int:
    """Return the private memory of this process and its child processes, such as simulators.

    Memory that a file backs, or that several workers map, is not private.
    """
    pids = [os.getpid(), *(descendants(os.getpid()) if has_children else ())]
    return os.sysconf("SC_PAGE_SIZE") * sum(map(_private_pages, pids))


def _private_pages(pid: int) -> int:
    with suppress(OSError), open(f"/proc/{pid}/statm") as statm:  # it may have ended
        _, resident, shared, *_ = map(int, statm.read().split())
        return resident - shared
    return 0


def _accelerator() -> str:
    """Return the GPUs that the placement gave this process, else "cpu"."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").strip()
    if visible and visible != "-1":
        return f"gpu {visible}"
    return f"gpu {sys.modules['torch'].cuda.current_device()}" if _uses_cuda() else "cpu"


def _device_bytes() -> float:
    return float(sys.modules["torch"].cuda.memory_allocated()) if _uses_cuda() else 0.0


def _uses_cuda() -> bool:
    torch = sys.modules.get("torch")  # a worker that never imported torch holds no device memory
    is_initialized = getattr(getattr(torch, "cuda", None), "is_initialized", None)  # another thread may be importing it
    return is_initialized is not None and bool(is_initialized())


class CounterTotals:
    """Totals of counters, which never fall: a replaced worker's new process adds to the count of the old one.

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
