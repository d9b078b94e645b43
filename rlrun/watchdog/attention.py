"""The driver's own time: without the minutes in which it was stopped, or held by a debugger, and saw nobody."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

_PERIOD_S = 1.0
GAP_S = 5.0  # between two looks at the clock, of which one is due every second


class Attention:
    """A clock that stands still while this process does, so that nobody else is blamed for that time.

    Example::

        attention = Attention(note)
        attention.open()         # from now on it looks at the time once a second
        attention.seconds()      # as time.monotonic(), less the pauses
    """

    def __init__(self, note: Callable[[str], None]):
        """note: told of every pause, by a thread of its own."""
        self._note = note
        self._lock = threading.Lock()
        self._looked: float | None = None  # None: not open
        self._lost_s = 0.0
        self._woke_s = float("-inf")  # own time at the end of the last pause
        self.num_gaps = 0
        self._is_over = threading.Event()

    def open(self) -> None:
        """Begin to look at the time."""
        self.look()
        threading.Thread(target=self._run, name="attention", daemon=True).start()

    def close(self) -> None:
        """End it. Safe to call twice."""
        self._is_over.set()

    def seconds(self) -> float:
        """Own time."""
        if self._looked is None:
            return time.monotonic()
        return self.look()

    @property
    def awake_s(self) -> float:
        """Own time since the last pause; infinite, if there was none."""
        return self.seconds() - self._woke_s

    def look(self) -> float:
        """Own time; tells of a pause, if this is the first look after one."""
        gap_s = 0.0
        with self._lock:
            now = time.monotonic()
            if self._looked is not None and now - self._looked > GAP_S:
                gap_s = now - self._looked
                self._lost_s += gap_s - _PERIOD_S
                self._woke_s = now - self._lost_s
                self.num_gaps += 1
            self._looked = now
            own_s = now - self._lost_s
        if gap_s:
            text = f"the driver itself stood still for {gap_s:.0f} s; nobody else is blamed for that time"
            threading.Thread(target=self._note, args=(text,), daemon=True).start()
        return own_s

    def _run(self) -> None:
        while not self._is_over.wait(_PERIOD_S):
            self.look()
