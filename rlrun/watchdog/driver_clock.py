"""A monotonic clock without the time in which the driver itself was stopped."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

_PERIOD_S = 1.0
PAUSE_S = 5.0  # a gap between two readings, which are due every second, that counts as a pause


class DriverClock:
    """A clock that stops while this process is stopped or held by a debugger, so that no worker is blamed for it.

    Example::

        clock = DriverClock(note)
        clock.open()         # reads the time once a second from now on
        clock.seconds()      # time.monotonic() minus the pauses
    """

    def __init__(self, note: Callable[[str], None]):
        """note: receives a sentence about every pause, from a thread of its own."""
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
        """Read the time, and report a pause if there was one since the last reading. Returns as `seconds`."""
        gap_s = 0.0
        with self._lock:
            now = time.monotonic()
            if self._read_at is not None and now - self._read_at > PAUSE_S:
                gap_s = now - self._read_at
                self._paused_s += gap_s - _PERIOD_S
                self._resumed_at = now - self._paused_s
                self.num_pauses += 1
            self._read_at = now
            own_s = now - self._paused_s
        if gap_s:
            text = f"the driver itself was stopped for {gap_s:.0f} s; no worker is blamed for that time"
            threading.Thread(target=self._note, args=(text,), daemon=True).start()
        return own_s

    def _run(self) -> None:
        while not self._is_over.wait(_PERIOD_S):
            self.update()
