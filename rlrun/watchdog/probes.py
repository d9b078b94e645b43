"""Probes with time limits: calls that may hang, disks, pauses of the driver, network paths to other nodes.

Their threads are daemons: a probe that hangs in the kernel delays neither its caller nor the end of the process.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rlrun.system.storage_error import probe_write

DISK_PERIOD_S = 2.0
_CLOCK_PERIOD_S = 1.0
PAUSE_S = 5.0  # shortest gap between two readings, due once a second, that counts as a pause
PATH_PERIOD_S = 10.0
_INTACT_PATH_S = 1.0  # a probe of an intact path takes less
_MAX_GRACE_S = 10.0  # a connection that has not recovered by then does not recover soon


def run_with_timeout(name: str, work: Callable[[], Any], default: Any, failed: list[str], timeout_s: float) -> Any:
    """Return the result of `work`, or `default` if it raises or takes too long; `name` is then added to `failed`."""
    results: list = []

    def run() -> None:
        try:
            results.append(work())
        except Exception as error:  # the caller continues without this result
            results.append(default)
            failed.append(f"{name} ({error})")

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    thread.join(timeout=timeout_s)
    if not results:
        failed.append(name)
        return default
    return results[0]


def is_responsive(folder: Path, timeout_s: float) -> bool:
    """Return whether a write of a small file to `folder` succeeds or fails within `timeout_s`."""
    failed: list[str] = []
    run_with_timeout("disk", lambda: probe_write(folder), None, failed, timeout_s)
    return failed != ["disk"]


class DiskProbe:
    """Probe of the disk of one folder, by periodic writes of a small file.

    Example::

        probe = DiskProbe(run_dir)
        probe.check()     # 0.0 while the disk responds; 12.0: it has not responded for 12 s
    """

    def __init__(self, folder: Path, write: Callable[[Path], object] = probe_write):
        """write: tries to; a disk that is full, read-only or removed responds, and the next writer reports that."""
        self._folder = folder
        self._write = write
        self._thread: threading.Thread | None = None
        self._begun = -DISK_PERIOD_S  # monotonic time

    def check(self) -> float:
        """Return the seconds since the pending write began, 0 without one. Starts the next write when it is due."""
        now = time.monotonic()
        if self._thread is not None and self._thread.is_alive():
            return now - self._begun
        if now - self._begun >= DISK_PERIOD_S:
            self._begun = now
            self._thread = threading.Thread(target=self._write, args=(self._folder,), name="disk probe", daemon=True)
            self._thread.start()
        return 0.0


class DriverClock:
    """Clock that excludes the time in which this process is stopped, as by a debugger; no worker is blamed for it.

    Example::

        clock = DriverClock(note)
        clock.open()         # reads the time once a second from now on
        clock.seconds()      # time.monotonic() minus the pauses
    """

    def __init__(self, note: Callable[[str], None]):
        """note: receives a sentence about every pause, in a separate thread."""
        self._note = note
        self._lock = threading.Lock()
        self._read_at: float | None = None  # None: not open
        self._paused_s = 0.0
        self._resumed_at = float("-inf")  # on this clock, at the end of the last pause
        self.num_pauses = 0
        self._is_over = threading.Event()

    def open(self) -> None:
        """Start reading the time once a second."""
        self.update()
        threading.Thread(target=self._run, name="driver clock", daemon=True).start()

    def close(self) -> None:
        """Stop reading the time. Safe to call twice."""
        self._is_over.set()

    def seconds(self) -> float:
        """Return the time of this clock in seconds."""
        if self._read_at is None:
            return time.monotonic()
        return self.update()

    @property
    def since_pause_s(self) -> float:
        """Time of this clock since the last pause; infinite without one."""
        return self.seconds() - self._resumed_at

    def update(self) -> float:
        """Read the time, and report a pause since the last reading. Returns like `seconds`."""
        gap_s = 0.0
        with self._lock:
            now = time.monotonic()
            if self._read_at is not None and now - self._read_at > PAUSE_S:
                gap_s = now - self._read_at
                self._paused_s += gap_s - _CLOCK_PERIOD_S
                self._resumed_at = now - self._paused_s
                self.num_pauses += 1
            self._read_at = now
            own_s = now - self._paused_s
        if gap_s:
            text = f"the driver itself was stopped for {gap_s:.0f} s; no worker is blamed for that time"
            threading.Thread(target=self._note, args=(text,), daemon=True).start()
        return own_s

    def _run(self) -> None:
        while not self._is_over.wait(_CLOCK_PERIOD_S):
            self.update()


class PathMonitor:
    """Probe of the network paths to other nodes, in a thread: finding lost or delayed packets takes seconds.

    Example::

        paths = PathMonitor(lambda: ["the network loses large packets: 1500 bytes from train to sim get lost"])
        paths.check()         # []: the first probe has started
        paths.check()         # some seconds later: the sentence
    """

    def __init__(self, measure: Callable[[], list[str]], clock: Callable[[], float] = time.monotonic):
        """measure: returns a sentence on each path that loses or delays packets."""
        self._measure = measure
        self._clock = clock
        self._thread: threading.Thread | None = None
        self._tried = float("-inf")
        self._faults: list[str] = []
        self._began = self._grace_ends = float("-inf")

    def check(self) -> list[str]:
        """Return the sentences of the last probe. Starts the next probe when it is due."""
        if not self._is_trying and self._clock() - self._tried >= PATH_PERIOD_S:
            self._tried = self._clock()
            self._thread = threading.Thread(target=self._try, name="path monitor", daemon=True)
            self._thread.start()
        return self._faults

    @property
    def excuses_silence(self) -> bool:
        """Whether the network may be the cause of a worker's silence. Lost packets are sent again with a delay."""
        now = self._clock()
        is_doubtful = self._is_trying and _INTACT_PATH_S < now - self._tried < PATH_PERIOD_S
        return bool(self._faults) or is_doubtful or now < self._grace_ends

    @property
    def _is_trying(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _try(self) -> None:
        faults = self._measure()
        now = self._clock()
        if faults and not self._faults:
            self._began = self._tried
        if self._faults and not faults:
            self._grace_ends = now + min(now - self._began, _MAX_GRACE_S)
        self._faults = faults
