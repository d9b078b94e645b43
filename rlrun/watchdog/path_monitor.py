"""Whether packets of full size still reach the other nodes in time: tried every few seconds during a wait."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

PERIOD_S = 10.0
_DOUBT_S = 1.0  # a try of an intact path takes less
_MAX_GRACE_S = 10.0  # a connection that has not recovered by then does not recover soon


class PathMonitor:
    """Tries all paths in a thread of its own, since it takes seconds to find a path that loses or delays packets.

    Example::

        paths = PathMonitor(lambda: ["the network loses large packets: 1500 bytes from train to sim get lost"])
        paths.check()         # []: the first try has begun
        paths.check()         # some seconds later: the sentence
    """

    def __init__(self, measure: Callable[[], list[str]], clock: Callable[[], float] = time.monotonic):
        """measure: returns a sentence on each path that loses or delays packets."""
        self._measure, self._clock = measure, clock
        self._thread: threading.Thread | None = None
        self._tried = float("-inf")
        self._faults: list[str] = []
        self._began = self._grace_ends = float("-inf")

    def check(self) -> list[str]:
        """Return what the last try found. Begins the next try when it is due."""
        if not self._is_trying and self._clock() - self._tried >= PERIOD_S:
            self._tried = self._clock()
            self._thread = threading.Thread(target=self._try, name="path monitor", daemon=True)
            self._thread.start()
        return self._faults

    @property
    def excuses_silence(self) -> bool:
        """Whether the network may be why a worker is silent. Lost packets are sent again with a delay."""
        now = self._clock()
        is_doubtful = self._is_trying and _DOUBT_S < now - self._tried < PERIOD_S
        return bool(self._faults) or is_doubtful or now < self._grace_ends

    @property
    def _is_trying(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _try(self) -> None:
        found, now = self._measure(), self._clock()
        if found and not self._faults:
            self._began = self._tried
        if self._faults and not found:
            self._grace_ends = now + min(now - self._began, _MAX_GRACE_S)
        self._faults = found
