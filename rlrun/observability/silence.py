"""How long a worker went without a sign of progress, and the longest time of every phase."""

from __future__ import annotations

import time

FIRST = ", first"  # a phase that a process goes through for the first time: imports, compilation, allocation


class Silence:
    """Ends with every sign of progress. The caller holds a lock around every call.

    Example::

        silence = Silence()
        silence.end("act")      # 3 s after it was made
        silence.finish("act")   # from now on "act" is no first time
        silence.slowest()       # {"act, first": 3.0}
    """

    def __init__(self) -> None:
        self._since = time.monotonic()
        self._slowest: dict[str, float] = {}
        self._finished: set[str] = set()

    @property
    def seconds(self) -> float:
        """Length of the silence that goes on."""
        return time.monotonic() - self._since

    def end(self, phase: str | None) -> None:
        """A sign of progress. phase: what the worker did until now; None: nothing, or it waited for others."""
        if phase is not None:
            key = phase if phase in self._finished else phase + FIRST
            self._slowest[key] = max(self._slowest.get(key, 0.0), self.seconds)
        self._since = time.monotonic()

    def finish(self, phase: str) -> None:
        """The phase is over for the first time, or again."""
        self._finished.add(phase)

    def is_first(self, phase: str) -> bool:
        """Whether this process has not been through the phase yet."""
        return phase not in self._finished

    def slowest(self) -> dict[str, float]:
        """Phase -> longest silence in it; first times apart. Example: {"load, first": 4.1, "simulate": 0.2}."""
        return dict(self._slowest)
