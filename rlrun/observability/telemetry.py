"""What a worker tells about itself: phases, counters, spans. Cheap, thread-safe, no I/O."""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import psutil

from rlrun.data.messages import Span, WorkerStatus


class Telemetry:
    """One per worker. `span` marks a phase, `count` moves a progress counter.

    Example::

        telemetry = Telemetry("env/0")
        with telemetry.span("simulate"):
            telemetry.count("env_steps", 64)
    """

    def __init__(self, worker: str):
        self.worker = worker
        self._lock = threading.Lock()
        self._open: list[tuple[str, float]] = []
        self._spans: list[Span] = []
        self._counters: Counter[str] = Counter()

    @contextmanager
    def span(self, name: str, detail: str = "") -> Iterator[None]:
        """Mark the time inside as phase `name`; nested spans show the innermost."""
        entry = (name, time.time())
        with self._lock:
            self._open.append(entry)
        try:
            yield
        finally:
            with self._lock:
                self._open.remove(entry)
                self._spans.append(Span(name, entry[1], time.time(), detail))

    def count(self, counter: str, amount: int = 1) -> None:
        """Add to a monotone progress counter."""
        with self._lock:
            self._counters[counter] += amount

    def drain_spans(self) -> list[Span]:
        """The closed spans since the last call."""
        with self._lock:
            spans, self._spans = self._spans, []
        return spans

    def status(self) -> WorkerStatus:
        """What this worker does now; answers while the worker is busy."""
        with self._lock:
            phase, since = self._open[-1] if self._open else ("idle", time.time())
            counters = dict(self._counters)
        return WorkerStatus(
            worker=self.worker,
            host=socket.gethostname(),
            pid=os.getpid(),
            phase=phase,
            phase_age_s=time.time() - since,
            counters=counters,
            host_memory_bytes=_resident_bytes(),
            device_memory_bytes=_device_bytes(),
            accelerator=_accelerator(),
            host_free_bytes=psutil.virtual_memory().available,
            device_free_bytes=float(sys.modules["torch"].cuda.mem_get_info()[0]) if _uses_cuda() else None,
        )


def _resident_bytes() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _accelerator() -> str:
    """The GPUs that the placement gave this process, else "cpu"."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").strip()
    if visible and visible != "-1":
        return f"gpu {visible}"
    return f"gpu {sys.modules['torch'].cuda.current_device()}" if _uses_cuda() else "cpu"


def _device_bytes() -> float:
    return float(sys.modules["torch"].cuda.memory_allocated()) if _uses_cuda() else 0.0


def _uses_cuda() -> bool:
    torch = sys.modules.get("torch")  # a worker that never imported torch holds no device memory
    return torch is not None and torch.cuda.is_initialized()
